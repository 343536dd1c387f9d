"""`coterie job`: what can be done with jobs. Each action is a module of its own (`job_run`, `job_ls`, ...)."""

from __future__ import annotations

HELP = """
A job is a graph of tasks that several domains carry out together. These commands start jobs, show how far they are at
every party, and give them orders. Jobs live in the namespace cross-domain of a control plane.

Examples:
  coterie job run --engine sample --parties alice,bob   # the smallest job there is
  coterie job run job.yaml                              # one from a file, followed to its end
  coterie job ls
  coterie job watch common-customers                    # see it at work
  coterie job logs common-customers -f                  # and hear what its tasks say
  coterie job show common-customers --timeline          # where did the time go?
"""
