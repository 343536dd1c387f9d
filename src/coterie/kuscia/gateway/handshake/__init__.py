"""How two domains agree on the token by which their gateways know each other; see README.md."""
