"""Ingress and Dns objects as virtual hosts. Nothing here knows the proxy that serves them."""
