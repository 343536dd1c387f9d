"""Pods of this node that run in another cluster."""
