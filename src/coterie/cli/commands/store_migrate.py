"""`coterie store migrate`: from one store into another."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli.app import App, CliError
from coterie.cli.store_access import address_of, run_store, store_argument, taken_from_kine
from coterie.kube.store.transfer import faults_of, read_snapshot, write_snapshot

HELP = """
Copy all objects from one store into another, of any kind. Stop the node first: what it writes meanwhile is not copied.
Then name the new store in its configuration (`store`), and start it. The old store is left as it is. All objects get new
revisions, higher than before. Without --replace the new store must be empty.

FROM may be the database of a Kuscia (its `datastoreEndpoint`): Kuscia's objects, namespaces, ConfigMaps and Secrets are
copied, and what is left out is listed. With `table=kine` its table is read where tables of ours are beside it.

Examples:
  coterie store migrate alice.yaml 'postgresql://coterie@db/coterie?passwordFile=/etc/coterie/db.password'
  coterie store migrate etcd://m1:2379/coterie sqlite:///srv/coterie/alice.db
  coterie store migrate 'mysql://kuscia:pw@tcp(db:3306)/kine?table=kine' 'mysql://coterie:pw@tcp(db:3306)/coterie'
"""


def arguments(parser: options.Parser) -> None:
    store_argument(parser, "source", "FROM")
    store_argument(parser, "target", "TO")
    parser.add_argument("--replace", action="store_true", help="remove what is in the new store")


def run(args: argparse.Namespace, app: App) -> int:
    source, target = address_of(args.source, args.root), address_of(args.target, args.root)
    if source.label == target.label and source.schema == target.schema:
        raise CliError(f"{source.label} is both old and new store")
    found = run_store(app, source, "reading its objects", read_snapshot(source, taken_from_kine()))
    if faults := faults_of(found):
        raise CliError(f"{source.label}: {faults[0]}", "`coterie store check` lists what is wrong")
    reached = run_store(app, target, "writing objects", write_snapshot(target, found, replace=args.replace))
    app.say(f"{target.label}: {len(found.lasting)} objects of {source.label}, revision {reached}")
    for reason, number in found.skipped.items():
        app.say(f"  left out: {number:6} {reason}")
    app.say(f"Next: set `store` in the node's configuration, and start it. {source.label} is left as it is.")
    return 0
