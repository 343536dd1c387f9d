"""A Flower app: see pyproject.toml."""
