"""How `kubectl logs` asks for a log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from coterie.base.clock import parse_rfc3339
from coterie.base.container_logs import LogOptions
from coterie.kube.api.errors import BadRequest

_TIME = "%Y-%m-%dT%H:%M:%S.%f"


def read_options(params: Mapping[str, list[str]], now: datetime) -> LogOptions:
    """Options from a query; BadRequest names what cannot be read."""

    def number(name: str, least: int = 0) -> int | None:
        text = (params.get(name) or [""])[0]
        if not text:
            return None
        if not text.isdecimal() or len(text) > 18 or int(text) < least:
            raise BadRequest(f"{name} must be a whole number of at least {least}")
        return int(text)

    def flag(name: str) -> bool:
        return (params.get(name) or [""])[0].lower() in ("1", "t", "true")

    since = (params.get("sinceTime") or [""])[0]
    seconds = number("sinceSeconds", 1)
    if since and seconds is not None:
        raise BadRequest("at most one of sinceTime or sinceSeconds may be specified")
    if since:
        try:
            begin = parse_rfc3339(since)
        except ValueError as problem:
            raise BadRequest("sinceTime must be a time such as 2026-01-02T03:04:05Z") from problem
        since = begin.strftime(_TIME)
    if seconds is not None:
        since = (now - timedelta(seconds=seconds)).strftime(_TIME)
    stream = (params.get("stream") or ["All"])[0] or "All"
    if stream not in ("All", "Stdout", "Stderr"):
        raise BadRequest("stream must be All, Stdout or Stderr")
    return LogOptions(
        follow=flag("follow"),
        previous=flag("previous"),
        timestamps=flag("timestamps"),
        tail=number("tailLines"),
        since=since,
        limit=number("limitBytes", 1),
        stream=stream,
    )
