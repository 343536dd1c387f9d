"""Which pod has which devices, on disk: written before a container starts, read when the agent starts.

Pods outlive the agent. Without the record the next agent would give a device to a second pod while the first still uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from coterie.base.files import private_directory, read_bytes_or_none, write_atomic
from coterie.base.log import logger
from coterie.kube.agent.devices.allocation import PodDevices

log = logger("agent.devices")
FILE = "allocations.json"


@dataclass(frozen=True, slots=True)
class AllocationRecords:
    pods: Mapping[str, PodDevices] = field(default_factory=dict)
    """By uid."""
    resources: tuple[str, ...] = ()
    """What the Node offered last: when a resource is not found again, the Node must say 0."""


def load(directory: Path) -> AllocationRecords | None:
    """None: there was a file and nobody can read it."""
    data = read_bytes_or_none(directory / FILE)
    if data is None:
        return AllocationRecords()
    try:
        return msgspec.json.decode(data, type=AllocationRecords)
    except msgspec.DecodeError as error:
        log.error("The record of device allocations is unreadable", error=error, file=str(directory / FILE))
        return None


def save(directory: Path, records: AllocationRecords) -> None:
    """On disk, after a power cut too, when this returns."""
    private_directory(directory)
    write_atomic(directory / FILE, msgspec.json.encode(records))
