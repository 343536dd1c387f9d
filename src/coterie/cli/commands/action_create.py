"""`coterie action create`: create functions, or change them; actors get new code between two calls."""

from __future__ import annotations

import argparse
import base64
from pathlib import Path
from typing import Any

from coterie.base.archives import InvalidFiles
from coterie.cli import actions, manifests
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.error_messages import refusal
from coterie.cli.session import CliSession
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.functions import code, graph
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ACTIONS, TRIGGERS, ActionSpec

HELP = """
Create a function, or change one that exists: only what the options say is changed. New code is loaded between two
calls by the actors that run; calls in progress end with the old code. If it cannot be loaded, the old code stays and
`coterie action show` says why.

A script is one Python file with `def action(req): ...`. An archive (.tar.gz or .zip) holds several files; --handler
names module and function. Actions in --next must exist: create what is called before what calls it. A file (-f) may
hold several Actions, Triggers and ActionGrants, also Actions and Ingresses of Cubernetes; they are sent in the right
order.

All calls go to the new code. With --no-traffic none do: `coterie action traffic` then moves a share.

Examples:
  coterie action create hello --script hello.py
  coterie action create hello --script hello.py --http /hello:GET,POST
  coterie action create calc --script calc.py --next add,mul,bob/score
  coterie action create report --archive report.tar.gz --handler report.main.run --timeout 2m --memory 512Mi
  coterie action create lookup --script lookup.py --table customers             # serverless.tables.read_rows
  coterie action create resize --image resizer:1 --concurrency 8 --max 20      # another language
  coterie action create hello --script new.py --no-traffic                      # then: traffic hello VERSION=10,...
  coterie action create -f functions.yaml
"""
_KINDS: tuple[Kind[Any], ...] = (ACTIONS, TRIGGERS, ACTION_GRANTS)


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="name of the function")
    what = parser.add_argument_group("code")
    what.add_argument("-s", "--script", metavar="FILE", default="", help="a Python file")
    what.add_argument("--archive", metavar="FILE", default="", help="a .tar.gz or .zip with several files")
    what.add_argument(
        "--handler", metavar="MODULE.FUNCTION", default="", help="what is called (default: action.action)"
    )
    what.add_argument("--image", metavar="IMAGE", default="", help="image of the actors (default: coterie-actor)")
    what.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="environment variable; may be repeated"
    )
    calls = parser.add_argument_group("calls")
    calls.add_argument(
        "--next", metavar="NAMES", default=None, help="actions that it may call, e.g. add,mul,bob/score; '' for none"
    )
    calls.add_argument("--http", metavar="PATH[:METHODS]", default="", help="call it by this path of the gateway")
    calls.add_argument(
        "--timeout", metavar="TIME", type=options.seconds, default=None, help="of one call (default: 30s)"
    )
    calls.add_argument(
        "--concurrency", metavar="N", type=int, default=None, help="calls of one actor at a time (default: 1)"
    )
    calls.add_argument("--retries", metavar="N", type=int, default=None, help="after a crash or a timeout (default: 3)")
    scale = parser.add_argument_group("actors")
    scale.add_argument("--min", metavar="N", type=int, default=None, help="actors at least (default: 0)")
    scale.add_argument("--max", metavar="N", type=int, default=None, help="actors at most (default: 5)")
    scale.add_argument(
        "--idle",
        metavar="TIME",
        type=options.seconds,
        default=None,
        help="until the last actor is removed (default: 60s)",
    )
    scale.add_argument(
        "--policy", choices=("Load", "CallsPerMinute"), default="", help="how actors are counted (default: Load)"
    )
    scale.add_argument(
        "--table",
        metavar="TABLE",
        action="append",
        default=[],
        help="table of the domain that the code may read in calls of the domain itself; may be repeated",
    )
    scale.add_argument("--cpu", metavar="QUANTITY", default="", help="CPU of one actor, e.g. 500m")
    scale.add_argument("--memory", metavar="QUANTITY", default="", help="memory of one actor, e.g. 256Mi")
    parser.add_argument("--no-traffic", action="store_true", help="no calls go to the new code yet")
    options.file_options(parser, "Actions, Triggers and ActionGrants")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions", script="files", archive="files", next="actions,", table="tables")


