"""Coterie: organisations compute together on data that none of them may hand over."""

__version__ = "0.1.0"
