"""Which writes a job costs, counted in the logs of both stores: every change of an object is one revision there.

    python -m benchmarks.job_writes            the table of one trivial job, by kind and writer
    python -m benchmarks.job_writes --each     and every write in order

Leases and the heartbeats of nodes and routes go on without jobs and are left out. Who wrote follows from what changed:
all parts of a node are clients of the same user.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import orjson

from benchmarks.job_network import PARTIES, TRIVIAL, JobNetwork, Side, job, job_network
from coterie.kube.api.meta import Object

_BY_THEMSELVES = frozenset(("leases", "nodes", "gateways", "domainroutes", "clusterdomainroutes", "domains"))
_CREATORS = {
    "kusciatasks": "kusciajob", "kusciatasksummaries": "interconn", "kusciajobsummaries": "interconn",
    "taskresourcegroups": "kusciatask", "taskresources": "kusciatask", "pods": "kusciatask", "services": "kusciatask",
    "configmaps": "kusciatask", "endpoints": "endpoints", "endpointslices": "endpointslice", "events": "events",
}  # fmt: skip
_REMOVERS = {
    "pods": "kusciatask",
    "services": "kusciatask",
    "taskresourcegroups": "kusciatask",
    "endpoints": "endpoints",
}
_SETTLE = 1.5
"""Seconds after the end in which what only informs is written, and what is left is removed."""


@dataclass(frozen=True, slots=True)
class Write:
    side: str
    kind: str
    verb: str
    writer: str
    what: str

    def __str__(self) -> str:
        return f"{self.side:6} {self.verb:7} {self.kind:20} {self.writer:18} {self.what}"


def revision(side: Side) -> int:
    with closing(_open(side)) as log:
        return int(log.execute("SELECT max(revision) FROM log").fetchone()[0])


def writes_since(side: Side, after: int) -> Iterator[Write]:
    with closing(_open(side)) as log:
        rows = log.execute(
            "SELECT key, value, previous, deleted FROM log WHERE revision > ? ORDER BY revision", (after,)
        ).fetchall()
        for key, value, previous, deleted in rows:
            kind, namespace = key.split("/")[3], key.split("/")[4]
            if kind in _BY_THEMSELVES:
                continue
            if deleted:
                yield Write(side.domain, kind, "delete", _REMOVERS.get(kind, "garbage collector"), "")
                continue
            new: Object = orjson.loads(value) if value is not None else {}
            if not previous:
                yield Write(side.domain, kind, "create", _creator(side, kind, namespace), _phase(new))
                continue
            found = log.execute("SELECT value FROM log WHERE revision = ?", (previous,)).fetchone()
            old: Object = orjson.loads(found[0]) if found is not None and found[0] is not None else {}
            what = sorted(_changed(old, new))
            yield Write(
                side.domain, kind, "update", _updater(kind, what, new), f"{_phase(new)} {' '.join(what)}".strip()
            )


def _open(side: Side) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{side.paths.database}?mode=ro", uri=True)


def _phase(obj: Object) -> str:
    return str((obj.get("status") or {}).get("phase") or obj.get("reason") or "")


def _changed(old: Object, new: Object) -> Iterator[str]:
    for part in ("metadata", "spec", "status"):
        before, after = old.get(part) or {}, new.get(part) or {}
        for key in before.keys() | after.keys():
            if key not in ("managedFields", "generation", "lastReconcileTime") and before.get(key) != after.get(key):
                yield f"{part}.{key}"


def _creator(side: Side, kind: str, namespace: str) -> str:
    if kind == "kusciajobs":
        return "user" if side.domain == PARTIES[0] and namespace == "cross-domain" else "interconn"
    return _CREATORS.get(kind, "")


def _updater(kind: str, what: Sequence[str], new: Object) -> str:
    if kind == "pods":
        agent = {"status.phase", "status.containerStatuses", "status.podIP"} & set(what)
        return "scheduler" if "spec.nodeName" in what else "agent" if agent else "taskresourcegroup"
    if kind == "taskresources":
        reason = next(
            (each.get("reason") or "" for each in new["status"]["conditions"] if each["type"] == _phase(new)), ""
        )
        heard_so = "told so" in reason
        return "interconn" if heard_so else "scheduler" if _phase(new) == "Reserved" else "taskresourcegroup"
    if kind in ("kusciajobsummaries", "kusciatasksummaries"):
        return "interconn"
    heard = {"status.approveStatus", "status.stageStatus", "status.partyTaskStatus"}
    if kind in ("kusciajobs", "kusciatasks") and what and set(what) <= heard:
        return "interconn"
    return {"kusciajobs": "kusciajob", "kusciatasks": "kusciatask", "taskresourcegroups": "taskresourcegroup"}.get(
        kind, ""
    )


async def writes_of_one(net: JobNetwork, name: str, image: str = TRIVIAL) -> list[Write]:
    """Of a job from its creation until nothing of its task is left; its removal is not counted."""
    before = {side.domain: revision(side) for side in net.sides.values()}
    made = job(name, image=image)
    _, wrong = await net.run(made)
    if wrong:
        raise RuntimeError("; ".join(wrong))
    await asyncio.sleep(_SETTLE)
    found = [write for side in net.sides.values() for write in writes_since(side, before[side.domain])]
    await net.remove(made)
    await asyncio.sleep(_SETTLE)  # nothing of it may be counted for the next one
    return found


def table(writes: Sequence[Write]) -> str:
    counted = Counter((write.kind, write.verb, write.writer) for write in writes)
    lines = ["| kind | verb | writer | " + " | ".join(PARTIES) + " | both |", "|---|---|---|---:|---:|---:|"]
    for kind, verb, writer in sorted(counted):
        sides = [
            sum((each.kind, each.verb, each.writer, each.side) == (kind, verb, writer, side) for each in writes)
            for side in PARTIES
        ]
        lines.append(f"| {kind} | {verb} | {writer} | {' | '.join(map(str, sides))} | {sum(sides)} |")
    sides = [sum(each.side == side for each in writes) for side in PARTIES]
    lines.append(f"| all | | | {' | '.join(map(str, sides))} | {len(writes)} |")
    return "\n".join(lines)


async def _main(each: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="coterie-writes-") as place:
        async with job_network(Path(place)) as net:
            await writes_of_one(net, "warm-up")
            found = await writes_of_one(net, "one")
            if each:
                print("\n".join(map(str, found)), end="\n\n")
            print(table(found), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.job_writes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", action="store_true", help="every write in order")
    asyncio.run(_main(parser.parse_args(arguments).each))
    return 0


if __name__ == "__main__":
    sys.exit(main())
