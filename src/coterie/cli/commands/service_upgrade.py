"""`coterie service upgrade`: another version of Coterie for a node, in place; the one before if it does not become ready."""

from __future__ import annotations

import argparse
from pathlib import Path

from coterie.cli import arguments as options
from coterie.cli import node_service
from coterie.cli.app import App, CliError
from coterie.cli.progress import working
from coterie.cli.service_manager import Systemd
from coterie.cli.service_unit import config_of, python_of, unit_text

HELP = """
Let the service of a node use another Python environment (default: that of this command) and restart it. Pods and the
gateway go on meanwhile. The new version must read the configuration before anything is changed; if the node is not
ready in time, the old unit is put back and started. Back up the objects first (`coterie store backup`): an older version
may not read what a newer one wrote.

Examples:
  /opt/coterie-2/bin/coterie service upgrade
  coterie service upgrade --domain alice --python /opt/coterie-2/bin/python
  coterie service upgrade --wait 5m
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("--python", metavar="FILE", default="", help="interpreter of the environment to use")
    node_service.domain_option(parser)
    node_service.wait_option(parser)
    node_service.service_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    systemd = Systemd(app, user=args.user)
    systemd.require()
    domain = node_service.installed(app, args, systemd)
    unit = f"coterie-{domain}.service"
    before = systemd.text_of(unit)
    if before is None:
        raise CliError(f"Error: there is no {systemd.unit_file(unit)}; `coterie service install -c FILE` makes one")
    file, root = config_of(before)
    if not file:
        raise CliError(
            f"Error: {systemd.unit_file(unit)} is not one of `coterie service install`; install the node anew"
        )
    python = str((app.cwd / Path(args.python).expanduser()).absolute()) if args.python else ""
    service, settings = node_service.service_of(app, file, root, user=args.user, python=python)
    version = node_service.check_version(app, service)
    old = systemd.state(unit)
    with working(app, unit, f"restarting with {version}", done="done") as step:
        systemd.write(unit, unit_text(service))
        systemd.restart(unit)
        why = systemd.wait(unit, args.wait, before=old.pid)
        if why:
            last = node_service.log_lines(settings)
            step.update("rolling back")
            failed = systemd.state(unit)
            systemd.write(unit, before)
            systemd.restart(unit)
            still = systemd.wait(unit, args.wait, before=failed.pid)
    if not why:
        app.say(f"{unit} runs Coterie {version} ({service.python}).")
        return 0
    node_service.show_lines(app, last)
    back = (
        f"the one before runs again ({python_of(before)})"
        if not still
        else f"and the one before does not come back: {still}"
    )
    raise CliError(f"Error: {unit} with {version}: {why}; {back}; see {service.log}")
