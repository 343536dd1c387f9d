"""`coterie store`: the objects of a control plane, from one kind of store into another. Each action is a module of its own."""

from __future__ import annotations

HELP = """
A control plane keeps its objects in a SQLite file, in PostgreSQL or in etcd. STORE is an address
(sqlite:///file, postgresql://user@host/database?passwordFile=/file, etcd://host:2379/prefix), or the configuration file
of a node, which names one. Backups hold every Secret in plain text and are written for their owner alone.

Examples:
  coterie store check alice.yaml
  coterie store backup alice.yaml --file alice.backup
  coterie store migrate alice.yaml 'postgresql://coterie@db/coterie?passwordFile=/etc/coterie/db.password'
  coterie store restore alice.backup etcd://m1:2379,m2:2379/coterie
"""
