"""What a witness must not forget, in the store of a control plane of several members: whoever leads knows what all before it cosigned.

    WitnessStore ── rows that a transaction changed, before it ends ──> /evidence/witness/KEY
    a member that begins to lead <── all rows, before it answers partners

A row is written only over the one that was read (compare-and-swap): of two members that take each other for the past, one cosigns nothing.
Called from threads, as SQLite is; the store lives on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from coterie.kube.store.protocol import CompareFailed, PutOp, Store, StoreError
from coterie.kuscia.api.evidence import EvidenceError

WITNESS = "/evidence/witness/"
_SECONDS = 10.0
_ROWS = 50
"""In one transaction: etcd takes 128 operations, and these may have 64 KiB each."""
_A = TypeVar("_A")


class SharedWitnessRows:
    """One member's view; made on the loop that the store lives on. Methods block, and raise EvidenceError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._revisions: dict[str, int] = {}

    def load(self) -> dict[str, bytes]:
        """All that there are; what is kept from now on follows these."""
        return self._wait(self._load())

    def keep(self, rows: Mapping[str, bytes]) -> None:
        """After an error it is not known what was kept: `load` says."""
        self._wait(self._keep(rows))

    def _wait(self, work: Coroutine[Any, Any, _A]) -> _A:
        asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return asked.result(_SECONDS)
        except TimeoutError:
            asked.cancel()
            raise EvidenceError(
                f"what partners showed cannot be kept: the store did not answer within {_SECONDS:g} s"
            ) from None
        except CompareFailed:
            raise EvidenceError("another member of the control plane was told more by this partner meanwhile") from None
        except StoreError as problem:
            raise EvidenceError(f"what partners showed cannot be kept in the store: {problem}") from problem

    async def _load(self) -> dict[str, bytes]:
        records = (await self._store.scan(WITNESS)).records
        self._revisions = {each.key.removeprefix(WITNESS): each.revision for each in records}
        return {each.key.removeprefix(WITNESS): each.value for each in records}

    async def _keep(self, rows: Mapping[str, bytes]) -> None:
        items = sorted(rows.items())
        for at in range(0, len(items), _ROWS):
            part = items[at : at + _ROWS]
            ops = [PutOp(f"{WITNESS}{key}", value, self._revisions.get(key, 0)) for key, value in part]
            revisions = await self._store.commit(ops)
            self._revisions.update(zip((key for key, _ in part), revisions, strict=True))
