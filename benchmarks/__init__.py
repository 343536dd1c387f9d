"""How fast and how big: `make bench`, or `python -m benchmarks.run --help`."""
