"""Which DomainData is old enough to be removed? Pure.

made by a job       annotation `coterie.io/made-by-job`, which the data mesh sets, or the vendor `secretflow`, as in Kuscia
older than kept     by `creationTimestamp`
not in use          the job that made it has ended, or is gone

Data that was registered by hand has neither mark. Copies of granted data follow their original and are left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import DomainData

VENDOR = "secretflow"


@dataclass(frozen=True, slots=True)
class Settings:
    retention: float
    """Seconds for which data is kept after it was made."""
    period: float = 600.0
    """Seconds between two passes."""
    batch: int = 100
    """So many are removed without a pause."""
    pause: float = 5.0
    """Seconds of pause after each batch."""


def expired(datas: Iterable[DomainData], running: Collection[str], now: datetime, retention: float) -> list[DomainData]:
    """The oldest first. `running`: names of the jobs that have not ended."""
    limit = now - timedelta(seconds=retention)
    found = [
        (made, data)
        for data in datas
        if made_by_job(data)
        and _maker(data) not in running
        and not data.metadata.deleting
        and (made := parse_time(data.metadata.creation_timestamp)) is not None
        and made < limit
    ]
    return [data for _, data in sorted(found, key=lambda pair: (pair[0], str(pair[1].metadata.key)))]


def made_by_job(data: DomainData) -> bool:
    marks = data.metadata.labels or {}
    if labels.KUSCIA_OWNER_REFERENCES in marks:
        return False
    return bool(_maker(data)) or marks.get(labels.KUSCIA_DOMAINDATA_VENDOR) == VENDOR


def _maker(data: DomainData) -> str:
    return (data.metadata.annotations or {}).get(labels.COTERIE_MADE_BY, "")
