"""Completion indexes as text: `0-3,5,8-9`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from coterie.kube.api.labels import JOB_COMPLETION_INDEX
from coterie.kube.api.types.pods import Pod


def parse(text: str | None, below: int) -> set[int]:
    """The indexes in the text that are smaller than `below`; parts nobody can read are left out."""
    out: set[int] = set()
    for part in (text or "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            continue
        start, end = int(first), int(last) if dash else int(first)
        out.update(range(start, min(end, below - 1) + 1))
    return out


def write(indexes: Iterable[int]) -> str:
    parts: list[str] = []
    run: list[int] = []
    for index in sorted(indexes):
        if run and index == run[-1] + 1:
            run.append(index)
            continue
        if run:
            parts.append(_run(run))
        run = [index]
    if run:
        parts.append(_run(run))
    return ",".join(parts)


def _run(run: list[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def of_pod(pod: Pod) -> int | None:
    text = (pod.metadata.annotations or {}).get(JOB_COMPLETION_INDEX, "")
    return int(text) if text.isascii() and text.isdecimal() else None
