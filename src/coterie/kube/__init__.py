"""The platform: a small Kubernetes that stands by itself."""
