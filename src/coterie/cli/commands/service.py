"""`coterie service`: a node under systemd. Each action is a module of its own."""

from __future__ import annotations

HELP = """
Run a node as a service of systemd: it starts with the machine, is started again when it fails, and its pods and its
gateway go on while it is restarted or upgraded. Services of the system need root; --user makes one of your own.

Examples:
  coterie service install -c alice.yaml
  coterie service install -c alice.yaml --print       # only print the unit
  coterie service status
  coterie service upgrade --python /opt/coterie-2/bin/python
  coterie service uninstall --domain alice
"""
