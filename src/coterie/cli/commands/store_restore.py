"""`coterie store restore`: puts a backup into a store."""

from __future__ import annotations

import argparse
from pathlib import Path

from coterie.cli import arguments as options
from coterie.cli.app import App, CliError
from coterie.cli.progress import working
from coterie.cli.store_access import address_of, run_store, store_argument
from coterie.kube.store.protocol import StoreError
from coterie.kube.store.transfer import load_snapshot, write_snapshot

HELP = """
Put the objects of a backup into a store. All get new revisions, higher than any that clients may have seen, so old and
new history cannot be confused: watches of before are told to list anew. On SQLite the node must be stopped; servers on
PostgreSQL and etcd may run, and take over what was restored. Without --replace the store must be empty.

Examples:
  coterie store restore alice.backup alice.yaml --replace
  coterie store restore alice.backup etcd://m1:2379/coterie
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="written by `coterie store backup`")
    parser.complete(file="files")
    store_argument(parser)
    parser.add_argument("--replace", action="store_true", help="remove what is in the store")


def run(args: argparse.Namespace, app: App) -> int:
    try:
        with working(app, args.file, "reading"):
            found = load_snapshot(Path(args.file))
    except StoreError as problem:
        raise CliError(str(problem)) from problem
    address = address_of(args.store, args.root)
    reached = run_store(app, address, "writing objects", write_snapshot(address, found, replace=args.replace))
    app.say(f"{address.label}: {len(found.records)} objects, revision {reached}")
    return 0
