"""Evidence: an append-only log of what a domain did, which partners cosign and anybody can verify."""
