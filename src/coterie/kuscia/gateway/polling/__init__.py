"""Calls to a domain without a public port, in Kuscia's own frames."""
