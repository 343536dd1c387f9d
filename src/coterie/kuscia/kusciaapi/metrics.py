"""What KusciaAPI and ConfManager count, under the names that Kuscia's HTTP servers have (`gin_*`).

Labels are methods, paths and codes of known operations: what a caller writes into a path never becomes a row. Kuscia's label
`host`, which the caller chooses, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.base.exposition import Family, Row, labels
from coterie.base.measurements import Histogram

_METHODS = frozenset(("GET", "HEAD", "POST"))
_OTHER = "other"


@dataclass(slots=True)
class _Route:
    """One code, method and path."""

    handler: str
    durations: Histogram = field(default_factory=Histogram)
    received: int = 0
    sent: int = 0


class KusciaApiMetrics:
    def __init__(self) -> None:
        self._routes: dict[tuple[int, str, str], _Route] = {}
        self._calls: dict[tuple[str, str], int] = {}

    def request(
        self, method: str, path: str, handlers: Mapping[str, str], code: int, seconds: float, received: int, sent: int
    ) -> None:
        """`handlers`: names of the known paths."""
        url = path if path in handlers else _OTHER
        key = (code, method if method in _METHODS else _OTHER, url)
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = _Route(handlers.get(url, _OTHER))
        found.durations.add(seconds)
        found.received += received
        found.sent += sent

    def call(self, method: str, failed: bool) -> None:
        """An operation was called, by HTTP, gRPC or a lite."""
        key = (method, "failed" if failed else "succeeded")
        self._calls[key] = self._calls.get(key, 0) + 1

    def families(self) -> Sequence[Family]:
        routes = [
            (labels(code=str(code), method=method, url=url), each) for (code, method, url), each in self._routes.items()
        ]

        def sizes(value: str) -> list[Row]:
            out: list[Row] = []
            for where, each in routes:
                out += [(f"_sum {where}", getattr(each, value)), (f"_count {where}", each.durations.count)]
            return out

        return [
            Family(
                "gin_requests_total",
                "HTTP requests of KusciaAPI and ConfManager.",
                "counter",
                [(f"{where},{labels(handler=each.handler)}", each.durations.count) for where, each in routes],
            ),
            Family(
                "gin_request_duration_seconds",
                "Time from the request to its answer; of streams, to their first byte.",
                "histogram",
                [row for where, each in routes for row in each.durations.rows(where)],
            ),
            Family("gin_request_size_bytes", "Size of request bodies.", "summary", sizes("received")),
            Family("gin_response_size_bytes", "Size of response bodies, streams left out.", "summary", sizes("sent")),
            Family(
                "coterie_kusciaapi_calls_total",
                "Calls of KusciaAPI and ConfManager, over HTTP and gRPC.",
                "counter",
                [(labels(method=method, result=result), count) for (method, result), count in self._calls.items()],
            ),
        ]
