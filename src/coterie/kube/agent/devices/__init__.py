"""Devices of the node, such as GPUs: found, given to one pod each, watched and measured."""
