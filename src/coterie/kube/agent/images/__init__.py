"""What pods are started from: a small store of images on this machine, without a registry."""
