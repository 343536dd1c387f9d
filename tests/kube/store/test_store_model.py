"""Both stores against a model that is too simple to be wrong: the list of everything that ever happened."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coterie.kube.store import (
    Compacted,
    CompareFailed,
    DeleteOp,
    FutureRevision,
    MemoryStore,
    Op,
    PutOp,
    RecordPage,
    SqliteStore,
    Store,
    StoreError,
    StoreEvent,
    StoreRecord,
)

T = TypeVar("T")


class Model:
    def __init__(self) -> None:
        self.events: list[StoreEvent] = []
        self.compacted = 0

    @property
    def revision(self) -> int:
        return len(self.events)

    def state(self, revision: int) -> dict[str, StoreRecord]:
        state: dict[str, StoreRecord] = {}
        for event in self.events[:revision]:
            if event.value is None:
                del state[event.key]
            else:
                state[event.key] = StoreRecord(event.key, event.value, event.revision, event.created)
        return state

    def commit(self, ops: list[Op]) -> list[int] | tuple[int, str, int]:
        """The revisions, or index, key and actual revision of the op that does not hold."""
        state = {key: (record.revision, record.created) for key, record in self.state(self.revision).items()}
        events: list[StoreEvent] = []
        for index, op in enumerate(ops):
            actual, created = state.get(op.key, (0, 0))
            revision = self.revision + index + 1
            if isinstance(op, PutOp):
                if op.expect not in (None, actual):
                    return index, op.key, actual
                created = created or revision
                state[op.key] = (revision, created)
                events.append(StoreEvent(op.key, revision, op.value, created, actual))
            else:
                if not actual or op.expect not in (None, actual):
                    return index, op.key, actual
                del state[op.key]
                events.append(StoreEvent(op.key, revision, None, created, actual))
        self.events += events
        return [event.revision for event in events]

    def refuses(self, revision: int) -> type[StoreError] | None:
        if revision > self.revision:
            return FutureRevision
        return Compacted if 0 < revision < self.compacted else None


KEYS = st.sampled_from(["/a", "/a/1", "/a/2", "/b/1", "/b/é", "/c"])
PREFIXES = st.sampled_from(["", "/", "/a", "/a/", "/b/", "/none"])
VALUES = st.sampled_from([b"", b"1", b"22", b"aside by its length", b"also kept aside, another"])
EXPECTATIONS = st.sampled_from(["any", "none", "right", "wrong"])
OPS = st.lists(st.tuples(st.booleans(), KEYS, VALUES, EXPECTATIONS), min_size=1, max_size=4)
STEPS_BACK = st.integers(min_value=-1, max_value=12)


class StoresAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model()
        self.stores: list[Store] = [MemoryStore(blob_threshold=10), self._sqlite()]
        for store in self.stores:
            self.run(store.open())

    def _sqlite(self) -> SqliteStore:
        return SqliteStore(Path(self.folder.name) / "s.db", blob_threshold=10)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self.runner.close()
        self.folder.cleanup()

    def _ops(self, drawn: list[tuple[bool, str, bytes, str]]) -> list[Op]:
        now = self.model.state(self.model.revision)
        ops: list[Op] = []
        for put, key, value, expectation in drawn:
            right = now[key].revision if key in now else 0
            expect = {"any": None, "none": 0, "right": right, "wrong": right + 1}[expectation]
            ops.append(PutOp(key, value, expect) if put else DeleteOp(key, expect))
        return ops

    @rule(drawn=OPS)
    def commit(self, drawn: list[tuple[bool, str, bytes, str]]) -> None:
        ops = self._ops(drawn)
        told = self.model.commit(ops)
        for store in self.stores:
            try:
                assert self.run(store.commit(ops)) == told
            except CompareFailed as refused:
                assert (refused.index, refused.key, refused.actual) == told

    @rule(batches=st.lists(OPS, min_size=2, max_size=5))
    def submit_at_once(self, batches: list[list[tuple[bool, str, bytes, str]]]) -> None:
        """Several writes in one turn of the loop: each is decided on top of those before, though none is visible."""
        decided = [(ops, self.model.commit(ops)) for ops in map(self._ops, batches)]

        async def submit(store: Store) -> None:
            futures: list[tuple[asyncio.Future[list[int]], object]] = []
            for ops, told in decided:
                try:
                    futures.append((store.submit(ops), told))
                except CompareFailed as refused:
                    assert (refused.index, refused.key, refused.actual) == told
            for future, told in futures:
                assert await future == told

        for store in self.stores:
            self.run(submit(store))

    @rule(prefix=PREFIXES, back=STEPS_BACK, after=st.sampled_from(["", "/a", "/a/1", "/b"]), limit=st.integers(0, 3))
    def scan(self, prefix: str, back: int, after: str, limit: int) -> None:
        revision = max(self.model.revision - back, 0)
        refused = self.model.refuses(revision)
        at = revision or self.model.revision
        records = [
            record for key, record in sorted(self.model.state(at).items()) if key.startswith(prefix) and key > after
        ]
        wanted = RecordPage(at, records[:limit] if limit else records, bool(limit) and len(records) > limit)
        for store in self.stores:
            try:
                assert self.run(store.scan(prefix, revision=revision, after=after, limit=limit)) == wanted
                assert refused is None
            except (Compacted, FutureRevision) as error:
                assert type(error) is refused

    @rule(key=KEYS, back=STEPS_BACK)
    def get(self, key: str, back: int) -> None:
        revision = max(self.model.revision - back, 0)
        refused = self.model.refuses(revision)
        for store in self.stores:
            try:
                assert self.run(store.get(key, revision)) == self.model.state(revision or self.model.revision).get(key)
                assert refused is None
            except (Compacted, FutureRevision) as error:
                assert type(error) is refused

    @rule(prefix=PREFIXES, back=STEPS_BACK)
    def replay(self, prefix: str, back: int) -> None:
        after = max(self.model.revision - back, 0)
        wanted = [event for event in self.model.events[after:] if event.key.startswith(prefix)]

        async def watch(store: Store) -> None:
            got: list[StoreEvent] = []
            try:
                while len(got) < len(wanted) or after < self.model.compacted or after > self.model.revision:
                    async for events in store.watch(prefix, after):
                        got.extend(events)
                        if len(got) >= len(wanted):
                            break
            except Compacted:
                assert after < self.model.compacted
            except FutureRevision:
                assert after > self.model.revision
            else:
                assert got == wanted

        for store in self.stores:
            self.run(asyncio.wait_for(watch(store), 10))

    @rule(back=st.integers(min_value=0, max_value=8))
    def compact(self, back: int) -> None:
        revision = max(self.model.revision - back, 0)
        self.model.compacted = max(self.model.compacted, revision)
        for store in self.stores:
            self.run(store.compact(revision))

    @precondition(lambda self: self.model.revision > 0)
    @rule()
    def reopen(self) -> None:
        self.run(self.stores[1].close())
        self.stores[1] = self._sqlite()
        self.run(self.stores[1].open())

    @invariant()
    def agree(self) -> None:
        for store in self.stores:
            assert (store.revision, store.compacted) == (self.model.revision, self.model.compacted)


StoresAgainstModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoresAgainstModel = StoresAgainstModel.TestCase
