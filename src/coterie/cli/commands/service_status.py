"""`coterie service status`: the services of nodes on this machine."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import node_service
from coterie.cli.app import App
from coterie.cli.output import as_text, plain_table
from coterie.cli.service_manager import Systemd
from coterie.cli.service_unit import PREFIX, config_of, python_of
from coterie.cli.tables import render_table

HELP = """
List the services of nodes: whether each runs, since when, and with which Python environment and configuration. Exit
status 1: one of them does not run. `coterie status` tells how the nodes themselves are.

Examples:
  coterie service status
  coterie service status --user -o json
"""
_COLUMNS = ("DOMAIN", "STATE", "ENABLED", "PID", "RESTARTS", "SINCE", "PYTHON", "CONFIG")


def arguments(parser: options.Parser) -> None:
    options.output_option(parser, ("table", "json", "yaml"))
    node_service.service_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    systemd = Systemd(app, user=args.user)
    systemd.require()
    found = []
    for path in sorted(systemd.directory.glob(f"{PREFIX}*.service")):
        text = systemd.text_of(path.name) or ""
        file, _ = config_of(text)
        if not file:
            continue  # somebody else's
        state = systemd.state(path.name)
        found.append(
            {
                "domain": path.name.removeprefix(PREFIX).removesuffix(".service"),
                "state": state.active,
                "enabled": state.enabled,
                "pid": state.pid,
                "restarts": state.restarts,
                "since": state.since,
                "python": python_of(text),
                "config": file,
            }
        )
    bad = any(each["state"] != "active" for each in found)
    if args.output != "table":
        app.write(as_text({"services": found}, args.output))
    elif not found:
        app.say(f"There is no service of a node in {systemd.directory}.")
    else:
        rows = [
            [str(value).lower() if isinstance(value, bool) else str(value) for value in each.values()] for each in found
        ]
        app.write(render_table(plain_table(_COLUMNS, rows), colour=app.colour))
    return 1 if bad else 0
