"""Programs for MPyC, unmodified, between organisations that reach each other through HTTP gateways only."""
