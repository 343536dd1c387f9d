"""Routes on the command line: listing and checking."""
