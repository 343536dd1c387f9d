"""Bodies that only the two ends of a route can read: see README.md."""
