"""Who made what lies at a place: DomainDataRecords, one for each place that tasks registered or wrote.

    place (source and path, links followed) ──record_name──> DomainDataRecord: initiator, job, flow, written or not

The domain's data mesh writes them, nobody else: partners have no rights on them, engines cannot ask for it, and they are never
taken from another control plane. A record is about a place and not about an entry of the catalogue, because files
outlive their entries.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.data import DOMAIN_DATA_RECORDS, DomainDataRecord, DomainDataRecordSpec
from coterie.kuscia.sources.protocol import SourceInfo

_LONGEST = 60
_MOST_FILES = 10_000


def record_name(location: Sequence[str]) -> str:
    return "place-" + hashlib.sha256("\0".join(location).encode()).hexdigest()[: _LONGEST - 6]


def foreign_fault(record: DomainDataRecord | None, domain: str, place: str) -> str:
    """Why the domain's own people cannot register what lies there as theirs; empty: they can. Pure."""
    if record is None or record.spec.initiator == domain:
        return ""
    spec = record.spec
    job = f", job {spec.job}" if spec.job else ""
    return (
        f'{place} was made by a task of "{spec.initiator}"{job}; take another path, or, if it is yours now, remove the '
        f"record first: coterie delete domaindatarecord {record.metadata.name} -n {domain}"
    )


def fingerprint(info: SourceInfo, location: Sequence[str]) -> str:
    """Which local files lie at a place, to notice that somebody replaced them; empty for other sources and for none."""
    if info.kind != "localfs":
        return ""
    root = Path("/", *location[3:])
    found = hashlib.sha256()
    try:
        files = sorted(each for each in root.rglob("*") if each.is_file()) if root.is_dir() else [root]
        for each in files[:_MOST_FILES]:
            stat = os.stat(each)
            found.update(f"{each}\0{stat.st_dev}\0{stat.st_ino}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    except OSError:
        return ""
    return found.hexdigest()[:32]


class DataRecords:
    """Raises ApiError or TransportError."""

    def __init__(self, client: Client, domain: str) -> None:
        self._client = client
        self._domain = domain

    async def find(self, location: Sequence[str]) -> DomainDataRecord | None:
        try:
            found: DomainDataRecord = await self._client.get(DOMAIN_DATA_RECORDS, record_name(location), self._domain)
        except NotFound:
            return None
        return found

    async def all(self) -> Sequence[DomainDataRecord]:
        return (await self._client.list(DOMAIN_DATA_RECORDS, self._domain)).items

    async def put(self, spec: DomainDataRecordSpec) -> None:
        """In place of what was recorded for the place."""
        name = record_name(spec.location)
        plain = {**_EMPTY, **msgspec.to_builtins(spec)}
        try:
            await self._client.create(
                DOMAIN_DATA_RECORDS.as_dynamic, {"metadata": {"name": name}, "spec": plain}, self._domain
            )
        except AlreadyExists:
            await self._client.patch(DOMAIN_DATA_RECORDS, name, self._domain, {"spec": plain})

    async def remove(self, location: Sequence[str]) -> None:
        try:
            await self._client.delete(DOMAIN_DATA_RECORDS, record_name(location), self._domain)
        except NotFound:
            return


_EMPTY = {"job": "", "flow": "", "task": "", "writtenBy": "", "fingerprint": ""}
"""Defaults are not written, and a merge would keep what was there."""
