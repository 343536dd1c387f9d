"""The domain's data: what is there, who may read it, and the way to it."""
