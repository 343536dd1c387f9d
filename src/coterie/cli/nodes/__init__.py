"""Machines that join a control plane and leave it: `coterie node`."""
