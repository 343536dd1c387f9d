"""`coterie node reset`: remove everything that a node has on this machine."""

from __future__ import annotations

import argparse
import asyncio

from coterie.cli import arguments as options
from coterie.cli import terminal
from coterie.cli.app import App, CliError
from coterie.cli.commands.node_leave import deleted
from coterie.cli.nodes import local_node
from coterie.cli.nodes.local_node import LocalNode
from coterie.cli.output import as_text
from coterie.cli.progress import working

HELP = """
Remove the node from this machine: stop it and its pods at once, and remove its network devices, rules, mounts, control
groups and files, with images, logs and data below its directory. Nothing is left. Its Node is deleted if the control
plane can be reached; if not, the command says what to run there. Pods are not moved first: that is `coterie node
leave`.

Examples:
  coterie node reset                                    # asks before it removes anything
  coterie node reset --force                            # asks nothing
  coterie node leave --ignore-daemonsets && coterie node reset --force
"""
_DELETE_SECONDS = 10.0


def arguments(parser: options.Parser) -> None:
    parser.add_argument("--force", action="store_true", help="do not ask")
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=options.seconds,
        default=1.0,
        help="seconds between SIGTERM and SIGKILL for containers (default: 1)",
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", metavar="FORMAT", help="table, json"
    )
    options.root_option(parser)
    parser.add_argument(
        "--domain", metavar="ID", default=argparse.SUPPRESS, help="domain of the control plane, if there are several"
    )


def run(args: argparse.Namespace, app: App) -> int:
    node = local_node.find(args, app)
    if not args.force:
        _ask(node, app)
    name = node.name or node.settings.domain
    with working(app, f"node {name}", "stopping", done="removed", quiet=args.output != "table") as step:
        ran, pods = local_node.stop(node, args.grace)
        problem = asyncio.run(_deleted(node))
        step.update("removing files")
        try:
            local_node.remove_files(node)
        except OSError as error:
            raise CliError(
                f"Error: {error.filename or node.paths.home}: {error.strerror}; remove it and try again"
            ) from error
    if args.output != "table":
        document = {"node": name, "ran": ran, "stopped": pods, "nodeDeleted": not problem, "problem": problem}
        app.write(as_text(document, "json"))
        return 0
    stopped = f", {pods} pod{'s' if pods > 1 else ''} stopped" if pods else ""
    app.say(f"{name} {'stopped' if ran else 'was not running'}{stopped}, files removed: {node.paths.home}.")
    if problem:
        app.warn(
            f"Its Node is still there, because the control plane did not delete it ({problem}).\n"
            f"Run `coterie delete node {name}` where the control plane is."
        )
    else:
        app.say(f"The Node {name} is deleted.")
    return 0


def _ask(node: LocalNode, app: App) -> None:
    if not terminal.is_terminal(app.stdin):
        raise CliError(
            f"Error: this stops {node.name} with its pods and removes {node.paths.home}; if you mean it, add --force"
        )
    app.write(f"Stop {node.name} with its pods and remove {node.paths.home}? [y/N] ")
    if app.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("Nothing was changed.")


async def _deleted(node: LocalNode) -> str:
    """Why the Node was not deleted; the machine is cleaned all the same."""
    if node.bundle is None:
        return "the join file cannot be read"
    try:
        async with asyncio.timeout(_DELETE_SECONDS):
            return await deleted(node.bundle)
    except TimeoutError:
        return f"{node.bundle.server} did not answer"
