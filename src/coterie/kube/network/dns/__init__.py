"""The names of one domain: a DNS server for its pods."""
