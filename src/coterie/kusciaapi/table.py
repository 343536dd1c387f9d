"""All operations of KusciaAPI. A module of services appends its own here."""

from __future__ import annotations

from coterie.kusciaapi import health
from coterie.kusciaapi.operations import Operation

OPERATIONS: tuple[Operation, ...] = (*health.OPERATIONS,)
