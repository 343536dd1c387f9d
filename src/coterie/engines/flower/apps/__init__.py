"""Flower apps that come along. Each is a directory that `flwr run` takes as it is."""
