"""`coterie top`: what nodes and pods use now."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, UsageError
from coterie.cli.output import as_list, as_text, plain_table
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.api.meta import Object
from coterie.kube.api.quantity import QuantityError, parse
from coterie.kube.api.resources import USAGE
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.requests import path, query

HELP = """
Show the current CPU and memory usage of nodes or pods, as measured by their agents. CPU is in millicores.

Examples:
  coterie top node
  coterie top pod -A --sort-by memory
  coterie top pod web-0 --containers
  coterie top pods -l app=web -o json
"""
_NODES = builtin("nodes")
_USAGE = {resource.plural: resource for resource in USAGE}
_PLURALS = {"node": "nodes", "nodes": "nodes", "no": "nodes", "pod": "pods", "pods": "pods", "po": "pods"}
_MEBI = 1 << 20


def arguments(parser: options.Parser) -> None:
    options.words_argument(parser)
    options.namespace_option(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="pods of all namespaces")
    parser.add_argument("-l", "--selector", metavar="SELECTOR", default="", help="only objects with these labels")
    parser.add_argument("--containers", action="store_true", help="show each container separately")
    parser.add_argument("--sort-by", choices=("cpu", "memory"), default="", help="sort by cpu or memory, largest first")
    parser.add_argument("--no-headers", action="store_true", help="omit the header line")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(words={"node": ("nodes",), "pod": ("pods",)})


def run(args: argparse.Namespace, app: App) -> int:
    if not 1 <= len(args.words) <= 2 or args.words[0] not in _PLURALS:
        raise UsageError("say whether nodes or pods are meant: `coterie top node` or `coterie top pod`")
    if len(args.words) == 2 and (args.selector or args.all_namespaces):
        raise UsageError("one name needs neither a selector nor -A; leave one of them out")
    return sessions.run(args, app, lambda session: _top(session, args))


async def _top(session: CliSession, args: argparse.Namespace) -> int:
    plural = _PLURALS[args.words[0]]
    name = args.words[1] if len(args.words) == 2 else ""
    usage = await _ask(session, plural, name, args)
    if args.output != "table":
        session.app.write(as_text(usage[0] if name else as_list(usage), args.output))
        return 0
    if not usage:
        session.app.warn(f"There are no figures for any {plural[:-1]}; agents report them once they run.")
        return 0
    if plural == "nodes":
        columns: Sequence[str] = ("NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)")
        rows = _node_rows(usage, await _allocatable(session), args.sort_by)
    else:
        columns, rows = _pod_rows(usage, args)
    session.app.write(render_table(plain_table(columns, rows), no_headers=args.no_headers, colour=session.app.colour))
    return 0


async def _ask(session: CliSession, plural: str, name: str, args: argparse.Namespace) -> list[Object]:
    resource = _USAGE[plural]
    where = path(resource, session.place(resource, args.all_namespaces), name)
    answer = orjson.loads((await session.client.raw("GET", where, query(labelSelector=args.selector))).body)
    return [answer] if name else list(answer.get("items") or ())


async def _allocatable(session: CliSession) -> dict[str, dict[str, str]]:
    nodes = (await session.client.list(Kind.dynamic(_NODES))).items
    return {node["metadata"]["name"]: (node.get("status") or {}).get("allocatable") or {} for node in nodes}


def _node_rows(usage: Iterable[Object], allocatable: dict[str, dict[str, str]], sort_by: str) -> list[tuple[str, ...]]:
    found = []
    for each in usage:
        name = each["metadata"]["name"]
        cpu, memory = _amounts([each["usage"]])
        whole_cpu, whole_memory = _amounts([allocatable.get(name, {})])
        row = (name, f"{cpu}m", _share(cpu, whole_cpu), f"{memory // _MEBI}Mi", _share(memory, whole_memory))
        found.append((cpu, memory, row))
    return _sorted(found, sort_by)


def _pod_rows(usage: Iterable[Object], args: argparse.Namespace) -> tuple[list[str], list[tuple[str, ...]]]:
    found = []
    for each in usage:
        meta = each["metadata"]
        before = (meta.get("namespace", ""), meta["name"]) if args.all_namespaces else (meta["name"],)
        containers = sorted(each.get("containers") or (), key=lambda container: str(container["name"]))
        groups: list[tuple[list[str], list[dict[str, str]]]] = [([], [c["usage"] for c in containers])]
        if args.containers:
            groups = [([c["name"]], [c["usage"]]) for c in containers]
        for more, used in groups:
            cpu, memory = _amounts(used)
            found.append((cpu, memory, (*before, *more, f"{cpu}m", f"{memory // _MEBI}Mi")))
    columns = ["NAMESPACE"] if args.all_namespaces else []
    columns += ["POD", "NAME"] if args.containers else ["NAME"]
    return [*columns, "CPU(cores)", "MEMORY(bytes)"], _sorted(found, args.sort_by)


def _sorted(found: list[tuple[int, int, Any]], sort_by: str) -> list[Any]:
    """By name, or the greatest first."""
    by_name = sorted(found, key=lambda each: tuple(map(str, each[2])))
    if sort_by:
        by_name.sort(key=lambda each: -each[0 if sort_by == "cpu" else 1])
    return [row for _, _, row in by_name]


def _amounts(used: Iterable[dict[str, str]]) -> tuple[int, int]:
    """Thousandths of a core, and bytes, in all."""
    cpu = memory = 0
    for each in used:
        try:
            cpu += parse(each.get("cpu", "0")).milli_value()
            memory += parse(each.get("memory", "0")).value()
        except QuantityError:
            continue
    return cpu, memory


def _share(part: int, whole: int) -> str:
    return f"{part * 100 // whole}%" if whole else "<unknown>"
