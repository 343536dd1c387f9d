"""`coterie audit witness`: which partners cosigned our log, and what theirs showed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_text, plain_table
from coterie.cli.tables import render_table
from coterie.kuscia.evidence.witnesses import WITNESS_PATH, WitnessCall

HELP = """
Partners' control planes cosign each other's logs when a task begins and ends and once an hour, so that none can change
its log afterwards. Show how far each partner cosigned ours, how far we cosigned theirs, and logs that contradict
themselves: with both signed heads (-o json). The exit status is 1 if there is such a log. The node must run.

  --now      exchange heads now, with one partner or with all, and compare what other partners were shown
  --accept   go on with this partner though its log contradicted itself; what was found stays recorded

Examples:
  coterie audit witness
  coterie audit witness --now
  coterie audit witness bob -o json
  coterie audit witness bob --accept
"""
COLUMNS = ("PARTNER", "POLICY", "OURS COSIGNED", "AT", "THEIRS", "PROBLEM")


def arguments(parser: options.Parser) -> None:
    parser.add_argument("partner", metavar="PARTNER", nargs="?", default="", help="domain of a partner's control plane")
    parser.add_argument("--now", action="store_true", help="exchange heads now")
    parser.add_argument("--accept", action="store_true", help="go on with a partner whose log contradicted itself")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(partner="domains")


def run(args: argparse.Namespace, app: App) -> int:
    if args.accept and not args.partner:
        raise UsageError("--accept needs the name of a partner")
    asked = WitnessCall(partner=args.partner, now=args.now, accept=args.accept)
    with audit_log.failures():
        states = audit_log.run_node_call(audit_log.find_log(args, app), WITNESS_PATH, asked)
    if args.partner and not states:
        raise CliError(f"{args.partner} is no partner with a route", "`coterie route ls` shows them")
    if args.output != "table":
        app.write(as_text(states, args.output))
    elif not states:
        app.say("There are no partners with a route.")
    else:
        app.write(render_table(plain_table(COLUMNS, [_row(each) for each in states]), colour=app.colour))
        for sentence in open_findings(states):
            app.warn(sentence)
    return 1 if list(open_findings(states)) else 0


def _row(state: Mapping[str, Any]) -> tuple[str, ...]:
    ours, theirs = state["ours"] or {}, state["theirs"] or {}
    when = datetime.fromtimestamp(ours["cosigned"], UTC).strftime("%Y-%m-%d %H:%M:%S") if ours.get("cosigned") else ""
    return (
        state["partner"],
        state["policy"],
        f"{ours['size']} events" if ours.get("size") else "never",
        when,
        f"{theirs['size']} events" if theirs else "never",
        ours.get("problem", ""),
    )


def open_findings(states: list[Mapping[str, Any]]) -> Iterator[str]:
    for each in states:
        for finding in each["findings"]:
            if not finding["accepted"]:
                yield f"{finding['reason']}: {finding['message']}"
