"""The domain gateway: what crosses between domains, and who may."""
