"""`coterie metrics`: dashboards, alert rules and a scrape configuration, for Grafana and Prometheus."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from coterie.base.files import write_atomic
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import plain_table
from coterie.cli.tables import render_table
from coterie.dashboards import alerts, grafana, scraping
from coterie.dashboards.boards import BOARDS

HELP = """
Write what Grafana and Prometheus need to show and watch the nodes: each node serves its metrics on port 9091.

  dashboards [NAME...]   dashboards for Grafana 10 and newer; without a name and --to, list them
  rules                  alert rules for Prometheus, each with the command that shows more
  scrape-config          a configuration with which Prometheus scrapes the nodes

Examples:
  coterie metrics dashboards                         # which there are
  coterie metrics dashboards --to dashboards/        # one file each: import them, or let Grafana provision the folder
  coterie metrics dashboards jobs > jobs.json
  coterie metrics rules --to coterie-rules.yml
  coterie metrics scrape-config --target 10.0.0.5:9091 --token-file /etc/prometheus/coterie-token > prometheus.yml
"""
_ACTIONS = ("dashboards", "rules", "scrape-config")


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="dashboards|rules|scrape-config", help="what to write")
    parser.add_argument("names", nargs="*", metavar="NAME", help="dashboards to write (default: all)")
    parser.add_argument("--to", metavar="PATH", default="", help="write to this file, or folder of dashboards")
    parser.add_argument(
        "--target", action="append", metavar="ADDRESS:PORT", default=[], help="a node to scrape; may be repeated"
    )
    parser.add_argument("--token-file", metavar="FILE", default="", help="where Prometheus has the token of the nodes")
    parser.add_argument("--rules-file", metavar="FILE", default="", help="where Prometheus has the alert rules")


def run(args: argparse.Namespace, app: App) -> int:
    scraping_options = args.target or args.token_file or args.rules_file
    if args.action != "scrape-config" and scraping_options:
        raise UsageError("--target, --token-file and --rules-file belong to `coterie metrics scrape-config`")
    if args.action == "dashboards":
        return _dashboards(args, app)
    if args.names:
        raise UsageError(f"`coterie metrics {args.action}` takes no names; --to FILE writes to a file")
    if args.action == "rules":
        return _write(app, args.to, alerts.text())
    for target in args.target:
        host, _, port = target.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f'--target: "{target}" is no address with a port; take such as 10.0.0.5:9091')
    targets = args.target or ["127.0.0.1:9091"]
    return _write(app, args.to, scraping.text(targets, args.token_file, args.rules_file))


def _dashboards(args: argparse.Namespace, app: App) -> int:
    known = {board.name: board for board in BOARDS}
    if unknown := [name for name in args.names if name not in known]:
        raise UsageError(f'there is no dashboard "{unknown[0]}"; there are {", ".join(known)}')
    if not args.names and not args.to:
        rows = [(each.name, each.title, each.about) for each in BOARDS]
        app.write(render_table(plain_table(("NAME", "TITLE", "SHOWS"), rows), colour=app.colour))
        return 0
    chosen = [known[name] for name in args.names] or list(BOARDS)
    if not args.to:
        if len(chosen) > 1:
            raise UsageError("several dashboards go into a folder: add --to FOLDER")
        app.write(_json(chosen[0]))
        return 0
    folder = app.cwd / args.to
    for board in chosen:
        _save(folder / f"coterie-{board.name}.json", _json(board))
    app.say(f"{len(chosen)} dashboards are in {args.to}: import them in Grafana, or let it provision the folder")
    return 0


def _json(board: grafana.Board) -> str:
    return json.dumps(grafana.document(board), indent=2) + "\n"


def _write(app: App, path: str, text: str) -> int:
    if path:
        _save(app.cwd / path, text)
    else:
        app.write(text)
    return 0


def _save(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, mode=0o644, durable=False)
    except OSError as problem:
        raise CliError(f"Error: {path} cannot be written: {problem.strerror}") from problem
