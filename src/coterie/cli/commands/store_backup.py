"""`coterie store backup`: writes all objects of a store into a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.progress import working
from coterie.cli.store_access import address_of, run_store, store_argument, taken_from_kine
from coterie.kube.store.protocol import StoreError
from coterie.kube.store.transfer import read_snapshot, save_snapshot

HELP = """
Write all objects, as they are at one moment, into a file. The node may run meanwhile. Events are left out. The file
holds every Secret in plain text: it is written for its owner alone, and should be kept as such.

Examples:
  coterie store backup alice.yaml --file alice.backup
"""


def arguments(parser: options.Parser) -> None:
    store_argument(parser)
    parser.add_argument("--file", metavar="FILE", default="", help="where to write; it must not exist yet")
    parser.complete(file="files")


def run(args: argparse.Namespace, app: App) -> int:
    if not args.file:
        raise UsageError("--file FILE is needed")
    path = Path(args.file)
    if path.exists():
        raise CliError(f"{path} exists already", "take another name, or remove it")
    address = address_of(args.store, args.root)
    found = run_store(app, address, "reading its objects", read_snapshot(address, taken_from_kine()))
    try:
        with working(app, str(path), "writing", done="written"):
            number = save_snapshot(path, found)
    except (OSError, StoreError) as problem:
        raise CliError(f"{path} cannot be written: {problem}") from problem
    app.say(f"{path}: {number} objects of {address.label} at revision {found.revision}")
    return 0
