"""A sample of an online service: each party answers callers, and asks the others how they are."""
