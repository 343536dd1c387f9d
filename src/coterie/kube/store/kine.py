"""What Kuscia's API server (K3s) has written into MySQL through kine, to migrate from.

kine keeps etcd's keys in one table: each change is a row, `id` is the revision, the newest row of a name counts. Objects of
custom resources are JSON, those of Kubernetes' own kinds are protobuf, some of them under keys of their own. What a running
Kubernetes makes anew by itself (nodes, leases, events, tokens, its own namespaces) is not taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from coterie.base.store_address import StoreAddress
from coterie.kube.api import wire
from coterie.kube.store.mysql_connection import MysqlStoreConnection, StatementFailed
from coterie.kube.store.protocol import StoreError, StoreRecord, StoreUnavailable

_ROOT = "/registry/"
_OWN_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_MAGIC = b"k8s\x00"
_SEALED = b"k8s:enc:"
_PAGE = 500
_NEWEST = """SELECT k.id, k.name, k.created, k.create_revision, k.lease, k.value FROM
(SELECT MAX(id) AS id FROM kine WHERE name > {after} AND name LIKE '/registry/%' GROUP BY name ORDER BY name LIMIT {limit}) n
JOIN kine k ON k.id = n.id ORDER BY k.name"""
_GONE = "SELECT name FROM kine WHERE id IN {ids} AND deleted <> 0"


@dataclass(slots=True)
class KineContent:
    revision: int = 0
    records: list[StoreRecord] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Why, and how many."""


def kine_connection(address: StoreAddress) -> MysqlStoreConnection | None:
    """A connection to a database that is to be read as kine's: the address says so, or there is kine's table and none of ours.
    Blocking."""
    problem: StoreError = StoreUnavailable(f"{address.label}: no host")
    for host in address.hosts:
        line = MysqlStoreConnection(address, host, isolation="REPEATABLE READ", idle_seconds=600)
        try:
            line.connect(database=True)
            named = dict(address.options).get("table") == "kine"
            tables = {
                each[0].decode() if isinstance(each[0], bytes) else each[0]
                for each in line.query("SHOW TABLES WHERE 1 = 1")
            }
            if "kine" in tables and (named or "coterie_head" not in tables):
                return line
            line.close()
            if named:
                raise StoreError(f"{address.label}: there is no table kine")
            return None
        except StoreUnavailable as failed:
            line.close()
            problem = failed
    raise problem


def read_kine(line: MysqlStoreConnection, wanted: Collection[str]) -> KineContent:
    """`wanted`: kinds to take, as "group/plural" ("core/secrets"). One snapshot. Blocking."""
    found = KineContent()
    try:
        line.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        ((newest,),) = line.query("SELECT COALESCE(MAX(id), 0) FROM kine")
        found.revision = int(newest)
        after = ""
        while True:
            rows = line.query(_NEWEST.format(after=_text(after), limit=_PAGE))
            if not rows:
                break
            ids = "(" + ",".join(str(each[0]) for each in rows) + ")"
            gone = {_decoded(each[0]) for each in line.query(_GONE.format(ids=ids))}
            for row in rows:
                name = _decoded(row[1])
                if name not in gone:
                    _take(found, name, row, wanted)
            after = _decoded(rows[-1][1])
            if len(rows) < _PAGE:
                break
        line.run("COMMIT")
    except StatementFailed as problem:
        raise StoreError(f"kine's table cannot be read: {problem}") from problem
    return found


def _take(found: KineContent, name: str, row: Sequence[Any], wanted: Collection[str]) -> None:
    id, _, created, create_revision, lease, value = row
    parts = name.removeprefix(_ROOT).split("/")
    # Custom resources: /registry/group/plural/...; Kubernetes' own kinds: /registry/plural/...
    kind = f"{parts[0]}/{parts[1]}" if "." in parts[0] and len(parts) > 2 else f"core/{parts[0]}"
    if kind not in wanted or lease:
        found.skipped[f"{kind.removeprefix('core/')}: not taken, or made anew by itself"] += 1
        return
    raw = value.encode() if isinstance(value, str) else bytes(value or b"")
    if raw.startswith(_SEALED):
        found.skipped[f"{kind}: encrypted by K3s; run `k3s secrets-encrypt disable` and `reencrypt` there first"] += 1
        return
    try:
        obj = wire.decode(raw) if raw.startswith(_MAGIC) else orjson.loads(raw)
        metadata = obj["metadata"]
        namespace, own = metadata.get("namespace") or "", metadata["name"]
        ordered = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    except (ValueError, KeyError, TypeError, AttributeError, wire.DecodeError):
        found.skipped[f"{kind}: cannot be read"] += 1
        return
    if kind.startswith("core/") and _kubernetes_own(kind, namespace, own, obj):
        found.skipped[f"{kind.removeprefix('core/')}: of Kubernetes itself"] += 1
        return
    metadata.pop("resourceVersion", None)
    metadata.pop("selfLink", None)
    content = orjson.dumps({**ordered, **{key: each for key, each in obj.items() if key not in ordered}})
    key = _ROOT + "/".join(filter(None, (kind, namespace, own)))
    found.records.append(StoreRecord(key, content, int(id), int(id) if created else int(create_revision)))


def _kubernetes_own(kind: str, namespace: str, name: str, obj: dict[str, Any]) -> bool:
    if namespace in _OWN_NAMESPACES or (kind == "core/namespaces" and name in _OWN_NAMESPACES):
        return True
    if kind == "core/configmaps":
        return name == "kube-root-ca.crt"
    return kind == "core/secrets" and obj.get("type") == "kubernetes.io/service-account-token"


def _decoded(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _text(name: str) -> str:
    return f"x'{name.encode().hex()}'"
