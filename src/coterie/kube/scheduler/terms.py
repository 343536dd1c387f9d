"""Matchers made once from what a pod asks of nodes and of its neighbours.

All are small, frozen and hashable: pods of one workload have equal terms, so whatever was worked out for a term (which
nodes match, where its pods are) is kept under the term and shared by all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.kube.api.node_selection import NodeTerm, node_term
from coterie.kube.api.selectors import IN, NOT_IN, LabelSelector, Requirement, selector_of
from coterie.kube.api.types.pods import Toleration, TopologySpreadConstraint

Labels = Mapping[str, str]
Affinity = Mapping[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_IGNORE = "Ignore"
_HONOR = "Honor"


@dataclass(frozen=True, slots=True)
class VolumeTerms:
    """Where a volume of the pod can be reached: one of the terms must match, else `reason`."""

    terms: tuple[NodeTerm, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StaticDemand:
    """What a pod asks of a node whatever runs there. Equal for all pods of a workload."""

    node_name: str = ""
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] | None = None
    """Alternatives, one of which must match; None: anything does."""
    tolerations: tuple[Toleration, ...] = ()
    namespace: str = ""
    """The pod's own; empty: not considered."""
    volumes: tuple[VolumeTerms, ...] = ()
    """All of them must match."""
    blocked: str = ""
    """Why no node will do, whatever it is like: a claim of the pod is missing, for instance."""

    def affine(self, name: str, labels: Labels) -> bool:
        for key, value in self.selector:
            if labels.get(key) != value:
                return False
        return self.terms is None or any(term.matches(name, labels) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Which pods are meant: by their labels, in some namespaces."""

    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None = None
    staying: bool = False
    """Only pods that are not being deleted."""

    def match(self, namespace: str, labels: Labels, namespace_labels: Mapping[str, Labels]) -> bool:
        if namespace not in self.namespaces and (
            self.namespace_selector is None or not self.namespace_selector.matches(namespace_labels.get(namespace))
        ):
            return False
        return self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Neighbours that should (not) be within the same value of a node label."""

    neighbours: Neighbours
    topology_key: str


@dataclass(frozen=True, slots=True)
class Spread:
    neighbours: Neighbours
    topology_key: str
    max_skew: int
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


@dataclass(frozen=True, slots=True)
class PodTerms:
    """Everything a pod asks of its neighbours; `NO_TERMS` for the many that ask nothing."""

    affinity: tuple[PodTerm, ...] = ()
    anti: tuple[PodTerm, ...] = ()
    preferred: tuple[tuple[int, PodTerm], ...] = ()
    """Weights are negative for those to be away from."""
    spread: tuple[Spread, ...] = ()
    soft_spread: tuple[Spread, ...] = ()


NO_TERMS = PodTerms()


def static_demand(
    node_name: str,
    selector: Labels | None,
    affinity: Affinity | None,
    tolerations: tuple[Toleration, ...] | None,
    namespace: str,
) -> StaticDemand:
    hard = ((affinity or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    return StaticDemand(
        node_name,
        tuple(sorted(selector.items())) if selector else (),
        None if hard is None else tuple(node_term(term) for term in hard.get("nodeSelectorTerms") or ()),
        tolerations or (),
        namespace,
    )


def preferred_nodes(affinity: Affinity | None) -> tuple[tuple[int, NodeTerm], ...]:
    soft = ((affinity or {}).get("nodeAffinity") or {}).get(_PREFERRED) or ()
    # Unlike a required term, an empty preference matches every node and so decides nothing.
    return tuple((int(term.get("weight") or 0), node_term(term.get("preference") or {})) for term in soft)


def pod_terms(
    affinity: Affinity | None,
    constraints: tuple[TopologySpreadConstraint, ...] | None,
    namespace: str,
    labels: Labels,
) -> PodTerms:
    if not affinity and not constraints:
        return NO_TERMS
    near = (affinity or {}).get("podAffinity") or {}
    away = (affinity or {}).get("podAntiAffinity") or {}
    spreads = [(c.when_unsatisfiable, _spread(c, namespace, labels)) for c in constraints or ()]
    terms = PodTerms(
        tuple(_pod_term(term, namespace, labels) for term in near.get(_REQUIRED) or ()),
        tuple(_pod_term(term, namespace, labels) for term in away.get(_REQUIRED) or ()),
        (*_weighted(near, 1, namespace, labels), *_weighted(away, -1, namespace, labels)),
        tuple(spread for action, spread in spreads if action != "ScheduleAnyway"),
        tuple(spread for action, spread in spreads if action == "ScheduleAnyway"),
    )
    return NO_TERMS if terms == NO_TERMS else terms


def _weighted(rules: Mapping[str, Any], sign: int, namespace: str, labels: Labels) -> Iterable[tuple[int, PodTerm]]:
    for weighted in rules.get(_PREFERRED) or ():
        term = _pod_term(weighted.get("podAffinityTerm") or {}, namespace, labels)
        yield sign * int(weighted.get("weight") or 0), term


def _pod_term(term: Mapping[str, Any], namespace: str, labels: Labels) -> PodTerm:
    selector = selector_of(term.get("labelSelector"))
    selector = _with_own_labels(selector, term.get("matchLabelKeys"), IN, labels)
    selector = _with_own_labels(selector, term.get("mismatchLabelKeys"), NOT_IN, labels)
    names = frozenset(term.get("namespaces") or ())
    elsewhere = term.get("namespaceSelector")
    if not names and elsewhere is None:
        names = frozenset((namespace,))
    return PodTerm(
        Neighbours(selector, names, None if elsewhere is None else selector_of(elsewhere)),
        term.get("topologyKey") or "",
    )


def _spread(given: TopologySpreadConstraint, namespace: str, labels: Labels) -> Spread:
    selector = _with_own_labels(selector_of(given.label_selector), given.match_label_keys, IN, labels)
    return Spread(
        Neighbours(selector, frozenset((namespace,)), staying=True),
        given.topology_key,
        given.max_skew,
        given.min_domains or 1,
        (given.node_affinity_policy or _HONOR) != _IGNORE,
        (given.node_taints_policy or _IGNORE) == _HONOR,
    )


def _with_own_labels(
    selector: LabelSelector, keys: Iterable[str] | None, operator: str, labels: Labels
) -> LabelSelector:
    """`matchLabelKeys`: the value of these labels on the pod itself is part of the selector."""
    more = tuple(Requirement(key, operator, frozenset((labels[key],))) for key in keys or () if key in labels)
    return LabelSelector((*selector.requirements, *more), selector.nothing) if more else selector
