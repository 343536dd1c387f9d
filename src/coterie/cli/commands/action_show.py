"""`coterie action show`: one function, with its versions and what calls it."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App
from coterie.cli.describe_sheet import NONE, Sheet
from coterie.cli.session import CliSession
from coterie.kuscia.api.functions import graph
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ACTIONS, DEAD_LETTERS, Action, HttpTrigger, Trigger

HELP = """
Show a function: code, limits, actors, versions, triggers, who calls it, which partners may, and what is wrong.

Examples:
  coterie action show calc
  coterie action show calc -o yaml         # the Action itself, with its code
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the function")
    options.output_option(parser, ("table", "json", "yaml"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions")


def run(args: argparse.Namespace, app: App) -> int:
    return actions.run(args, app, lambda session: _show(session, args))


async def _show(session: CliSession, args: argparse.Namespace) -> int:
    action = await actions.find(session, args.name)
    if args.output != "table":
        found = await session.client.get(ACTIONS.as_dynamic, args.name, session.namespace)
        actions.print_objects(session, [found], args.output, single=True)
        return 0
    others = (await session.client.list(ACTIONS, session.namespace)).items
    callers = graph.callers({each.metadata.name: each.spec.targets for each in others}, args.name)
    triggers = await actions.triggers_of(session, args.name)
    grants = [each for _, each in await actions.listed(session, ACTION_GRANTS) if each.spec.action == args.name]
    dead = [each for _, each in await actions.listed(session, DEAD_LETTERS) if each.spec.action == args.name]
    sheet = Sheet()
    _write_action(sheet, action)
    sheet.fields("Called by", [*callers, *(f"{each.metadata.name} ({trigger_text(each)})" for each in triggers)])
    sheet.fields("Partners", [f"{each.spec.grant_domain} ({each.status.uses} calls)" for each in grants])
    sheet.fields("Dead letters", [f"{each.metadata.name}: {each.spec.reason}" for each in dead[:5]])
    if len(dead) > 5:
        sheet.line("", f"and {len(dead) - 5} more: coterie action dlq ls {args.name}")
    with sheet.section("Versions"):
        for version in action.status.versions or ():
            newest = " (newest)" if version.name == action.status.version else ""
            sheet.line(
                version.name,
                f"{version.percent} % of calls",
                f"{version.replicas} actors",
                f"{version.created}{newest}",
            )
    with sheet.section("Conditions"):
        for condition in action.status.conditions or ():
            sheet.line(condition.type, condition.status, condition.reason, condition.message)
    session.app.write(sheet.text())
    return 0


def _write_action(sheet: Sheet, action: Action) -> None:
    spec, status, scaling = action.spec, action.status, action.spec.scaling
    size = f"script, {len(spec.script)} characters" if spec.script else f"archive, {len(spec.archive) * 3 // 4} bytes"
    sheet.field("Name", action.metadata.name)
    sheet.field("Namespace", action.metadata.namespace)
    sheet.field("Age", actions.age(action.metadata.creation_timestamp))
    sheet.field("Code", size if spec.script or spec.archive else "in the image")
    sheet.field("Handler", spec.handler)
    sheet.field("Image", spec.image)
    sheet.field("Version", status.version or NONE)
    sheet.field("Next", ", ".join(spec.targets) or NONE)
    sheet.field("Timeout", f"{spec.timeout_seconds} s, {spec.retries.limit} retries")
    sheet.field(
        "Scaling",
        f"{scaling.policy}, {scaling.min_replicas} to {scaling.max_replicas} actors, idle {scaling.idle_seconds} s",
    )
    sheet.field("Concurrency", spec.concurrency)
    sheet.field(
        "Actors", f"{status.ready_replicas} ready, {status.desired_replicas} desired, {status.cold_starts} cold starts"
    )
    sheet.field("Last minute", f"{status.calls_per_minute} calls, {status.errors_per_minute} errors")


def trigger_text(trigger: Trigger) -> str:
    """`GET,POST /calc`, `*/5 * * * *`, `topic orders`, `table visitors`."""
    spec = trigger.spec
    paused = " [suspended]" if spec.suspend else ""
    if spec.http is not None:
        return http_text(spec.http) + paused
    if spec.domain_data is not None:
        return f"table {spec.domain_data.name or '*'}{paused}"
    return f"topic {spec.topic}{paused}" if spec.topic else f"{spec.schedule}{paused}"


def http_text(http: HttpTrigger) -> str:
    return f"{','.join(http.methods or ()) or 'ANY'} {http.path}"
