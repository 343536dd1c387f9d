"""`coterie node delete`: give up a machine that will not come back."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli.app import App, CliError
from coterie.cli.nodes import lite_domain
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client.client import Client

HELP = """
Delete the Node of a machine that will not come back. Its pods are removed and its range of pod addresses is free. Run
this at the control plane or, for a machine of a lite's domain, on the machine of the lite. A machine that works leaves
with `coterie node leave` on that machine; a Node that is Ready is only deleted with --force.

Examples:
  coterie node delete node-2
  coterie node delete node-2 --force                    # although it is Ready; its agent registers it again
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NODE", help="name of the node")
    parser.add_argument("--force", action="store_true", help="also a node that is Ready")
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    async def do(client: Client, namespace: str) -> int:
        node: Object = await client.get(NODES.as_dynamic, args.name)
        if is_ready(node) and not args.force:
            raise CliError(
                f"Error: {args.name} is Ready; run `coterie node leave` on that machine, or delete it here with --force"
            )
        await client.delete(NODES.as_dynamic, args.name, uid=node["metadata"]["uid"])
        app.say(f"node/{args.name} deleted")
        return 0

    return lite_domain.run(args, app, do)


def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
