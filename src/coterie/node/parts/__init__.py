"""The parts of a node, one module each."""
