"""`coterie store check`: reads a whole store and says what is wrong with it."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli.app import App
from coterie.cli.output import as_text
from coterie.cli.store_access import address_of, run_store, store_argument, taken_from_kine
from coterie.kube.store.transfer import counts_of, faults_of, read_snapshot

HELP = """
Read all objects of a store and check that each is readable and is the one that its key says. Exit status 1: something
is wrong. The node may run meanwhile.

Examples:
  coterie store check alice.yaml
  coterie store check etcd://127.0.0.1:2379/coterie -o json
"""


def arguments(parser: options.Parser) -> None:
    store_argument(parser)
    options.output_option(parser, ("table", "json", "yaml"))


def run(args: argparse.Namespace, app: App) -> int:
    address = address_of(args.store, args.root)
    reading = read_snapshot(address, taken_from_kine())
    found = run_store(app, address, "reading its objects", reading, quiet=args.output != "table")
    faults, counts = faults_of(found), counts_of(found)
    if args.output != "table":
        shown = {"store": address.label, "revision": found.revision, "compacted": found.compacted}
        left_out = {"leftOut": dict(found.skipped)} if found.skipped else {}
        app.write(as_text({**shown, "objects": dict(counts), **left_out, "faults": faults}, args.output))
        return 1 if faults else 0
    total = sum(number for _, number in counts)
    app.say(f"{address.label}: {total} objects, revision {found.revision}, history since {found.compacted}")
    for name, number in counts:
        app.say(f"  {number:6} {name}")
    for reason, number in found.skipped.items():
        app.say(f"  {number:6} {reason} (left out)")
    for fault in faults:
        app.warn(fault)
    return 1 if faults else 0
