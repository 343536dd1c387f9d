"""Finds a node for every pod: snapshot -> plan -> bind. See README.md."""
