"""The diagnostic endpoint of a gateway, and the probe that measures a link with it."""
