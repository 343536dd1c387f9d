"""`coterie node describe`: what runs the containers of a node, what that costs, and which walls its machine lacks."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from coterie.cli import arguments as options
from coterie.cli.app import App, CliError
from coterie.cli.describe_sheet import Sheet
from coterie.cli.nodes import lite_domain
from coterie.cli.output import as_text
from coterie.kube.api.errors import NotFound
from coterie.kube.api.labels import COTERIE_RUNTIME
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client.client import Client

HELP = """
Show what can run the containers of a node: its runtime handlers with versions and costs, those that it lacks with the
reason and what to do, its GPUs, and what the machine cannot isolate or limit. A pod chooses a handler by its runtimeClassName; the
classes have the names of the handlers. Conditions, addresses and capacity: `coterie describe node NODE`.

Examples:
  coterie node describe node-2
  coterie node describe node-2 -o json
  coterie policy set bob --runtime-class bubblewrap     # what bob begins runs behind that wall
"""
_NODES = NODES.as_dynamic
_UNKNOWN = "-"
_DEVICE_DOMAINS = ("nvidia.com/", "amd.com/")
_FIXED_RUNC = "1.1.12"
"""The first one in which a working directory cannot lead out of the container (CVE-2024-21626)."""


@dataclass(frozen=True, slots=True)
class HandlerCost:
    """As in docs/guide/sandboxes.md, which says how it was measured."""

    start: str
    memory: str
    wall: str


COSTS = {
    "runp": HandlerCost("3 ms", "0", "namespaces, own users, seccomp, Landlock"),
    "bubblewrap": HandlerCost("7 ms", "0.6 MB", "runp's, and a second user namespace without capabilities"),
    "runc": HandlerCost("28 ms", "0", "namespaces, seccomp; as other container platforms"),
    "crun": HandlerCost("9 ms", "0", "as runc"),
    "gvisor": HandlerCost("135 ms", "40 MB", "a kernel of its own in user space"),
    "kata": HandlerCost("not measured", "not measured", "a virtual machine"),
}


class _Handler(msgspec.Struct, frozen=True):
    name: str
    available: bool
    why: str = ""
    version: str = ""


class _Devices(msgspec.Struct, frozen=True):
    resource: str
    capacity: str
    usable: str
    product: str = ""


class _RuntimeFacts(msgspec.Struct, frozen=True):
    """What the agent wrote on its Node."""

    handlers: list[_Handler] = []
    limitations: list[str] = []


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NODE", help="name of the node")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    async def do(client: Client, _: str) -> int:
        try:
            node = await client.get(_NODES, args.name)
        except NotFound as problem:
            raise CliError(f"Error: there is no node {args.name}; `coterie get nodes` lists them") from problem
        facts = _facts(node)
        if args.output == "table":
            app.write(_sheet(node, facts))
        else:
            app.write(as_text(_document(node, facts), args.output))
        return 0

    return lite_domain.run(args, app, do)


def _facts(node: Object) -> _RuntimeFacts:
    text = (node["metadata"].get("annotations") or {}).get(COTERIE_RUNTIME)
    if not text:
        raise CliError(
            f"Error: node {node['metadata']['name']} does not say what runs its containers; its agent is of an earlier version"
        )
    try:
        return msgspec.json.decode(text, type=_RuntimeFacts)
    except msgspec.MsgspecError as problem:
        raise CliError(f"Error: the annotation {COTERIE_RUNTIME} of the node cannot be read: {problem}") from problem


def _document(node: Object, facts: _RuntimeFacts) -> Object:
    handlers = []
    for each in facts.handlers:
        cost = COSTS.get(each.name)
        costs = {"startMedian": cost.start, "memoryPerPod": cost.memory, "wall": cost.wall} if cost else {}
        handlers.append({**msgspec.to_builtins(each), **costs})
    return {
        "node": node["metadata"]["name"],
        "handlers": handlers,
        "devices": [msgspec.to_builtins(each) for each in _devices(node)],
        "limitations": _limitations(facts),
    }


def _devices(node: Object) -> list[_Devices]:
    """What the node offers of GPUs; those that failed are in its capacity only."""
    status = node.get("status") or {}
    labels = node["metadata"].get("labels") or {}
    usable = status.get("allocatable") or {}
    found = []
    for resource, count in sorted((status.get("capacity") or {}).items()):
        if resource.startswith(_DEVICE_DOMAINS):
            product = labels.get("nvidia.com/gpu.product", "") if resource == "nvidia.com/gpu" else ""
            found.append(_Devices(resource, str(count), str(usable.get(resource, "0")), product))
    return found


def _limitations(facts: _RuntimeFacts) -> list[str]:
    old = [
        f"runc {each.version} is older than {_FIXED_RUNC}: unless your distribution has mended CVE-2024-21626 in it, a "
        "container can reach files of the machine; update its package, or take the handler crun."
        for each in facts.handlers
        if each.name == "runc" and each.available and _is_before(each.version, _FIXED_RUNC)
    ]
    return [*facts.limitations, *old]


def _is_before(version: str, other: str) -> bool:
    return _numbers(version) < _numbers(other) if version else False


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:3])


def _sheet(node: Object, facts: _RuntimeFacts) -> str:
    sheet = Sheet()
    info = (node.get("status") or {}).get("nodeInfo") or {}
    sheet.field("Name", node["metadata"]["name"])
    sheet.field("Runtime", info.get("containerRuntimeVersion") or _UNKNOWN)
    sheet.field("Kernel", info.get("kernelVersion") or _UNKNOWN)
    with sheet.section("Handlers"):
        sheet.table(("Name", "Version", "Start", "Memory", "Wall"), [_row(each) for each in _of(facts, available=True)])
    with sheet.section("Not available"):
        missing = _of(facts, available=False)
        for each in missing:
            sheet.field(each.name, each.why)
        if not missing:
            sheet.line("<none>")
    if devices := _devices(node):
        with sheet.section("Devices"):
            rows = [(each.resource, each.capacity, each.usable, each.product or _UNKNOWN) for each in devices]
            sheet.table(("Resource", "Count", "Usable", "Product"), rows)
    with sheet.section("Missing walls and limits"):
        for sentence in _limitations(facts) or ["<none>"]:
            sheet.line(sentence)
    return sheet.text()


def _of(facts: _RuntimeFacts, *, available: bool) -> Sequence[_Handler]:
    return [each for each in facts.handlers if each.available is available]


def _row(handler: _Handler) -> tuple[str, ...]:
    cost = COSTS.get(handler.name, HandlerCost(_UNKNOWN, _UNKNOWN, ""))
    return handler.name, handler.version or _UNKNOWN, cost.start, cost.memory, cost.wall
