"""The commands of the kubectl conformance suite, by chapter."""
