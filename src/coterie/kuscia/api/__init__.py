"""Kuscia's kinds and the pure rules about them."""
