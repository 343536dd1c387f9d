"""The sample engine: all parties of a task greet each other. What a task is told to do besides is in `task.py`."""
