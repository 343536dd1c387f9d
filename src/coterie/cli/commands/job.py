"""`coterie job`: what can be done with jobs. Each action is a module of its own (`job_run`, `job_ls`, ...)."""

from __future__ import annotations

HELP = """
Run and control jobs. A job is a DAG of tasks that several domains run together. Jobs are KusciaJob objects in the
namespace cross-domain.

Examples:
  coterie job run --engine sample --parties alice,bob   # the smallest job
  coterie job run job.yaml                              # a job from a file, followed until it ends
  coterie job ls
  coterie job watch common-customers                    # progress
  coterie job logs common-customers -f                  # logs of its tasks
  coterie job show common-customers --timeline          # where did the time go?
"""
