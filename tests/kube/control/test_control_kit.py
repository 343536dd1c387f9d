"""Controller, manager, leader election, events and finalizers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_api import FakeApi

from coterie.base.backoff import Policy
from coterie.base.clock import VirtualClock
from coterie.kube.api import errors
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.core import CONFIG_MAPS, ConfigMap
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeTransport
from coterie.kube.client.informer import Informer
from coterie.kube.client.transport import NotSent, TransportRequest, TransportResponse
from coterie.kube.control.controller import Controller, Result, Watches, own_key, owner_key
from coterie.kube.control.deferred import Deferred
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.finalizers import BeingDeleted, add_finalizer, remove_finalizer
from coterie.kube.control.leader import LeaderElected, LeaderElection, LeaderFence, ObservedLease, Timing, decide
from coterie.kube.control.manager import Manager, RunForever, RunnableFailed, RunOnce

CM = Kind.dynamic(builtin("configmaps"))


@asynccontextmanager
async def running(*works: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


class Setup:
    """A controller over config maps with a scripted reconciler."""

    def __init__(self, reconcile: Callable[[ObjectKey], Awaitable[Result | None]], **options: Any) -> None:
        self.clock = VirtualClock()
        self.api = FakeApi(self.clock)
        self.informer: Informer[ConfigMap] = Informer(self.api.client(), CONFIG_MAPS)
        retry = Policy(first=1, factor=2, limit=60, jitter=0)
        self.controller = Controller(
            "test", reconcile, [Watches(self.informer, own_key)], clock=self.clock, retry=retry, **options
        )


async def test_controller_reconciles_each_change_once() -> None:
    seen: list[ObjectKey] = []

    async def reconcile(key: ObjectKey) -> None:
        seen.append(key)

    setup = Setup(reconcile)
    setup.api.seed("configmaps", "a", "default")
    async with running(setup.informer.run(), setup.controller.run()):
        await setup.controller.ready.wait()
        await settle()
        assert seen == [("default", "a")]
        await setup.api.client().delete(CM, "a", "default")
        await settle()
        assert seen == [("default", "a")] * 2
        assert setup.controller.counters.succeeded == 2


async def test_controller_waits_for_its_informers() -> None:
    calls: list[ObjectKey] = []

    async def reconcile(key: ObjectKey) -> None:
        calls.append(key)

    setup = Setup(reconcile)
    async with running(setup.controller.run()):
        setup.controller.enqueue(ObjectKey("default", "a"))
        await settle()
        assert not setup.controller.ready.is_set() and calls == []


async def test_failures_come_back_with_growing_pauses_and_are_forgotten() -> None:
    attempts: list[float] = []

    async def reconcile(key: ObjectKey) -> Result | None:
        attempts.append(setup.clock.monotonic())
        if len(attempts) <= 3:
            raise RuntimeError("not yet")
        return Result(after=100) if len(attempts) == 4 else None

    setup = Setup(reconcile)
    setup.api.seed("configmaps", "a", "default")
    async with running(setup.informer.run(), setup.controller.run()):
        await setup.clock.advance(200)
    assert attempts == [0, 1, 3, 7, 107]
    assert (setup.controller.counters.failed, setup.controller.counters.succeeded) == (3, 2)


async def test_what_is_gone_is_not_looked_at_later() -> None:
    """Whatever the function is called that names the object itself."""

    async def reconcile(key: ObjectKey) -> Result | None:
        return Result(after=86400) if setup.informer.cache.by_key(key) is not None else None

    setup = Setup(reconcile)
    setup.controller = Controller(
        "test", reconcile, [Watches(setup.informer, lambda found: [found.key])], clock=setup.clock
    )
    setup.api.seed("configmaps", "a", "default")
    async with running(setup.informer.run(), setup.controller.run()):
        await setup.controller.ready.wait()
        await settle()
        assert setup.controller.queue.delayed == 1
        await setup.api.client().delete(CM, "a", "default")
        await settle()
        assert setup.controller.queue.delayed == 0


async def test_a_look_that_is_overtaken_does_not_say_when_to_come_back() -> None:
    going, entered = asyncio.Event(), asyncio.Event()

    async def reconcile(key: ObjectKey) -> Result | None:
        if setup.informer.cache.by_key(key) is None:
            return None
        entered.set()
        await going.wait()
        return Result(after=86400)

    setup = Setup(reconcile)
    setup.api.seed("configmaps", "a", "default")
    async with running(setup.informer.run(), setup.controller.run()):
        await entered.wait()
        await setup.api.client().delete(CM, "a", "default")
        await settle()
        going.set()
        await settle()
        assert setup.controller.queue.delayed == 0 and setup.controller.counters.succeeded == 2


async def test_a_reconcile_that_never_waits_does_not_starve_the_others() -> None:
    async def reconcile(key: ObjectKey) -> None:
        setup.controller.enqueue(key)  # asks for itself again and again, without ever waiting

    setup = Setup(reconcile, workers=1)
    setup.api.seed("configmaps", "a", "default")
    async with running(setup.informer.run(), setup.controller.run()):
        await setup.controller.ready.wait()
        setup.api.seed("configmaps", "b", "default")
        await settle()
        assert setup.informer.cache.get("b", "default") is not None


async def test_one_key_is_never_reconciled_twice_at_once_but_others_go_on() -> None:
    active: list[str] = []
    most: dict[str, int] = {}
    gate = asyncio.Event()

    async def reconcile(key: ObjectKey) -> None:
        active.append(key.name)
        most[key.name] = max(most.get(key.name, 0), active.count(key.name))
        if key.name == "a":
            await gate.wait()
        active.remove(key.name)

    setup = Setup(reconcile, workers=3)
    async with running(setup.informer.run(), setup.controller.run()):
        await setup.controller.ready.wait()
        for name in ("a", "b", "a", "c"):
            setup.controller.enqueue(ObjectKey("", name))
            await settle()
        assert active == ["a"] and most == {"a": 1, "b": 1, "c": 1}
        gate.set()
        await settle()
        assert active == [] and setup.controller.counters.succeeded == 4


async def test_stop_finishes_what_is_being_done_and_drops_the_rest() -> None:
    finished: list[str] = []

    async def reconcile(key: ObjectKey) -> None:
        await setup.clock.sleep(5)
        finished.append(key.name)

    setup = Setup(reconcile, workers=1)
    informer = asyncio.create_task(setup.informer.run())
    controller = asyncio.create_task(setup.controller.run())
    await setup.controller.ready.wait()
    setup.controller.enqueue(ObjectKey("", "a"))
    setup.controller.enqueue(ObjectKey("", "b"))
    await settle()
    setup.controller.stop()
    await setup.clock.advance(6)
    await asyncio.wait_for(controller, 1)
    assert finished == ["a"]
    informer.cancel()
    await asyncio.wait([informer])


async def test_an_object_that_cannot_be_mapped_does_not_stop_the_informer() -> None:
    setup = Setup(lambda key: asyncio.sleep(0))
    broken = Controller(
        "broken", lambda key: asyncio.sleep(0), [Watches(setup.informer, lambda obj: obj.nothing)], clock=setup.clock
    )
    async with running(setup.informer.run(), broken.run()):
        setup.api.seed("configmaps", "a", "default")
        await settle()
        assert len(setup.informer.cache) == 1


@pytest.mark.parametrize(
    ("owners", "wanted"),
    [
        ([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}], [("n", "r")]),
        (
            [{"apiVersion": "apps/v1beta1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}],
            [("n", "r")],
        ),
        ([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}], []),
        ([{"apiVersion": "v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}], []),
        (None, []),
    ],
    ids=["controller", "other-version", "plain-owner", "other-group", "none"],
)
def test_owner_key(owners: Any, wanted: list[ObjectKey]) -> None:
    obj = {"metadata": {"name": "p", "namespace": "n", "ownerReferences": owners}}
    keys = owner_key("apps/v1", "ReplicaSet")
    assert list(keys(obj)) == wanted
    assert list(keys(CONFIG_MAPS.decode(CM.encode(obj)))) == wanted


# ---- manager ----


class Part:
    """A runnable that writes down what happens to it."""

    def __init__(self, name: str, log: list[str], *, ready: bool = True, fail: Exception | None = None) -> None:
        self.name, self.log, self.ready = name, log, asyncio.Event()
        self._ready, self._fail = ready, fail

    async def run(self) -> None:
        self.log.append(f"+{self.name}")
        await asyncio.sleep(0)
        if self._ready:
            self.ready.set()
        try:
            if self._fail:
                raise self._fail
            await asyncio.Event().wait()
        finally:
            self.log.append(f"-{self.name}")


async def test_groups_start_in_order_and_stop_in_reverse() -> None:
    log: list[str] = []

    async def once() -> None:
        log.append("job")

    manager = Manager(
        [[Part("a", log), Part("b", log)], [RunOnce("job", once)], [Part("c", log)]], clock=VirtualClock()
    )
    task = asyncio.create_task(manager.run())
    await manager.ready.wait()
    assert log == ["+a", "+b", "job", "+c"] and manager.waiting_for == []
    manager.stop()
    await task
    assert log[4] == "-c" and sorted(log[5:]) == ["-a", "-b"]


async def test_the_first_failure_stops_the_rest_and_is_raised() -> None:
    log: list[str] = []
    manager = Manager(
        [[Part("a", log)], [Part("b", log, fail=ValueError("boom"))], [Part("never", log)]], clock=VirtualClock()
    )
    with pytest.raises(RunnableFailed, match="b: ValueError: boom") as caught:
        await manager.run()
    assert isinstance(caught.value.__cause__, ValueError) and caught.value.runnable == "b"
    assert log[0] == "+a" and "-a" in log


async def test_ending_by_itself_is_a_failure() -> None:
    manager = Manager([[RunForever("short", lambda: asyncio.sleep(0))]], clock=VirtualClock())
    with pytest.raises(RunnableFailed, match="short: ended by itself"):
        await manager.run()


async def test_what_never_gets_ready_is_named() -> None:
    clock, log = VirtualClock(), []
    manager = Manager([[Part("stuck", log, ready=False)], [Part("later", log)]], ready_timeout=30, clock=clock)
    task = asyncio.create_task(manager.run())
    await clock.advance(29)
    assert manager.waiting_for == ["stuck", "later"] and not task.done()
    await clock.advance(2)
    with pytest.raises(RunnableFailed, match="stuck: was not ready within 30 s"):
        await task
    assert log == ["+stuck", "-stuck"]


async def test_graceful_stop_first_cancellation_after_the_grace() -> None:
    clock, log = VirtualClock(), []

    class Slow(Part):
        def stop(self) -> None:
            self.log.append("asked")

    manager = Manager([[Slow("slow", log)]], grace=5, clock=clock)
    task = asyncio.create_task(manager.run())
    await manager.ready.wait()
    manager.stop()
    await clock.advance(4)
    assert log == ["+slow", "asked"]
    await clock.advance(2)
    await task
    assert log == ["+slow", "asked", "-slow"]


# ---- leader election ----

HELD = {"holderIdentity": "b", "renewTime": "t1", "leaseDurationSeconds": 15}


@pytest.mark.parametrize(
    ("spec", "seen_at", "now", "wanted"),
    [
        ({}, 0, 0, "take"),
        ({"holderIdentity": ""}, 0, 0, "take"),
        ({**HELD, "holderIdentity": "a"}, 0, 999, "renew"),
        (HELD, 100, 114.9, "wait"),
        (HELD, 100, 115, "take"),
        ({**HELD, "renewTime": "1970-01-01T00:00:00Z"}, 100, 101, "wait"),
        ({**HELD, "leaseDurationSeconds": 60}, 100, 130, "wait"),
        ({"holderIdentity": "b"}, 100, 109, "wait"),
        ({"holderIdentity": "b"}, 100, 110, "take"),
    ],
    ids=["new", "released", "ours", "fresh", "run-out", "skewed-clock", "longer-lease", "default", "default-over"],
)
def test_decide(spec: dict[str, Any], seen_at: float, now: float, wanted: str) -> None:
    assert decide(spec, "a", ObservedLease("b", "t1", seen_at), now, 10) == wanted


def candidate(api: FakeApi, identity: str, client: Client | None = None) -> LeaderElection:
    return LeaderElection(client or api.client(), "lock", "kube-system", identity, clock=api.clock)


async def test_one_leads_and_the_other_takes_over_when_it_dies() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    a, b = candidate(api, "a"), candidate(api, "b")
    await a.acquire()
    holding = asyncio.create_task(a.hold())
    waiting = asyncio.create_task(b.acquire())
    await clock.advance(60)
    assert a.leading.is_set() and not b.leading.is_set()
    holding.cancel()  # a dies without giving up
    await clock.advance(12)
    assert not b.leading.is_set()
    await clock.advance(8)
    assert b.leading.is_set()
    await waiting
    lease = api.find("leases", "lock", "kube-system")["spec"]
    assert lease["holderIdentity"] == "b" and lease["leaseTransitions"] == 1


async def test_a_released_lease_is_taken_at_once() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    a, b = candidate(api, "a"), candidate(api, "b")
    await a.acquire()
    waiting = asyncio.create_task(b.acquire())
    await clock.advance(1)
    await a.release()
    await clock.advance(2)
    assert b.leading.is_set()
    await waiting


async def test_a_leader_that_cannot_renew_stops_before_the_lease_runs_out() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    cut = asyncio.Event()
    real = api.client().transport

    async def answer(call: TransportRequest) -> TransportResponse:
        if cut.is_set():
            await asyncio.Event().wait()  # a server that hangs is worse than one that refuses
        return await real.send(call)

    a = candidate(api, "a", Client(FakeTransport(answer), clock=clock))
    await a.acquire()
    holding = asyncio.create_task(a.hold())
    await clock.advance(5)
    cut.set()  # the last renewal was at 4
    await clock.advance(8.5)
    assert a.leading.is_set()
    await clock.advance(3)
    assert holding.done() and not a.leading.is_set()


async def test_leader_elected_runs_its_parts_only_while_leading() -> None:
    clock, log = VirtualClock(), []
    api = FakeApi(clock)
    elected = LeaderElected("controllers", candidate(api, "a"), lambda: [[Part("work", log)]], clock=clock)
    task = asyncio.create_task(elected.run())
    await clock.advance(1)
    assert log == ["+work"] and elected.ready.is_set()
    lease = api.find("leases", "lock", "kube-system")
    await api.client().patch(
        Kind.dynamic(builtin("leases", "coordination.k8s.io")),
        "lock",
        "kube-system",
        {"spec": {"holderIdentity": "thief", "renewTime": "x"}},
    )
    await clock.advance(3)
    assert log == ["+work", "-work"]
    await clock.advance(20)  # the thief does not renew
    assert log == ["+work", "-work", "+work"]
    task.cancel()
    await asyncio.wait([task])
    assert api.find("leases", "lock", "kube-system")["spec"]["holderIdentity"] == "" and lease is not None


async def test_a_leader_that_slept_writes_nothing_more() -> None:
    """A paused process: its clock went on, its tasks did not."""
    clock = VirtualClock()
    api = FakeApi(clock)
    a = candidate(api, "a")
    fenced = Client(LeaderFence(api.client().transport, a), clock=clock)
    with pytest.raises(NotSent, match="does not lead"):
        await fenced.create(CM, {"metadata": {"name": "before", "namespace": "default"}})
    await a.acquire()
    await fenced.create(CM, {"metadata": {"name": "leading", "namespace": "default"}})
    await clock.advance(11)  # nobody renews
    assert a.leading.is_set() and not a.certain
    with pytest.raises(NotSent):
        await fenced.create(CM, {"metadata": {"name": "after", "namespace": "default"}})
    assert (await fenced.get(CM, "leading", "default"))["metadata"]["name"] == "leading"


async def test_a_slow_answer_does_not_make_a_lease_younger() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    real = api.client().transport

    async def answer(call: TransportRequest) -> TransportResponse:
        if call.mutating:
            await clock.sleep(9)
        return await real.send(call)

    a = candidate(api, "a", Client(FakeTransport(answer), clock=clock))
    taking = asyncio.create_task(a.acquire())
    await clock.advance(9)
    await taking
    assert a.certain
    await clock.advance(1)
    assert not a.certain


async def test_a_nudged_candidate_looks_at_once() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    a, b = candidate(api, "a"), candidate(api, "b")
    await a.acquire()
    waiting = asyncio.create_task(b.acquire())
    await clock.advance(0.5)
    await a.release()
    b.nudge()
    await settle()
    assert b.leading.is_set()
    await waiting


async def test_a_planned_stop_ends_the_parts_before_the_lease_is_free() -> None:
    clock, log = VirtualClock(), []
    api = FakeApi(clock)

    def holder() -> str:
        return str(api.find("leases", "lock", "kube-system")["spec"]["holderIdentity"])

    class Slow:
        name = "slow"

        def __init__(self) -> None:
            self.ready = asyncio.Event()
            self._stop = asyncio.Event()

        def stop(self) -> None:
            self._stop.set()

        async def run(self) -> None:
            self.ready.set()
            await self._stop.wait()
            await clock.sleep(2)
            log.append(holder())

    a, b = candidate(api, "a"), candidate(api, "b")
    elected = LeaderElected("controllers", a, lambda: [[Slow()]], clock=clock)
    task = asyncio.create_task(elected.run())
    await clock.advance(1)
    waiting = asyncio.create_task(b.acquire())
    await clock.advance(1)
    assert [each.name for each in elected.parts] == ["slow"]
    elected.stop()
    await clock.advance(1.5)
    assert not b.leading.is_set() and a.certain
    await clock.advance(4)
    assert task.done() and log == ["a"] and elected.parts == []
    assert b.leading.is_set()
    await waiting


async def test_a_candidate_that_is_stopped_ends() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    a = candidate(api, "a")
    await a.acquire()
    elected = LeaderElected("controllers", candidate(api, "b"), lambda: [[]], clock=clock)
    task = asyncio.create_task(elected.run())
    await clock.advance(1)
    elected.stop()
    await settle()
    assert task.done()
    assert api.find("leases", "lock", "kube-system")["spec"]["holderIdentity"] == "a"


def test_timing_must_leave_room() -> None:
    with pytest.raises(ValueError):
        Timing(duration=10, renew_deadline=10)


# ---- events ----


def about(name: str = "p") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}"}}


def events(api: FakeApi) -> list[dict[str, Any]]:
    return [obj for (plural, _, _), obj in api.objects.items() if plural == "events"]


async def test_the_same_event_is_counted() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    recorder = EventRecorder(api.client(), "tests", clock=clock)
    async with running(recorder.run()):
        for _ in range(3):
            recorder.normal(about(), "Started", "Started container")
            await clock.advance(60)
        recorder.warning(about("q"), "Failed", "No such image")
        await settle()
    first, second = events(api)
    assert (first["count"], first["reason"], first["type"]) == (3, "Started", "Normal")
    assert first["firstTimestamp"] == "2026-01-02T03:04:05Z" and first["lastTimestamp"] == "2026-01-02T03:06:05Z"
    assert second["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "q",
        "uid": "u-q",
    }


async def test_a_note_that_waits_is_dropped_with_its_object() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    recorder = EventRecorder(api.client(), "tests", clock=clock)
    async with running(recorder.run()):
        for name in ("gone", "stays"):
            recorder.record(about(name), "Normal", "Started", "x", after=1.0)
        recorder.warning(about("gone"), "Failed", "y")
        await settle()
        assert [e["reason"] for e in events(api)] == ["Failed"]
        recorder.retract("u-gone")
        await clock.advance(2)
        assert [e["involvedObject"]["name"] for e in events(api)] == ["gone", "stays"]


async def test_notes_that_wait_are_written_when_the_recorder_stops() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    recorder = EventRecorder(api.client(), "tests", clock=clock)
    async with running(recorder.run()):
        recorder.record(about(), "Normal", "Started", "x", after=60.0)
        await settle()
        recorder.stop()
        await settle()
        assert len(events(api)) == 1


async def test_what_only_informs_is_due_after_the_delay() -> None:
    clock = VirtualClock()
    later: Deferred[str] = Deferred(clock, delay=0.5)
    assert later.wait("a") == pytest.approx(0.5)
    await clock.advance(0.3)
    assert later.wait("a") == pytest.approx(0.2), "more of it does not put it off"
    await clock.advance(0.3)
    assert later.wait("a") is None and later.wait("a") == pytest.approx(0.5)
    later.clear("a")
    assert later.wait("a") == pytest.approx(0.5)


async def test_notes_about_many_objects_are_written_together_and_those_about_one_in_turn() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    recorder = EventRecorder(api.client(), "tests", clock=clock)
    for name in ("a", "b", "a", "c"):
        recorder.normal(about(name), "Started", "x")
    async with running(recorder.run()):
        await settle()
    assert sorted((e["involvedObject"]["name"], e["count"]) for e in events(api)) == [("a", 2), ("b", 1), ("c", 1)]


async def test_an_expired_event_starts_anew() -> None:
    api = FakeApi(VirtualClock())
    recorder = EventRecorder(api.client(), "tests", clock=api.clock)
    async with running(recorder.run()):
        recorder.normal(about(), "Started", "x")
        await settle()
        api.objects.clear()
        recorder.normal(about(), "Started", "x")
        await settle()
    assert [e["count"] for e in events(api)] == [1]


async def test_many_similar_events_melt_into_one() -> None:
    api = FakeApi(VirtualClock())
    recorder = EventRecorder(api.client(), "tests", clock=api.clock)
    async with running(recorder.run()):
        for i in range(20):
            recorder.warning(about(), "Unhealthy", f"probe {i} failed")
        await settle()
        await settle()
    listed = events(api)
    assert len(listed) == 11
    combined = [e for e in listed if e["message"].startswith("(combined from similar events)")]
    assert len(combined) == 1 and combined[0]["count"] == 10 and combined[0]["message"].endswith("probe 19 failed")


async def test_a_noisy_object_is_cut_but_others_are_heard() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    recorder = EventRecorder(api.client(), "tests", clock=clock)
    for _ in range(100):
        recorder.normal(about("noisy"), "X", "x")
    recorder.normal(about("quiet"), "X", "x")
    assert recorder.dropped == 75
    async with running(recorder.run()):
        await settle()
        await settle()
        assert {e["involvedObject"]["name"]: e["count"] for e in events(api)} == {"noisy": 25, "quiet": 1}
        await clock.advance(301)
        recorder.normal(about("noisy"), "X", "x")
        await settle()
    assert recorder.written == 27


async def test_recording_never_fails_the_caller() -> None:
    clock = VirtualClock()

    def refuse(call: TransportRequest) -> TransportResponse:
        if "forbidden" in str(call.body):
            raise errors.Forbidden("no")
        raise NotSent("nobody there")

    recorder = EventRecorder(Client(FakeTransport(refuse), clock=clock), "tests", clock=clock)
    task = asyncio.create_task(recorder.run())
    recorder.normal(about(), "X", "forbidden")
    recorder.normal(about(), "X", "unreachable")
    await clock.advance(10)
    assert recorder.dropped == 2 and not task.done()
    recorder.stop()
    await asyncio.wait_for(task, 1)
    recorder.normal(about(), "X", "too late")
    assert recorder.dropped == 3


# ---- finalizers ----


async def test_finalizers_are_added_and_removed_once() -> None:
    api = FakeApi()
    api.seed("configmaps", "a", "default", metadata={"finalizers": ["other"]})
    client = api.client()
    for _ in range(2):
        added = await add_finalizer(client, CONFIG_MAPS, "a", "default", "mine")
        assert added.metadata.finalizers == ("other", "mine")
    await client.delete(CM, "a", "default")
    with pytest.raises(BeingDeleted):
        await add_finalizer(client, CM, "a", "default", "late")
    assert await remove_finalizer(client, CM, "a", "default", "mine", uid="somebody else") is None
    for _ in range(2):
        removed = await remove_finalizer(client, CONFIG_MAPS, "a", "default", "mine")
        assert removed is not None and removed.metadata.finalizers == ("other",)
    await remove_finalizer(client, CM, "a", "default", "other")
    assert api.find("configmaps", "a", "default") is None
    assert await remove_finalizer(client, CM, "a", "default", "other") is None


async def test_finalizers_survive_a_race() -> None:
    api = FakeApi()
    api.seed("configmaps", "a", "default")
    real = api.client().transport
    raced: list[bool] = []

    async def answer(call: TransportRequest) -> TransportResponse:
        if call.method == "PATCH" and not raced:
            raced.append(True)
            await add_finalizer(api.client(), CM, "a", "default", "theirs")
        return await real.send(call)

    await add_finalizer(Client(FakeTransport(answer)), CM, "a", "default", "mine")
    assert api.find("configmaps", "a", "default")["metadata"]["finalizers"] == ["theirs", "mine"]