def run(args: argparse.Namespace, app: App) -> int:
    spec = _spec(args, app)
    if args.filename:
        found = _from_files(args, app, spec)
        return actions.run(args, app, lambda session: _apply(session, args, found))
    if not args.name:
        raise UsageError("name the function: `coterie action create NAME --script FILE`, or use -f FILE")
    if fault := graph.action_name_fault(args.name):
        raise UsageError(fault)
    return actions.run(args, app, lambda session: _create(session, args, spec))


def _spec(args: argparse.Namespace, app: App) -> Object:
    """What the options say, and nothing else."""
    if args.script and args.archive:
        raise UsageError("use one of --script and --archive, not both")
    spec: Object = {}
    if args.script:
        spec["script"] = _text(args.script, app)
    if args.archive:
        spec["archive"] = base64.b64encode(_read(args.archive, app)).decode()
    if args.next is not None:
        spec["next"] = [each.strip() for each in args.next.split(",") if each.strip()]
        for target in spec["next"]:
            if fault := graph.target_fault(target):
                raise UsageError(f"--next: {fault}")
    if args.env:
        named = actions.pairs(args.env, "--env")
        spec["env"] = [{"name": name, "value": value} for name, value in named.items()]
    if args.table:
        spec["tables"] = sorted(set(args.table))
    spec |= _given(
        handler=args.handler or None,
        image=args.image or None,
        timeoutSeconds=max(1, round(args.timeout)) if args.timeout is not None else None,
        concurrency=args.concurrency,
        retries=_given(limit=args.retries),
        scaling=_given(
            policy=args.policy or None,
            minReplicas=args.min,
            maxReplicas=args.max,
            idleSeconds=max(1, round(args.idle)) if args.idle is not None else None,
        ),
        resources=_given(cpu=args.cpu or None, memory=args.memory or None),
    )
    return spec


def _given(**values: Any) -> Object:
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _read(name: str, app: App) -> bytes:
    try:
        return (app.cwd / Path(name).expanduser()).read_bytes()
    except OSError as error:
        raise CliError(f"Error: {name} cannot be read: {error.strerror}") from error


def _text(name: str, app: App) -> str:
    try:
        return app.stdin.read() if name == "-" else _read(name, app).decode()
    except UnicodeDecodeError as error:
        raise CliError(f"Error: {name} is not text in UTF-8; several files go into an --archive") from error


def _from_files(args: argparse.Namespace, app: App, spec: Object) -> list[Object]:
    """The objects in an order in which the server takes them: what is called before what calls it, Triggers and grants last."""
    found = [
        actions.of_the_seed(each.object)
        for each in manifests.read(args.filename, app, recursive=args.recursive, api_version="v1")
    ]
    by_kind: dict[str, list[Object]] = {kind.resource.kind: [] for kind in _KINDS}
    for obj in found:
        if obj["kind"] not in by_kind or obj["apiVersion"] != actions.API_VERSION:
            raise CliError(
                f"Error: {obj['kind']} of {obj['apiVersion']} is not for `coterie action create`; use `coterie apply -f FILE`"
            )
        if not obj["metadata"].get("name"):
            raise CliError(f"Error: {obj['kind']}: metadata.name is missing")
        by_kind[obj["kind"]].append(obj)
    functions = by_kind[ACTIONS.resource.kind]
    if spec or args.name or args.http:
        if len(functions) != 1 or args.name or args.http:
            raise UsageError("with -f, options are for a file with one Action, which says its own name")
        functions[0]["spec"] = {**functions[0]["spec"], **spec}
    named = {obj["metadata"]["name"]: obj for obj in functions}
    edges = {name: actions.typed_spec(obj, ActionSpec).targets for name, obj in named.items()}
    if cycle := graph.find_cycle(edges):
        raise CliError(f"Error: {graph.cycle_sentence(cycle)}; a cycle is not allowed")
    ordered = [named[name] for name in graph.callees_first(edges)]
    return [*ordered, *by_kind[TRIGGERS.resource.kind], *by_kind[ACTION_GRANTS.resource.kind]]


