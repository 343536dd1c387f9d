"""Serverless functions: calls over a durable bus, dispatched to actors, which are pods."""
