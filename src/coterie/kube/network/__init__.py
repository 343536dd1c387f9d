"""Names and addresses of pods and services."""
