"""The message bus of functions: `protocol.py` says what it does, one module for each implementation."""
