"""The composition root: what runs in one process, in which order, with which settings."""
