"""Takes calls from the bus, has actors run them, and writes the answers."""
