"""The console: pages in a browser for people, served on port 8088 while somebody looks."""
