"""RunP: containers are processes of this machine, fenced in as far as the machine allows.

Nothing is imported here: the shepherd, which stays resident, loads this package and must stay small.
"""
