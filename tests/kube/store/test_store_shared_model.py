"""Two store objects on one database against a model: whichever is asked, the answer is that of one store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from store_servers_kit import SHARED, StoreServer, fresh_address, shared_store

from coterie.kube.store import Compacted, CompareFailed, DeleteOp, Op, PutOp, StoreEvent, StoreRecord

T = TypeVar("T")
KEYS = st.sampled_from(["/a", "/a/1", "/b/é", "/c"])
EXPECTATIONS = st.sampled_from(["any", "none", "right", "wrong"])
WHICH = st.integers(0, 1)


class TwoStores(RuleBasedStateMachine):
    kind: str
    server: StoreServer

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        address = fresh_address(self.kind, self.server)
        self.stores = [self.runner.run(self._opened(address)) for _ in range(2)]
        self.now: dict[str, StoreRecord] = {}
        self.events: list[StoreEvent] = []
        self.start = self.run(self.stores[0].current())
        self.compacted = 0

    async def _opened(self, address: Any) -> Any:
        store = shared_store(address)
        await store.open()
        return store

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self.runner.close()

    @rule(which=WHICH, key=KEYS, put=st.booleans(), value=st.binary(max_size=3), expectation=EXPECTATIONS)
    def commit(self, which: int, key: str, put: bool, value: bytes, expectation: str) -> None:
        there = self.now.get(key)
        right = there.revision if there else 0
        expect = {"any": None, "none": 0, "right": right, "wrong": right + 1}[expectation]
        op: Op = PutOp(key, value, expect) if put else DeleteOp(key, expect)
        holds = expect in (None, right) and (put or there is not None)
        try:
            (revision,) = self.run(self.stores[which].commit([op]))
        except CompareFailed as refused:
            assert not holds
            assert (refused.actual, refused.record) == (right, there)
            return
        assert holds
        assert revision > max(event.revision for event in self.events) if self.events else revision > 0
        created = there.created if there else revision
        self.events.append(StoreEvent(key, revision, value if put else None, created, right))
        if put:
            self.now[key] = StoreRecord(key, value, revision, created)
        else:
            del self.now[key]

    @rule(which=WHICH)
    def scan(self, which: int) -> None:
        assert self.run(self.stores[which].scan("")).records == [self.now[key] for key in sorted(self.now)]

    @rule(which=WHICH, key=KEYS)
    def get(self, which: int, key: str) -> None:
        assert self.run(self.stores[which].get(key)) == self.now.get(key)

    @rule(which=WHICH, back=st.integers(0, 6))
    def replay(self, which: int, back: int) -> None:
        store = self.stores[which]
        after = self.events[-back - 1].revision if back < len(self.events) else self.start

        async def events() -> list[StoreEvent]:
            await store.reached(await store.current())
            found: list[StoreEvent] = []
            async with aclosing(store.replay("", after, store.revision)) as batches:
                async for batch in batches:
                    found.extend(batch)
            return found

        try:
            found = self.run(events())
        except Compacted:
            assert after < self.compacted
            return
        assert found == [event for event in self.events if event.revision > after]

    @rule(which=WHICH, back=st.integers(0, 4))
    def compact(self, which: int, back: int) -> None:
        if back < len(self.events):
            revision = self.events[-back - 1].revision
            self.run(self._compact(which, revision))
            self.compacted = max(self.compacted, revision)

    async def _compact(self, which: int, revision: int) -> None:
        store = self.stores[which]
        await store.reached(revision)
        await store.compact(revision)


@pytest.mark.parametrize("kind", SHARED)
def test_two_stores_of_one_database(kind: str, request: pytest.FixtureRequest) -> None:
    machine = type(f"TwoStores_{kind}", (TwoStores,), {"kind": kind, "server": request.getfixturevalue(kind)})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
