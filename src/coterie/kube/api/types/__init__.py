"""Typed read models of the kinds our own code works with; see `coterie.kube.api.meta` for how they are written back."""