async def _apply(session: CliSession, args: argparse.Namespace, found: list[Object]) -> int:
    done, failed = [], 0
    for obj in found:
        kind = next(each for each in _KINDS if each.resource.kind == obj["kind"]).as_dynamic
        name = obj["metadata"]["name"]
        namespace = obj["metadata"].get("namespace") or session.namespace
        try:
            before = await session.client.get(kind, name, namespace)
        except NotFound:
            before = None
        try:
            after = await session.client.apply(kind, obj, namespace, force=True)
        except ApiError as error:
            session.app.warn(refusal(error))
            failed = 1
            continue
        done.append(after)
        changed = before is None or before.get("spec") != after.get("spec")
        outcome = "created" if before is None else "changed" if changed else "unchanged"
        _report(session, args, f"{obj['kind'].lower()}", name, outcome)
    if args.output in ("json", "yaml") and done:
        actions.print_objects(session, done, args.output, single=len(done) == 1)
    return failed


def _report(session: CliSession, args: argparse.Namespace, kind: str, name: str, outcome: str) -> None:
    if args.output == "table":
        session.app.say(f"{kind} {name} {outcome}")
    elif args.output == "name":
        session.app.say(f"{kind}.coterie.io/{name}")


async def _create(session: CliSession, args: argparse.Namespace, spec: Object) -> int:
    kind, name = ACTIONS.as_dynamic, args.name
    try:
        before: Object | None = await session.client.get(kind, name, session.namespace)
    except NotFound:
        before = None
    if before is None:
        if args.no_traffic:
            raise UsageError(f"--no-traffic: there is no Action {name} yet whose version could get the calls")
        if not spec.keys() & {"script", "archive", "image"}:
            raise UsageError(f"there is no Action {name} yet: give its code with --script, --archive or --image")
        head = {"apiVersion": actions.API_VERSION, "kind": ACTIONS.resource.kind}
        body = {**head, "metadata": {"name": name, "namespace": session.namespace}, "spec": spec}
        made, outcome = await session.client.create(kind, body), "created"
    else:
        made, outcome = await _change(session, args, before, spec), "changed"
        if made.get("spec") == before.get("spec"):
            outcome = "unchanged"
    _report(session, args, "action", name, outcome)
    if args.http:
        await _add_path(session, args)
    if args.output in ("json", "yaml"):
        actions.print_objects(session, [made], args.output, single=True)
    return 0


async def _change(session: CliSession, args: argparse.Namespace, before: Object, spec: Object) -> Object:
    """Only what was said. New code gets all calls, or with --no-traffic none."""
    patch: Object = dict(spec)
    if "script" in spec:
        patch["archive"] = None
    if "archive" in spec:
        patch["script"] = None
    whole = {key: value for key, value in {**before["spec"], **patch}.items() if value is not None}
    typed = actions.typed_spec({"kind": "Action", "metadata": before["metadata"], "spec": whole}, ActionSpec)
    if spec.keys() & {"script", "archive"}:
        _warn_of_code(session, typed)
        old_traffic = before["spec"].get("traffic")
        if args.no_traffic:
            serving = (before.get("status") or {}).get("version")
            if not old_traffic and not serving:
                raise CliError(f"Error: no version of {args.name} is known yet; try again in a moment")
            patch["traffic"] = old_traffic or [{"version": serving, "percent": 100}]
        elif old_traffic:
            patch["traffic"] = None
            session.app.warn("All calls go to the new version; the split between versions was removed")
    elif args.no_traffic:
        raise UsageError("--no-traffic is for new code: give --script or --archive")
    return await session.client.patch(ACTIONS.as_dynamic, args.name, session.namespace, {"spec": patch})


def _warn_of_code(session: CliSession, spec: ActionSpec) -> None:
    try:
        fault = code.code_fault(code.code_files(spec), spec)
    except InvalidFiles as error:
        raise CliError(f"Error: {error}") from error
    if fault:
        session.app.warn(f"Warning: {fault}; the actors go on with the code that they have")


async def _add_path(session: CliSession, args: argparse.Namespace) -> None:
    """The Trigger NAME-http."""
    name = f"{args.name}-http"
    spec = {"action": args.name, "http": actions.http_trigger(args.http)}
    body = {"apiVersion": actions.API_VERSION, "kind": TRIGGERS.resource.kind, "metadata": {"name": name}, "spec": spec}
    await session.client.apply(TRIGGERS.as_dynamic, body, session.namespace, force=True)
    _report(session, args, "trigger", name, f"calls {args.name} at {spec['http']['path']}")
