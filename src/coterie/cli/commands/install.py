"""`coterie install`: prepares somebody's cluster for a control plane. Each action is a module of its own."""

from __future__ import annotations

HELP = """
Prepare a Kubernetes cluster for a control plane that works with the cluster's own API server
(`apiServer.kubeconfig` in its configuration).

Examples:
  coterie install kubernetes --print
  coterie install kubernetes --apply --kubeconfig admin.kubeconfig
"""
