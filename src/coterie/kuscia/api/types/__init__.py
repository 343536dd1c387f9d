"""Typed read models of Kuscia's kinds."""
