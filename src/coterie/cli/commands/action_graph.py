"""`coterie action graph`: which function calls which."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError
from coterie.cli.commands.action_show import trigger_text
from coterie.cli.jobs import graph as drawing
from coterie.cli.live_display import takes_unicode
from coterie.cli.output import as_text
from coterie.cli.session import CliSession
from coterie.cli.terminal_format import safe
from coterie.kuscia.api.functions import graph
from coterie.kuscia.api.functions.types import ACTIONS, TRIGGERS, Action, Trigger
from coterie.kuscia.api.jobs.job_state import TaskState

HELP = """
Draw which function calls which: triggers first, then functions with actors (ready/desired), calls and errors of the
last minute; functions of partners are ends. With NAME only what can reach that function, and what it can reach. `-o
mermaid` prints a diagram that GitHub and other tools render.

Examples:
  coterie action graph
  coterie action graph calc
  coterie action graph -o mermaid
  coterie action graph -o json
"""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """`trigger/NAME`, the name of an action, or `partner/NAME`."""

    name: str
    label: str
    targets: tuple[str, ...] = ()


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="only what is connected with this function")
    options.output_option(parser, ("table", "mermaid", "json", "yaml"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions")


def run(args: argparse.Namespace, app: App) -> int:
    return actions.run(args, app, lambda session: _graph(session, args))


async def _graph(session: CliSession, args: argparse.Namespace) -> int:
    app = session.app
    functions = (await session.client.list(ACTIONS, session.namespace)).items
    triggers = (await session.client.list(TRIGGERS, session.namespace)).items
    nodes = graph_nodes(functions, triggers)
    if args.name:
        if args.name not in nodes:
            await actions.find(session, args.name)
            raise CliError(f"Error: {args.name} was created just now; try again")
        nodes = connected(nodes, args.name)
    if args.output in ("json", "yaml"):
        app.write(as_text(_as_object(nodes, {each.metadata.name: each for each in functions}), args.output))
    elif args.output == "mermaid":
        app.write(mermaid(nodes))
    elif not nodes:
        app.warn("There are no functions; `coterie action create NAME --script FILE` makes one")
    else:
        for line in draw(nodes):
            app.say(line if takes_unicode(app.out) else drawing.plain_letters(line).replace("●", "*"))
    return 0


def graph_nodes(functions: Iterable[Action], triggers: Iterable[Trigger]) -> dict[str, DrawnNode]:
    """By name, callers before what they call. Pure."""
    found: dict[str, DrawnNode] = {}
    for trigger in sorted(triggers, key=lambda each: each.metadata.name):
        name = f"trigger/{trigger.metadata.name}"
        found[name] = DrawnNode(name, trigger_text(trigger), (trigger.spec.action,))
    edges = {each.metadata.name: each.spec.targets for each in functions}
    by_name = {each.metadata.name: each for each in functions}
    for name in reversed(graph.callees_first(dict(sorted(edges.items(), reverse=True)))):
        found[name] = DrawnNode(name, action_label(by_name[name]), edges[name])
    for target in sorted({each for node in found.values() for each in node.targets} - set(found)):
        found[target] = DrawnNode(target, f"{target}  (partner)" if "/" in target else f"{target}  (missing)")
    return found


def action_label(action: Action) -> str:
    status = action.status
    text = f"{action.metadata.name}  {status.ready_replicas}/{status.desired_replicas} actors"
    text += f", {status.calls_per_minute} calls/min"
    if status.errors_per_minute:
        text += f", {status.errors_per_minute} errors/min"
    if status.dead_letters:
        text += f", {status.dead_letters} dead letters"
    problem = actions.condition_line(action)
    return f"{text}  [{problem}]" if problem else text


def connected(nodes: Mapping[str, DrawnNode], name: str) -> dict[str, DrawnNode]:
    """What can reach the node, and what it can reach."""
    keep = {name}
    for node in nodes.values():  # callers come first, so one pass follows the way down
        if node.name in keep:
            keep |= set(node.targets)
    down = set(keep)
    up = {name}
    for node in reversed(list(nodes.values())):
        if up & set(node.targets):
            up.add(node.name)
    return {
        key: DrawnNode(key, node.label, tuple(each for each in node.targets if each in (down | up)))
        for key, node in nodes.items()
        if key in down | up
    }


def draw(nodes: Mapping[str, DrawnNode]) -> list[str]:
    """Each connected part by itself, so that no line seems to lead to a neighbour."""
    lines: list[str] = []
    for part in parts(nodes):
        lines += [*([""] if lines else []), *_draw_part(part)]
    return lines


def parts(nodes: Mapping[str, DrawnNode]) -> list[dict[str, DrawnNode]]:
    leader = {name: name for name in nodes}

    def lead(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for node in nodes.values():
        for target in node.targets:
            leader[lead(target)] = lead(node.name)
    found: dict[str, dict[str, DrawnNode]] = {}
    for name, node in nodes.items():
        found.setdefault(lead(name), {})[name] = node
    return list(found.values())


def _draw_part(nodes: Mapping[str, DrawnNode]) -> list[str]:
    callers: dict[str, list[str]] = {}
    for node in nodes.values():
        for target in node.targets:
            callers.setdefault(target, []).append(node.name)
    tasks = [TaskState(name, "", (), after=tuple(callers.get(name, ()))) for name in nodes]
    rows: Sequence[drawing.GraphRow] = drawing.lanes(tasks)
    wide = drawing.width(rows) + 2
    lines = []
    for row in rows:
        line = row.lanes
        if row.task is not None:
            line = line[: row.at] + "●" + line[row.at + 1 :]
            line = f"{line:<{wide}}{safe(nodes[row.task.alias].label)}"
        lines.append(line)
    return lines


def mermaid(nodes: Mapping[str, DrawnNode]) -> str:
    number = {name: f"n{place}" for place, name in enumerate(nodes)}
    lines = ["flowchart LR"]
    for name, node in nodes.items():
        label = safe(node.label).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
        opening, closing = ("([", "])") if name.startswith("trigger/") else ("[", "]")
        lines.append(f'  {number[name]}{opening}"{label}"{closing}')
    lines += [f"  {number[name]} --> {number[target]}" for name, node in nodes.items() for target in node.targets]
    return "\n".join(lines) + "\n"


def _as_object(nodes: Mapping[str, DrawnNode], functions: Mapping[str, Action]) -> dict[str, object]:
    shown = []
    for name, node in nodes.items():
        action = functions.get(name)
        known: dict[str, object] = {"name": name, "next": list(node.targets)}
        if action is not None:
            status = action.status
            known |= {
                "actors": status.ready_replicas,
                "desiredActors": status.desired_replicas,
                "callsPerMinute": status.calls_per_minute,
                "errorsPerMinute": status.errors_per_minute,
                "coldStarts": status.cold_starts,
                "deadLetters": status.dead_letters,
                "version": status.version,
            }
        shown.append(known)
    return {"nodes": shown}
