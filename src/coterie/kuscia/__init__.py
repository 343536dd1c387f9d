"""The product: organisations that compute together, on the platform."""
