"""`coterie start`: run one node in the foreground until it is told to stop."""

from __future__ import annotations

import argparse

from coterie.cli.app import App
from coterie.cli.arguments import Parser
from coterie.cli.node_process import run_node

HELP = """
Run a node in the foreground until Ctrl-C or SIGTERM. Its state is stored in the directory of its domain under the root.
When the API server is ready, that directory contains a kubeconfig, which the other commands find automatically.

Examples:
  coterie init --mode master --domain alice -o coterie.yaml   # first
  coterie start -c coterie.yaml
  coterie start -c coterie.yaml --root /srv/coterie
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", default="", help="configuration file of the node")
    parser.add_argument(
        "--root", metavar="DIR", default=argparse.SUPPRESS, help="directory of the domains ($COTERIE_ROOT, ~/.coterie)"
    )


def run(args: argparse.Namespace, app: App) -> int:
    return run_node(args.config, args.root, app)
