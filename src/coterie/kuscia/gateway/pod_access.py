"""Which pod calls, and what it may call. Pure.

    name of a node's own service              refused, whoever asks
    name of the message queue                 engine pods, each for the sessions of its own task; nobody else
    address of an engine pod                  the hosts, or paths of hosts, that `PodCallers` lists for it, nothing else
    address of an ordinary pod                everything in the table (pods of other nodes: `PodCallers` lists their ranges)
    any other address                         refused

A pod is known by the source address of its connection, which it cannot choose: the pod network drops forged ones. No header
takes part in it. The rules are the configuration of an RBAC filter in a file of its own, so that a pod comes and goes
without touching a listener (which would cut every stream).

Hosts are compared as the engines were given them, in lower case; another spelling is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network
from typing import Any

from coterie.kuscia.gateway.addresses import PodNetwork
from coterie.kuscia.gateway.egress import polled
from coterie.kuscia.gateway.matching import by_header, by_sender, header_like, then, verdict
from coterie.kuscia.gateway.model import PodCaller, SnapshotInputs
from coterie.kuscia.gateway.names import (
    API_SERVICE,
    DIAGNOSE_SERVICE,
    EVIDENCE_SERVICE,
    FUNCTIONS_SERVICE,
    HANDSHAKE_SERVICE,
    KUSCIA_API_SERVICE,
    PTP_SESSION,
    RBAC,
    RECEIVER_SERVICE,
    SCHEDULER_SERVICE,
    TRANSPORT_SERVICE,
    Json,
)

AUTHORITY, _PATH = ":authority", ":path"
_ALLOWED = verdict("allowed", "ALLOW")
_RESERVED = verdict("reserved-for-the-node", "DENY")
_NOT_ALLOWED = verdict("not-allowed-for-this-pod", "DENY")
_UNKNOWN = verdict("unknown-pod", "DENY")
_ALL = frozenset({"*"})
_WHOLE_ADDRESS = 32
_NODES_OWN = (
    API_SERVICE,
    DIAGNOSE_SERVICE,
    KUSCIA_API_SERVICE,
    FUNCTIONS_SERVICE,
    EVIDENCE_SERVICE,
    SCHEDULER_SERVICE,
)


_SESSIONS_OF = "sessions-of-"
"""The rule by which an engine may use the message queue begins so; its task follows."""


def pod_rules(inputs: SnapshotInputs) -> Json:
    if inputs.pods is None:
        # They share the machine's network and cannot be told apart. Peer gateways ask for the handshake here.
        return _rules(inputs, (*_NODES_OWN, TRANSPORT_SERVICE), _ALLOWED)
    by_pod = by_sender(_by_address(inputs.pods, inputs.callers), _UNKNOWN)
    reserved = (*_NODES_OWN, HANDSHAKE_SERVICE)
    if inputs.transport is None:
        return _rules(inputs, (*reserved, TRANSPORT_SERVICE), then(by_pod))
    made = _rules(inputs, reserved, then(by_pod))
    made["matcher"]["matcher_list"]["matchers"] += header_like(
        AUTHORITY, _named((TRANSPORT_SERVICE,)), then(_by_task(inputs)), _NOT_ALLOWED
    )["matcher_list"]["matchers"]
    return made


def _rules(inputs: SnapshotInputs, reserved: Iterable[str], others: Json) -> Json:
    hosts = _named(reserved)
    # A pod that polled in our place would get calls that are meant for others.
    if fetched := sorted(route.source for route in inputs.inbound if polled(route)):
        hosts += f"|(?i){RECEIVER_SERVICE}\\.({'|'.join(map(re.escape, fetched))})\\.svc.*"
    return {"@type": RBAC, "matcher": header_like(AUTHORITY, hosts, _RESERVED, others)}


def _named(services: Iterable[str]) -> str:
    """These services of any domain. Virtual hosts are found in any spelling, hence this too."""
    return f"(?i)({'|'.join(map(re.escape, sorted(services)))})(\\..*)?"


# ---- the message queue ----


def transport_hosts(domain: str) -> tuple[str, ...]:
    """The names by which engines call their domain's message queue."""
    return (f"{TRANSPORT_SERVICE}.{domain}.svc", TRANSPORT_SERVICE)


def sessions_of(task: str) -> str:
    """A regular expression for the sessions of a task (`task_of_session` in kuscia/transport). A comma is what joins a
    header that was sent twice."""
    return f"(session_)?{re.escape(task)}(\\.[^,]*)?"


