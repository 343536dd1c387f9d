"""`coterie service uninstall`: stops a node for good; its files stay unless they are to go."""

from __future__ import annotations

import argparse
import asyncio

from coterie.cli import arguments as options
from coterie.cli import node_service
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.node_stop import remove_files, stop_gateways, stop_pods
from coterie.cli.progress import working
from coterie.cli.service_manager import Systemd
from coterie.cli.service_unit import config_of

HELP = """
Stop the service of a node, its pods and its gateway, and remove the unit. The files of the domain (objects, keys, data,
logs) stay; --purge removes them.

Examples:
  coterie service uninstall
  coterie service uninstall --domain alice --keep-pods
  coterie service uninstall --domain alice --purge
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument(
        "--purge", action="store_true", help="remove all files of the domain: objects, keys, data, logs"
    )
    parser.add_argument("--keep-pods", action="store_true", help="leave the pods running")
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=options.seconds,
        default=5.0,
        help="seconds between SIGTERM and SIGKILL (default: 5)",
    )
    node_service.domain_option(parser)
    node_service.service_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    if args.purge and args.keep_pods:
        raise UsageError("--purge removes the files of pods, so they cannot be kept; leave out --keep-pods or --purge")
    systemd = Systemd(app, user=args.user)
    systemd.require()
    domain = node_service.installed(app, args, systemd)
    unit = f"coterie-{domain}.service"
    text = systemd.text_of(unit)
    if text is None:
        raise CliError(f"Error: there is no {systemd.unit_file(unit)}")
    file, root = config_of(text)
    if not file:
        raise CliError(f"Error: {systemd.unit_file(unit)} is not one of `coterie service install`; remove it by hand")
    _, settings = node_service.service_of(app, file, root, user=args.user)
    with working(app, unit, "stopping", done="stopped") as step:
        systemd.stop(unit)
        systemd.disable(unit)
        asyncio.run(stop_gateways([settings]))
        pods = 0
        if not args.keep_pods:
            step.update("stopping pods")
            pods = asyncio.run(stop_pods([settings], args.grace, forget=args.purge)).get(domain, 0)
        systemd.remove(unit)
        if args.purge:
            step.update("removing files")
            remove_files(settings)
    left = "its files were removed" if args.purge else f"its files are in {settings.paths.home}"
    app.say(f"{unit} was removed{f', {pods} pods were stopped' if pods else ''}; {left}.")
    return 0
