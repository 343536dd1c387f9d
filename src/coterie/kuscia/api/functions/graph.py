"""Which action may call which: unknown targets, cycles, an order of creation. Pure.

Edges are declared (`Action.spec.next`); whether one is taken is decided by the code at run time, so a chain that could come back to
where it was is refused before it runs. A target at a partner (`bob/score`) ends the graph: it is the partner's to say what comes then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from coterie.kube.api.names import dns_label_faults

MAX_ACTION_NAME = 40
_ACTION = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")

Edges = Mapping[str, Collection[str]]
"""Targets by action."""


def action_name_fault(name: str) -> str:
    """What is wrong with the name of an action; empty when nothing is. The name is part of pods, topics and paths."""
    if len(name) <= MAX_ACTION_NAME and _ACTION.fullmatch(name):
        return ""
    shown = repr(name[:60])
    return (
        f"{shown} is no name of an action: at most {MAX_ACTION_NAME} lower case letters, digits and '-', a letter first"
    )


def split_target(target: str) -> tuple[str, str]:
    """(partner, action); the partner is empty for an action of this domain."""
    partner, slash, name = target.rpartition("/")
    return (partner, name) if slash else ("", target)


def target_fault(target: str) -> str:
    """What is wrong with an entry of `next`, whether or not it exists."""
    partner, name = split_target(target)
    if ("/" in target) and dns_label_faults(partner):
        return f"{target[:120]!r}: write NAME, or PARTNER/NAME for an action of a partner"
    return action_name_fault(name)


def local_targets(targets: Iterable[str]) -> list[str]:
    return [target for target in targets if "/" not in target]


def unknown_targets(name: str, targets: Iterable[str], known: Collection[str]) -> list[str]:
    """Targets of this domain that do not exist. An action that names itself is a cycle, not an unknown target."""
    return [target for target in local_targets(targets) if target not in known and target != name]


def callers(edges: Edges, name: str) -> list[str]:
    """Actions that may call this one."""
    return sorted(each for each, targets in edges.items() if name in targets and each != name)


def find_cycle(edges: Edges, start: str = "") -> tuple[str, ...]:
    """The nodes of a cycle, the first one also at the end; empty when there is none. `start`: only cycles through it."""
    for first in (start,) if start else tuple(edges):
        if found := _cycle_through(edges, first):
            return found
    return ()


def _cycle_through(edges: Edges, first: str) -> tuple[str, ...]:
    """The way back to `first`, depth first without recursion: graphs come from users."""
    way, seen = [first], {first}
    rest = [iter(local_targets(edges.get(first, ())))]
    while rest:
        target = next(rest[-1], None)
        if target is None:
            rest.pop()
            way.pop()
        elif target == first:
            return (*way, first)
        elif target not in seen:
            seen.add(target)
            way.append(target)
            rest.append(iter(local_targets(edges.get(target, ()))))
    return ()


def callees_first(edges: Edges) -> list[str]:
    """An order in which each action comes after those that it names, else as given; members of a cycle come as given too."""
    out: dict[str, None] = {}
    for first in edges:
        stack: list[tuple[str, list[str]]] = [(first, local_targets(edges[first]))]
        open_ = {first}
        while stack:
            name, targets = stack[-1]
            while targets and (targets[0] in out or targets[0] in open_ or targets[0] not in edges):
                targets.pop(0)
            if targets:
                below = targets.pop(0)
                open_.add(below)
                stack.append((below, local_targets(edges[below])))
            else:
                out.setdefault(name)
                open_.discard(name)
                stack.pop()
    return list(out)


def cycle_sentence(cycle: Sequence[str]) -> str:
    return f"the actions {' -> '.join(cycle)} call each other in a circle"
