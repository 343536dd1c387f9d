"""`coterie action trigger`: what calls functions."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.commands.action_show import trigger_text
from coterie.cli.session import CliSession
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kuscia.api.functions.types import TRIGGERS

HELP = """
A Trigger calls a function: at a path of the gateway (Service serverless-gateway, port 6810), by a schedule (cron,
UTC), for each record of a topic of the bus, or when a table (DomainData) is created or changed.

  add ACTION --http|--schedule|--topic|--table ...   make a trigger
  ls [ACTION]                                         list triggers
  rm NAME...                                          delete triggers

Examples:
  coterie action trigger add calc --http /calc
  coterie action trigger add calc --http /calc:GET --key user      # calls with the same ?user= run one after the other
  coterie action trigger add report --schedule "0 6 * * *" --param kind=daily
  coterie action trigger add index --table visitors                # any table: --table '*'
  coterie action trigger add order --topic orders
  coterie action trigger ls
  coterie action trigger rm calc-http
"""
_VERBS = ("add", "ls", "list", "rm")


def arguments(parser: options.Parser) -> None:
    parser.add_argument("verb", choices=_VERBS, metavar="add|ls|rm", help="what to do")
    options.words_argument(parser)
    what = parser.add_argument_group("for add, one of")
    what.add_argument("--http", metavar="PATH[:METHODS]", default="", help="path of the gateway, e.g. /calc:GET,POST")
    what.add_argument("--schedule", metavar="CRON", default="", help="five fields, UTC")
    what.add_argument("--topic", metavar="NAME", default="", help="topic of the bus")
    what.add_argument("--table", metavar="NAME", default="", help="a DomainData; '*' for any")
    more = parser.add_argument_group("for add")
    more.add_argument(
        "--name", metavar="NAME", default="", help="of the trigger (default: ACTION-http, ACTION-schedule, ...)"
    )
    more.add_argument("--key", metavar="PARAM", default="", help="query parameter that orders calls (--http)")
    more.add_argument("--param", metavar="K=V", action="append", default=[], help="parameter of each call (not --http)")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(words={"add": ("actions",), "ls": ("actions",), "rm": ("triggers", "*")}, table="tables")


def run(args: argparse.Namespace, app: App) -> int:
    if args.verb == "add":
        if len(args.words) != 1:
            raise UsageError("name one function: `coterie action trigger add ACTION --http PATH`")
        kind, spec = trigger_spec(args)
        return actions.run(args, app, lambda session: _add(session, args, kind, spec))
    if args.verb == "rm":
        if not args.words:
            raise UsageError("name the triggers to delete; `coterie action trigger ls` lists them")
        return actions.run(args, app, lambda session: _remove(session, args.words))
    if len(args.words) > 1:
        raise UsageError("name one function, or none")
    return actions.run(args, app, lambda session: _list(session, args))


def trigger_spec(args: argparse.Namespace) -> tuple[str, Object]:
    """(http, schedule, topic or table; spec)."""
    given = [kind for kind in ("http", "schedule", "topic", "table") if getattr(args, kind)]
    if len(given) != 1:
        raise UsageError("give exactly one of --http, --schedule, --topic and --table")
    if args.key and not args.http:
        raise UsageError("--key is for --http")
    if args.param and args.http:
        raise UsageError("--param is not for --http: a call by HTTP has the parameters of its query")
    spec: Object = {"action": args.words[0]}
    if args.http:
        spec["http"] = actions.http_trigger(args.http, args.key)
    elif args.table:
        spec["domainData"] = {} if args.table == "*" else {"name": args.table}
    else:
        spec[given[0]] = args.schedule or args.topic
    if args.param:
        spec["params"] = actions.pairs(args.param, "--param")
    return given[0], spec


async def _add(session: CliSession, args: argparse.Namespace, kind: str, spec: Object) -> int:
    action = args.words[0]
    await actions.find(session, action)
    name = args.name
    if not name:
        taken = {trigger.metadata.name for _, trigger in await actions.listed(session, TRIGGERS)}
        name = next(
            each for n in range(1, 1000) if (each := f"{action}-{kind}" + (f"-{n}" if n > 1 else "")) not in taken
        )
    head = {"apiVersion": actions.API_VERSION, "kind": TRIGGERS.resource.kind}
    body = {**head, "metadata": {"name": name, "namespace": session.namespace}, "spec": spec}
    made = await session.client.create(TRIGGERS.as_dynamic, body)
    if args.output in ("json", "yaml"):
        actions.print_objects(session, [made], args.output, single=True)
    elif args.output == "name":
        session.app.say(f"trigger.coterie.io/{name}")
    else:
        typed = TRIGGERS.decode(TRIGGERS.as_dynamic.encode(made))
        session.app.say(f"trigger {name} calls {action}: {trigger_text(typed)}")
    return 0


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    wanted = args.words[0] if args.words else ""
    found = [pair for pair in await actions.listed(session, TRIGGERS) if wanted in ("", pair[1].spec.action)]
    none = "There are no triggers; `coterie action trigger add ACTION --http /path` makes one"
    if not actions.print_listing(session, args.output, TRIGGERS, found, none):
        rows = [
            (each.metadata.name, each.spec.action, trigger_text(each), actions.age(each.status.last_call_time))
            for _, each in found
        ]
        actions.print_table(session, ("NAME", "ACTION", "CALLED BY", "LAST CALL"), rows)
    return 0


async def _remove(session: CliSession, names: list[str]) -> int:
    failed = 0
    for name in dict.fromkeys(names):
        try:
            await session.client.delete(TRIGGERS, name, session.namespace)
            session.app.say(f"trigger {name} removed")
        except NotFound:
            session.app.warn(
                str(CliError(f"Error: there is no trigger {name}; `coterie action trigger ls` lists them"))
            )
            failed = 1
    return failed
