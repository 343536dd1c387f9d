"""Which nodes a pod or a volume may be on: the terms of a node affinity, and taints with what tolerates them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.kube.api.selectors import Requirement
from coterie.kube.api.types.nodes import Taint
from coterie.kube.api.types.pods import Toleration

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One of the alternatives of a node affinity; empty ones match nothing, as in Kubernetes."""

    expressions: tuple[Requirement, ...]
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Labels) -> bool:
        if not self.expressions and not self.fields:
            return False
        return all(r.matches(labels) for r in self.expressions) and all(
            r.matches({"metadata.name": name}) for r in self.fields
        )


def tolerates(tolerations: Iterable[Toleration], key: str, value: str, effect: str) -> bool:
    for toleration in tolerations:
        if toleration.effect and toleration.effect != effect:
            continue
        if toleration.key and toleration.key != key:
            continue
        if toleration.operator == "Exists" or toleration.value == value:
            return True
    return False


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that keeps the pod away."""
    for taint in taints:
        if not tolerates(tolerations, taint.key, taint.value, taint.effect):
            return taint
    return None


def node_term(term: Mapping[str, Any]) -> NodeTerm:
    return NodeTerm(_requirements(term.get("matchExpressions")), _requirements(term.get("matchFields")))


def _requirements(given: Iterable[Mapping[str, Any]] | None) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(r.get("key") or "", r.get("operator") or "", frozenset(r.get("values") or ())) for r in given or ()
    )


def node_terms(selector: Mapping[str, Any] | None) -> tuple[NodeTerm, ...] | None:
    """Of a NodeSelector: alternatives, one of which must match; None: no selector, any node does."""
    if selector is None:
        return None
    return tuple(node_term(term) for term in selector.get("nodeSelectorTerms") or ())
