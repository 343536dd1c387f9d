"""`coterie diagnose bundle`: a file for somebody who helps, without secrets."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import network
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.diagnosis.bundle import SupportBundle, bundle_name
from coterie.cli.diagnosis.domain_choice import chosen_home
from coterie.cli.progress import working
from coterie.node import config
from coterie.node.config import NodeSettings
from coterie.node.config.document import read

HELP = """
Collect what helps to support the node of a domain on this machine: configuration, versions, facts of the machine, health,
metrics, Envoy's configuration, the last lines of its logs, the clock. Secrets are left out: key files are not read into it,
known secrets and what looks like one are cut out of every text. Look through it before you hand it on.

Examples:
  coterie diagnose bundle
  coterie diagnose bundle --domain alice --file alice.tar.gz
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument(
        "-o", "--file", metavar="FILE", default="", help="where to write it (default: a name with the date)"
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE", default="", help="configuration, if it is not in <domain>/etc"
    )
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    root = sessions.root_of(args, app)
    home = chosen_home(root, args.domain)
    path = app.cwd / args.config if args.config else home.etc / "coterie.yaml"
    document, settings, nodes = _configuration(root, home.home.name, path)
    now = SYSTEM_CLOCK.now()
    bundle = SupportBundle(home, document, settings, nodes, SYSTEM_CLOCK)
    with working(app, home.home.name, "collecting configuration, objects and logs", done="collected"):
        asyncio.run(bundle.collect())
    target = app.cwd / (args.file or bundle_name(home.home.name, now))
    try:
        bundle.write(target)
    except OSError as problem:
        raise CliError(f"Error: {target} cannot be written: {problem.strerror}") from problem
    app.say(f"{target} written: {len(bundle.parts)} files, {target.stat().st_size / 1024:.0f} KiB")
    for name, why in sorted(bundle.missing.items()):
        app.say(f"  without {name}: {why}")
    app.say("Secrets were left out; look through it before you hand it on.")
    return 0


def _configuration(root: Path, domain: str, path: Path) -> tuple[Any, NodeSettings | None, tuple[NodeSettings, ...]]:
    """As it is written, as it is read, and that of the other nodes here; a faulty one is no reason to have no bundle."""
    try:
        document = read(path)
    except config.ConfigError:
        return None, None, ()
    try:
        settings = config.load(path, root=root)
        nodes = tuple(network.members(root))
    except (config.ConfigError, CliError):
        return document, None, ()
    return document, settings, nodes if any(each.domain == domain for each in nodes) else (*nodes, settings)
