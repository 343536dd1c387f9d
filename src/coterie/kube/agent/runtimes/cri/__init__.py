"""Containers through containerd's CRI v1."""
