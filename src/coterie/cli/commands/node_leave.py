"""`coterie node leave`: take this machine out of its control plane, its pods first."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable

from coterie.cli import arguments as options
from coterie.cli.app import App, CliError
from coterie.cli.commands.node_drain import drain_options, options_of
from coterie.cli.error_messages import cli_errors
from coterie.cli.nodes import local_node
from coterie.cli.nodes.drain import DrainOptions, drain, pods_on
from coterie.cli.nodes.local_node import LocalNode
from coterie.cli.output import as_text
from coterie.cli.progress import working
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.transport import NotSent, TransportError
from coterie.node.join_bundle import Bundle

HELP = """
Take this machine out of its control plane: drain the node as `coterie node drain` does, stop it and what is left of its
pods, and delete its Node, so that its range of pod addresses is free. Files stay: `coterie node join` with the same
file brings it back. If the control plane cannot be reached, nothing is changed; `coterie node reset` works without it.

Examples:
  coterie node leave --ignore-daemonsets
  coterie node leave --ignore-daemonsets --force --timeout 2m
  coterie node leave && coterie node reset --force      # leave nothing behind
"""
_STOP_GRACE = 5.0


def arguments(parser: options.Parser) -> None:
    drain_options(parser)
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", metavar="FORMAT", help="table, json"
    )
    options.root_option(parser)
    parser.add_argument(
        "--domain", metavar="ID", default=argparse.SUPPRESS, help="domain of the control plane, if there are several"
    )


def run(args: argparse.Namespace, app: App) -> int:
    node = local_node.find(args, app)
    bundle = node.bundle
    if bundle is None:
        raise CliError(
            f"Error: {node.settings.join} cannot be read, so the control plane cannot be asked; "
            "remove this node with `coterie node reset`, and its Node with `coterie delete node NAME` there"
        )
    quiet = args.output != "table"
    wanted = options_of(args)
    grace = float(_STOP_GRACE if wanted.grace_period is None else wanted.grace_period)
    with working(app, f"node {node.name}", "evicting pods", done="stopped", quiet=quiet) as step:
        with cli_errors(bundle.server):
            evicted = asyncio.run(_drained(node, bundle, wanted, step.print_line))
        step.update("stopping")
        _, pods = local_node.stop(node, grace)
        problem = asyncio.run(deleted(bundle))
    if quiet:
        document = {"node": node.name, "evicted": evicted, "stopped": pods, "deleted": not problem, "problem": problem}
        app.write(as_text(document, "json"))
        return 1 if problem else 0
    stopped = f", {pods} pod{'s' if pods > 1 else ''} stopped" if pods else ""
    if problem:
        raise CliError(
            f"Error: {node.name} is stopped{stopped}, but its Node was not deleted: {problem}\n"
            f"Run `coterie delete node {node.name}` where the control plane is"
        )
    app.say(f"{node.name} left: {evicted} pod{'' if evicted == 1 else 's'} evicted{stopped}, the Node is deleted.")
    app.say("Its files are kept; remove them with `coterie node reset`.")
    return 0


async def _drained(node: LocalNode, bundle: Bundle, wanted: DrainOptions, say: Callable[[str], None]) -> int:
    async with local_node.client_of(bundle) as client:
        try:
            await client.get(NODES, node.name)
        except NotFound:
            return 0  # deleted already
        except NotSent as problem:
            raise CliError(
                f"Error: the control plane at {bundle.server} cannot be reached ({problem}), so the pods cannot be moved; "
                "try again later, or remove this node with `coterie node reset`"
            ) from problem
        return await drain(client, node.name, wanted, say, bundle.namespace)


async def deleted(bundle: Bundle) -> str:
    """Delete the Node, and its pods, which have ended, with the node's own credentials; answers why that was not possible."""
    try:
        async with local_node.client_of(bundle) as client:
            for pod in await pods_on(client, bundle.node, bundle.namespace):
                meta = pod["metadata"]
                with contextlib.suppress(NotFound):
                    await client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace=0)
            await client.delete(NODES, bundle.node)
    except NotFound:
        return ""
    except ApiError as problem:
        return problem.message
    except TransportError as problem:
        return str(problem)
    return ""
