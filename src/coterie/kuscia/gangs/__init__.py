"""Co-scheduling: a plug-in of the scheduler."""
