"""KusciaAPI: what platforms drive a domain by, as one table of operations behind HTTP and gRPC."""
