"""Pods: what to do next (`decide`), how they are (`status`), and the workers that carry it out."""
