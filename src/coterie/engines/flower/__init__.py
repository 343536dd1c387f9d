"""Flower apps, unmodified, between organisations: a SuperLink at one, SuperNodes at all that have rows."""
