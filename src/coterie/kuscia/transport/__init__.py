"""The message queue of BFIA tasks, and of any engine that wants one. See README.md."""
