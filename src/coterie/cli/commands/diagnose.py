"""`coterie diagnose`: what keeps parties apart. Each action is a module of its own (`diagnose_network`, `diagnose_log`, ...)."""

from __future__ import annotations

HELP = """
Find out what keeps parties apart: before a job starts, from what gateways logged, or for somebody who helps.

Examples:
  coterie diagnose network alice bob                   # every link, both directions
  coterie diagnose job job.yaml                        # could this job run?
  coterie diagnose log --since 1h                      # which calls failed, and why
  coterie diagnose bundle -o alice.tar.gz              # for support, without secrets
"""
