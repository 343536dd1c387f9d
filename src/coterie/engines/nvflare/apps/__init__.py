"""Jobs that come along."""
