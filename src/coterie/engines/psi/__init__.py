"""The PSI engine: which rows have partners in common, without telling anything else. What a task says is in
`task.py`."""
