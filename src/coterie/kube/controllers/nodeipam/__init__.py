"""Gives every Node the addresses of its pods (`spec.podCIDR`)."""
