"""What runs containers: one protocol, one shared test suite, several implementations."""
