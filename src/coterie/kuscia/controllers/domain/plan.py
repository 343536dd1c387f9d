"""A domain's status and what is decided about it: its nodes, its deploy tokens, its fate. Pure.

Deploy tokens (self domains other than the control plane's own, which nobody may join under its name):

    tokens there                    after
    none                            a new unused one
    unused                          kept, the newest only
    used, none unused               the newest used one kept, a new unused one
    several used                    the newest kept

They lie in the status in clear text, because that is where Kuscia's scripts and users read them; nothing logs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from coterie.base.clock import rfc3339
from coterie.base.ids import secret_text
from coterie.kube.api import quantity
from coterie.kube.api.meta import Object
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.core import Namespace
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import QuantityText
from coterie.kuscia.api.bandwidth import MBIT, bits_text
from coterie.kuscia.api.labels import KUSCIA_BANDWIDTH, KUSCIA_DELETED, KUSCIA_DOMAIN_AUTH, KUSCIA_DOMAIN_NAME
from coterie.kuscia.api.types.domain import (
    RESERVED_DOMAINS,
    UNUSED,
    USED,
    DeployToken,
    Domain,
    DomainNodeStatus,
    DomainStatus,
)

TOKEN_ALPHABET = "23456789abcdefghijklmnpqrstuvwxyzABCDEFGHIJKLMNPQRSTUVWXYZ"
"""Digits 2-9 and letters without o and O, as Kuscia draws them."""
TOKEN_LENGTH = 32
COMPLETED = "completed"
HEARTBEAT_STEP = 30.0
"""A node's heartbeat alone changes the status only when it is this much newer than the one there."""


def new_token() -> str:
    return secret_text(TOKEN_LENGTH, TOKEN_ALPHABET)


def refusal(name: str) -> str | None:
    """Why there can be no domain of this name."""
    if name in RESERVED_DOMAINS:
        return f"{name} is a reserved name; a domain of this name gets no namespace, accounts or tokens"
    return None


def domain_patch(domain: Domain) -> Object | None:
    """What is filled into the Domain itself once all its objects are there."""
    patch: Object = {}
    if (domain.metadata.labels or {}).get(KUSCIA_DOMAIN_AUTH) != COMPLETED:
        patch["metadata"] = {"labels": {KUSCIA_DOMAIN_AUTH: COMPLETED}}
    if domain.partner and not domain.spec.master:
        patch["spec"] = {"master": domain.metadata.name}
    return patch or None


def labels_patch(have: Mapping[str, str] | None, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    """Only what is wrong."""
    found = have or {}
    return {key: value for key, value in wanted.items() if found.get(key) != value}


# Status.


def status_patch(
    domain: Domain, nodes: Iterable[Node], control_plane: str, now: datetime, make_token: Callable[[], str] = new_token
) -> Object | None:
    """The change of the status; None when it is right. Partners have none: their nodes are not ours."""
    if domain.partner:
        return None
    before = domain.status
    tokens = before.deploy_token_statuses
    if domain.metadata.name != control_plane:
        tokens = deploy_tokens(tokens or (), rfc3339(now), make_token)
    after = DomainStatus(node_statuses=_nodes(before.node_statuses or (), nodes), deploy_token_statuses=tokens)
    return changes(before, after)


def deploy_tokens(
    tokens: Sequence[DeployToken], stamp: str, make_token: Callable[[], str] = new_token
) -> tuple[DeployToken, ...]:
    used = _newest(token for token in tokens if token.state == USED)
    unused = _newest(token for token in tokens if token.state == UNUSED)
    if unused is None:
        unused = DeployToken(token=make_token(), state=UNUSED, last_transition_time=stamp)
    kept = [token for token in tokens if token is used or token is unused]
    return tuple(kept if unused in kept else [*kept, unused])


def _newest(tokens: Iterable[DeployToken]) -> DeployToken | None:
    """Of equally old ones the last."""
    best: DeployToken | None = None
    for token in tokens:
        if best is None or (token.last_transition_time or "") >= (best.last_transition_time or ""):
            best = token
    return best


def _nodes(before: Sequence[DomainNodeStatus], nodes: Iterable[Node]) -> tuple[DomainNodeStatus, ...] | None:
    known = {status.name: status for status in before}
    found = [_without_haste(node_status(node), known.get(node.metadata.name)) for node in nodes]
    return tuple(sorted(found, key=lambda status: status.name)) or None


def node_status(node: Node) -> DomainNodeStatus:
    ready = next((found for found in node.status.conditions or () if found.type == "Ready"), None)
    info = node.status.node_info
    total = _bandwidth_bits(node.status.capacity)
    return DomainNodeStatus(
        name=node.metadata.name,
        version=info.kubelet_version if info is not None else "",
        status="Ready" if ready is not None and ready.status == "True" else "NotReady",
        bandwidth=bits_text(total) if total is not None else "",
        bandwidth_bits=total,
        bandwidth_allocatable_bits=_bandwidth_bits(node.status.allocatable),
        last_heartbeat_time=ready.last_heartbeat_time if ready is not None else None,
        last_transition_time=ready.last_transition_time if ready is not None else None,
    )


def _bandwidth_bits(amounts: Mapping[str, QuantityText] | None) -> int | None:
    text = (amounts or {}).get(KUSCIA_BANDWIDTH)
    return quantity.parse(text).value() * MBIT if text is not None else None


def _without_haste(new: DomainNodeStatus, old: DomainNodeStatus | None) -> DomainNodeStatus:
    if old is None:
        return new
    later, earlier = parse_time(new.last_heartbeat_time), parse_time(old.last_heartbeat_time)
    if later is None or earlier is None or not 0 <= (later - earlier).total_seconds() < HEARTBEAT_STEP:
        return new
    return msgspec.structs.replace(new, last_heartbeat_time=old.last_heartbeat_time)


# Deletion.


@dataclass(frozen=True, slots=True)
class DomainRemoval:
    """What follows from a Domain that is gone. Its namespace is never deleted: data and jobs of an organisation lie there."""

    mark: bool = False
    """Label the namespace as deleted."""
    revoke: bool = False
    """Remove the domain's accounts at once."""
    warn: str = ""


def removal(name: str, namespace: Namespace | None, control_plane: str) -> DomainRemoval:
    labels = (namespace.metadata.labels or {}) if namespace is not None else {}
    if name == control_plane:
        warn = f"Domain {name} is this control plane's own and was deleted; create it again" if namespace else ""
        return DomainRemoval(warn=warn)
    if namespace is None or labels.get(KUSCIA_DOMAIN_NAME) != name:
        return DomainRemoval()
    return DomainRemoval(mark=labels.get(KUSCIA_DELETED) != "true" and not namespace.metadata.deleting, revoke=True)
