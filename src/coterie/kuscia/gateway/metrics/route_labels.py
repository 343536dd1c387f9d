"""The labels of a route, made once for all sources and scrapes."""

from __future__ import annotations

from functools import lru_cache

from coterie.base.exposition import labels


@lru_cache(maxsize=8192)
def route_labels(source: str, destination: str) -> str:
    return labels(source=source, destination=destination)
