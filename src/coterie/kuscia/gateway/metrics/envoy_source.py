"""Envoy's statistics as a source of metrics, by the names and labels that Kuscia has: `envoy_cluster_*{envoy_cluster_name="alice-to-bob-http"}`.

Only families that `envoy_families` lists are read from Envoy's answer, which is bounded; reading it is pure. Rows grow with routes and their
ports: clusters of services are not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import quote

from coterie.base.exposition import Family, labels
from coterie.kube.metrics.sources import SourceFailed
from coterie.kuscia.gateway import tunnel
from coterie.kuscia.gateway.admin import Admin, AdminError
from coterie.kuscia.gateway.egress import outbound_name, ways
from coterie.kuscia.gateway.metrics.envoy_families import CLUSTER, FAMILIES, query_filter
from coterie.kuscia.gateway.metrics.route_labels import route_labels
from coterie.kuscia.gateway.model import SnapshotInputs

MAX_BYTES = 16 << 20
"""Of Envoy's answer; a thousand busy routes are 2 MB."""
_MAX_KNOWN_LABELS = 50_000
_MAX_DIGITS = 20
_LABELS = re.compile(r'(?:[a-z_]+="[A-Za-z0-9._:/-]*"(?:,(?!$)|$))*')
_ALWAYS = "envoy_server_live"
_SENT, _RECEIVED = "envoy_cluster_upstream_cx_tx_bytes_total", "envoy_cluster_upstream_cx_rx_bytes_total"
_ZEROS = tuple(name for name, each in FAMILIES.items() if each.promised)

EnvoyRows = dict[str, dict[str, float]]
"""By family, by labels."""


class AnswerRefused(ValueError):
    """This is not a page of Envoy's statistics."""


class EnvoyPageParser:
    """Labels that were checked once are remembered: a cluster has the same ones in all families and in all answers."""

    def __init__(self) -> None:
        self._valid: dict[str, str] = {}
        """Each to itself: one text for all rows."""

    def rows(self, text: str) -> EnvoyRows:
        """Raises AnswerRefused."""
        found: EnvoyRows = {}
        if not text.isascii():
            raise AnswerRefused("Envoy's answer is no plain text")
        for block in text.split("# TYPE ")[1:]:
            head, _, body = block.partition("\n")
            name, _, kind = head.partition(" ")
            family = FAMILIES.get(name)
            if family is None or kind.strip() != family.kind:
                continue
            found[name] = self._rows_of(name, body)
        if not found.get(_ALWAYS):
            raise AnswerRefused(f"there is no {_ALWAYS} in what Envoy answers")
        return found

    def _rows_of(self, name: str, body: str) -> dict[str, float]:
        begin, start = name + "{", len(name) + 1
        rows: dict[str, float] = {}
        for line in body.splitlines():
            if not line:
                continue
            where, found, value = line[start:].rpartition("} ")
            if not found or not line.startswith(begin) or not value.isdigit() or len(value) > _MAX_DIGITS:
                raise AnswerRefused(f"a row of {name} is not understood")
            rows[self._valid.get(where) or self._checked(where)] = int(value)
        return rows

    def _checked(self, where: str) -> str:
        if _LABELS.fullmatch(where) is None:
            raise AnswerRefused("labels are not understood")
        if len(self._valid) >= _MAX_KNOWN_LABELS:
            self._valid.clear()
        return self._valid.setdefault(where, where)


def route_clusters(inputs: SnapshotInputs) -> dict[str, tuple[str, ...]]:
    """Clusters that lead to a partner, by partner. A route that another domain relays uses the clusters of that domain's route."""
    found: dict[str, tuple[str, ...]] = {}
    for route in inputs.outbound:
        if inputs.relayed(route):
            continue
        if route.tunnel and not route.via:
            found[route.destination] = tuple(tunnel.cluster_names(route).values())
        else:
            found[route.destination] = tuple(outbound_name(route, port) for port in ways(inputs, route))
    return found


class RouteRows:
    """Labels of routes and of their clusters, made once for each configuration."""

    def __init__(self, clusters: Mapping[str, Sequence[str]], domain: str) -> None:
        self.routes = [
            (route_labels(domain, destination), [labels(**{CLUSTER: name}) for name in names])
            for destination, names in clusters.items()
        ]
        self.zeros: dict[str, float] = {where: 0 for _, names in self.routes for where in names}


def families_of(rows: EnvoyRows, known: RouteRows) -> list[Family]:
    """Envoy's families, complete, and what routes sent and received. Envoy counts from the first request on; a counter that is missing before
    that would hide its first increase from `rate()`, so promised ones begin with 0."""
    for name in _ZEROS:
        if known.zeros.keys() - rows.setdefault(name, {}).keys():
            rows[name] = {**known.zeros, **rows[name]}
    sent = [(where, _sum(rows[_SENT], names)) for where, names in known.routes]
    received = [(where, _sum(rows[_RECEIVED], names)) for where, names in known.routes]
    return [
        *(
            Family(name, each.help, each.kind, list(rows[name].items()))
            for name, each in FAMILIES.items()
            if name in rows
        ),
        Family("coterie_route_sent_bytes_total", "Bytes sent to a partner, without TLS.", "counter", sent),
        Family(
            "coterie_route_received_bytes_total", "Bytes received from a partner, without TLS.", "counter", received
        ),
    ]


def _sum(rows: Mapping[str, float], wanted: Iterable[str]) -> float:
    return sum(rows.get(each, 0) for each in wanted)


class EnvoyStatsSource:
    name = "envoy"

    def __init__(self, admin: Admin, domain: str, inputs: Callable[[], SnapshotInputs | None]) -> None:
        self._admin = admin
        self._domain = domain
        self._inputs = inputs
        self._parser = EnvoyPageParser()
        self._path = f"/stats/prometheus?usedonly&filter={quote(query_filter(domain))}"
        self._known: tuple[SnapshotInputs | None, RouteRows] = (None, RouteRows({}, domain))

    async def families(self) -> Sequence[Family]:
        try:
            text = await self._admin.ask(self._path, limit=MAX_BYTES)
            rows = self._parser.rows(text)
        except (AdminError, AnswerRefused) as problem:
            raise SourceFailed(str(problem)) from problem
        return families_of(rows, self._route_rows())

    def _route_rows(self) -> RouteRows:
        inputs = self._inputs()
        if inputs is not self._known[0]:
            self._known = (inputs, RouteRows(route_clusters(inputs) if inputs is not None else {}, self._domain))
        return self._known[1]
