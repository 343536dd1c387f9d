"""Probes: is a container started, alive, ready? Asked over HTTP, TCP, gRPC or by a command in it."""
