"""The Node object: who this machine is, what it offers, how it is, and that it lives."""
