"""Containers run by an OCI runtime program (runc, crun, runsc), within the pods, networks and records of RunP."""