def _by_task(inputs: SnapshotInputs) -> Json:
    tasks: dict[str, list[str]] = {}
    for caller in sorted(inputs.callers, key=lambda each: each.address):
        if caller.task and "/" not in caller.address:
            tasks.setdefault(caller.task, []).append(f"{caller.address}/{_WHOLE_ADDRESS}")
    entries = []
    for task, addresses in sorted(tasks.items()):
        allowed = verdict(_SESSIONS_OF + task, "ALLOW")
        session = then(header_like(PTP_SESSION, sessions_of(task), allowed, _NOT_ALLOWED))
        entries.append(
            (
                addresses,
                then(by_header(AUTHORITY, dict.fromkeys(transport_hosts(inputs.domain), session), _NOT_ALLOWED)),
            )
        )
    return by_sender(entries, _NOT_ALLOWED)


def _tasks_in(rules: Mapping[str, Any]) -> dict[str, str]:
    """By address, as `_by_task` wrote them."""
    found: dict[str, str] = {}
    for matcher in rules["matcher"]["matcher_list"]["matchers"][1:]:
        tree = matcher["on_match"]["matcher"]
        listed = (
            tree["matcher_tree"]["custom_match"]["typed_config"]["range_matchers"] if "matcher_tree" in tree else ()
        )
        for entry in listed:
            for session in _entries(entry["on_match"]["matcher"]).values():
                (rule,) = session["matcher"]["matcher_list"]["matchers"]
                task = str(rule["on_match"]["action"]["name"]).removeprefix(_SESSIONS_OF)
                found |= {_address(each): task for each in entry["ranges"]}
    return found


def _by_address(pods: PodNetwork, callers: Iterable[PodCaller]) -> list[tuple[list[str], Json]]:
    """Pods of one task mostly have the same hosts: they are one entry."""
    alike: dict[frozenset[str], list[str]] = {}
    for caller in sorted(callers, key=lambda each: each.address):
        alike.setdefault(caller.hosts, []).append(caller.address if "/" in caller.address else f"{caller.address}/32")
    engines = [
        (addresses, _ALLOWED if hosts == _ALL else then(by_header(AUTHORITY, _by_host(hosts), _NOT_ALLOWED)))
        for hosts, addresses in sorted(alike.items(), key=lambda each: each[1])
    ]
    ordinary = sorted(IPv4Network(pods.cidr).address_exclude(IPv4Network(pods.engines)))
    return [([str(each) for each in ordinary], _ALLOWED), *engines]


def _by_host(hosts: Iterable[str]) -> dict[str, Json]:
    paths: dict[str, list[str]] = {}
    for each in hosts:
        host, slash, path = each.partition("/")
        paths.setdefault(host, []).extend([slash + path] if slash else [])
    return {
        host: then(by_header(_PATH, dict.fromkeys(allowed, _ALLOWED), _NOT_ALLOWED))
        if allowed and host not in hosts
        else _ALLOWED
        for host, allowed in paths.items()
    }


def callers_in(rules: Mapping[str, Any]) -> tuple[PodCaller, ...]:
    """The callers in what `pod_rules` made; none in anything else."""
    try:
        listed = rules["matcher"]["on_no_match"]["matcher"]["matcher_tree"]["custom_match"]["typed_config"]
        _own_ordinary_pods, *others = listed["range_matchers"]
        tasks = _tasks_in(rules)
        return tuple(
            PodCaller(
                _address(each),
                _hosts(entry["on_match"]["matcher"]) if "matcher" in entry["on_match"] else _ALL,
                tasks.get(_address(each), ""),
            )
            for entry in others
            for each in entry["ranges"]
        )
    except (KeyError, TypeError, ValueError):
        return ()


def _address(block: Mapping[str, Any]) -> str:
    address, length = str(block["address_prefix"]), int(block["prefix_len"])
    return address if length == _WHOLE_ADDRESS else f"{address}/{length}"


def _hosts(tree: Mapping[str, Any]) -> frozenset[str]:
    found: set[str] = set()
    for host, entry in _entries(tree).items():
        found |= {host + path for path in _entries(entry["matcher"])} if "matcher" in entry else {host}
    return frozenset(found)


def _entries(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of what `by_header` made."""
    return tree["matcher_tree"]["exact_match_map"]["map"] if "matcher_tree" in tree else {}
