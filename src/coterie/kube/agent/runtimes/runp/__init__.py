"""RunP: containers are processes of this machine, fenced in as far as the machine allows.

Nothing is imported here: the supervisor, which stays resident, loads this package and must stay small.
"""
