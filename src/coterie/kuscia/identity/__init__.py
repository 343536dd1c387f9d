"""Keys and certificates of a domain."""
