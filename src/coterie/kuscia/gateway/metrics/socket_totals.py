"""What connections to partners did, summed over all that were seen, also those that are closed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coterie.base.exposition import Family, Row, labels
from coterie.kube.network.pods.sock_diag import Endpoint, TcpConnection
from coterie.kuscia.gateway.metrics.route_labels import route_labels

_KIND = "ss"


@dataclass(slots=True)
class PartnerTotals:
    connections: int = 0
    retransmits: int = 0
    rtt: float | None = None
    """Mean over what is open now, in seconds; None while nothing is."""


class SocketTotals:
    """Counters of a connection end with it, so what it did since the last look is added up by partner."""

    def __init__(self) -> None:
        self.partners: dict[str, PartnerTotals] = {}
        self._seen: dict[tuple[bytes, str], int] = {}
        """Retransmits of open connections at the last look, by cookie and partner."""

    def update(
        self, partners: Iterable[str], of: Mapping[Endpoint, Sequence[str]], found: Iterable[TcpConnection]
    ) -> None:
        """`partners`: all there are; others are forgotten. `of`: the partners behind an address and port. Several may share one: a connection
        there counts for each."""
        self.partners = {name: self.partners.get(name) or PartnerTotals() for name in partners}
        seen: dict[tuple[bytes, str], int] = {}
        rtts: dict[str, list[float]] = {}
        for each in found:
            for name in of.get(each.remote, ()):
                totals = self.partners.get(name)
                if totals is None:
                    continue
                key = (each.cookie, name)
                before = self._seen.get(key)
                totals.connections += before is None
                totals.retransmits += max(0, each.retransmits - (before or 0))
                seen[key] = each.retransmits
                rtts.setdefault(name, []).append(each.rtt)
        self._seen = seen
        for name, totals in self.partners.items():
            measured = rtts.get(name)
            totals.rtt = sum(measured) / len(measured) if measured else None

    def families(self, domain: str) -> list[Family]:
        rtt: list[Row] = []
        retransmits: list[Row] = []
        connections: list[Row] = []
        rate: list[Row] = []
        route_rtt: list[Row] = []
        route_retransmits: list[Row] = []
        for name, totals in self.partners.items():
            where = route_labels(domain, name)
            route_retransmits.append((where, totals.retransmits))
            retransmits.append((_labels(name, "sum"), totals.retransmits))
            connections.append((_labels(name, "sum"), totals.connections))
            if totals.connections:
                rate.append((_labels(name, "rate"), totals.retransmits / totals.connections))
            if totals.rtt is not None:
                rtt.append((_labels(name, "avg"), totals.rtt * 1000))
                route_rtt.append((where, totals.rtt))
        return [
            Family("ss_rtt", "Mean round-trip time of open connections to a partner, in milliseconds.", "gauge", rtt),
            Family("ss_retrans", "TCP segments sent again to a partner.", "counter", retransmits),
            Family("ss_total_connections", "TCP connections to a partner that were seen.", "counter", connections),
            Family("ss_retran_rate", "TCP segments sent again per connection to a partner.", "gauge", rate),
            Family(
                "coterie_route_rtt_seconds", "Mean round-trip time of open connections of a route.", "gauge", route_rtt
            ),
            Family(
                "coterie_route_retransmits_total", "TCP segments of a route sent again.", "counter", route_retransmits
            ),
        ]


def _labels(partner: str, function: str) -> str:
    return labels(type=_KIND, remote_domain=partner, aggregation_function=function)
