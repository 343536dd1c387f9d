"""Ports on the machine that lead to pods: NodePort and externalIPs of Services, hostPort of pods."""
