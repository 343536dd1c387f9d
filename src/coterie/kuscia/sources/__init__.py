"""Where tables and files lie: one small protocol, several kinds of places."""
