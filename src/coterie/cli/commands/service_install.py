"""`coterie service install`: writes the unit of a node, starts it and waits until it is ready."""

from __future__ import annotations

import argparse

from coterie.base.files import is_private
from coterie.cli import arguments as options
from coterie.cli import background, node_service
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.progress import working
from coterie.cli.service_manager import Systemd
from coterie.cli.service_unit import unit_text

HELP = """
Write a unit for the node of a configuration file, enable it, start it and wait until it is ready. The service uses the
Python environment of this command. If the node fails to start, the service is removed again; its files stay.

Examples:
  coterie service install -c alice.yaml
  coterie service install -c alice.yaml --root /srv/coterie --wait 5m
  coterie service install -c alice.yaml --user
  coterie service install -c alice.yaml --print             # for another machine
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", default="", help="configuration file of the node")
    parser.add_argument("--print", action="store_true", help="print the unit and change nothing")
    node_service.wait_option(parser)
    node_service.service_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    if not args.config:
        raise UsageError("say which node with -c FILE; `coterie init` writes a configuration")
    service, settings = node_service.service_of(app, args.config, node_service.root_text(args, app), user=args.user)
    if args.print:
        app.write(unit_text(service))
        return 0
    systemd = Systemd(app, user=args.user)
    systemd.require()
    if systemd.text_of(service.unit) is not None:
        raise CliError(
            f"Error: {systemd.unit_file(service.unit)} exists; `coterie service upgrade` changes it, "
            "`coterie service uninstall` removes it"
        )
    if background.running(settings.paths):
        raise CliError(f"Error: the node of {service.domain} runs already; stop it first (`coterie down --keep-pods`)")
    if not is_private(service.config):
        app.warn(f"Warning: others can read {service.config}, which may hold the domain's key; run chmod 600 on it")
    settings.paths.prepare()
    systemd.write(service.unit, unit_text(service))
    with working(app, service.unit, "starting", done="done") as step:
        systemd.enable(service.unit)
        systemd.restart(service.unit)
        step.update("waiting until it is ready")
        why = systemd.wait(service.unit, args.wait)
    if not why:
        app.say(f"{service.unit} runs and starts with {'your session' if args.user else 'the machine'}.")
        if args.user:
            app.say("It ends with your last session, unless an administrator runs: loginctl enable-linger USER")
        return 0
    node_service.show_lines(app, node_service.log_lines(settings))
    if systemd.state(service.unit).active == "activating" and "not ready within" in why:
        raise CliError(f"Error: {service.unit}: {why}; it goes on starting, see {service.log}")
    systemd.disable(service.unit)
    systemd.stop(service.unit)
    systemd.remove(service.unit)
    raise CliError(f"Error: {service.unit}: {why}; the service was removed again, see {service.log}")
