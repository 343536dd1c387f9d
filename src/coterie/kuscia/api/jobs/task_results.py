"""What tasks made, from the records that the data mesh keeps of it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from coterie.kuscia.api import evidence
from coterie.kuscia.api.types.data import DomainDataRecord

_MOST = 16


def results_by_task(record: DomainDataRecord) -> tuple[str, ...]:
    """An index of records."""
    return (record.spec.task,) if record.spec.task else ()


def result_values(records: Iterable[DomainDataRecord]) -> tuple[str, ...]:
    """What is committed to as the results of one party; many are one value: their list."""
    found = sorted(
        f"{each.spec.domain_data_id}@{evidence.object_digest(msgspec.to_builtins(each.spec))}" for each in records
    )
    if len(found) <= _MOST:
        return tuple(found)
    return (f"{len(found)} results@{hashlib.sha256(','.join(found).encode()).hexdigest()}",)
