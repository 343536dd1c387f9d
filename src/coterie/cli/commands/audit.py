"""`coterie audit`: the evidence log: what ran, on whose authority, on which data. Each action is a module of its own (`audit_ls`, ...)."""

from __future__ import annotations

HELP = """
Each domain keeps an append-only log of what happened: who changed grants, routes, policies and engines, which jobs were
created, approved and ended, each use of a grant. Nobody can change or remove an event afterwards without being found
out. The log has no contents and no names of people or tables: it has commitments, which the owner can open or erase.

Examples:
  coterie audit ls --kind grant.used --since 7d
  coterie audit export --file alice.evidence
  coterie audit export --job common-customers --disclose person,table --file job.evidence
  coterie audit verify alice.evidence --trust alice.crt
  coterie audit compare alice.evidence bob.evidence
"""
