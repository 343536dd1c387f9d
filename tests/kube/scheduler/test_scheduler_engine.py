"""The engine: events in, effects out, on a clock the test moves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from scheduling_kit import BANDWIDTH, GangEngine, bound, gang_pod, node, pod, task

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.core import NAMESPACES
from coterie.kube.api.types.pods import Pod
from coterie.kube.api.types.policy import PodDisruptionBudget
from coterie.kube.scheduler.effects import Bind, Effect, Evict, Report
from coterie.kuscia.gangs.effects import MarkFailed, MarkReserved


class Bench:
    """An engine with a clock and pods that can be looked up."""

    def __init__(self, *nodes: Any, **settings: Any) -> None:
        self.now = 0.0
        self.engine = GangEngine(lambda: self.now, **settings)
        for one in nodes:
            self.engine.node_seen(one)
        self.pods: dict[str, Pod] = {}

    def see(self, *pods: Pod) -> None:
        for one in pods:
            self.pods[one.metadata.uid] = one
            self.engine.pod_seen(one)

    def run(self) -> list[Effect]:
        return self.engine.run()

    def bind_all(self, effects: list[Effect]) -> dict[str, str]:
        """Carries bindings out; says where what went."""
        out = {}
        for effect in effects:
            if isinstance(effect, Bind):
                self.see(bound(self.pods[effect.pod.uid], effect.node))
                out[effect.pod.key.name] = effect.node
        return out

    def gone(self, name: str, namespace: str = "default") -> None:
        self.engine.pod_gone(self.pods.pop(f"uid-{namespace}-{name}"))


def names(effects: list[Effect], kind: type[Any]) -> list[str]:
    return sorted(e.pod.key.name for e in effects if isinstance(e, kind))


def messages(effects: list[Effect]) -> dict[str, str]:
    return {e.pod.key.name: e.message for e in effects if isinstance(e, Report)}


def test_a_decision_counts_before_it_is_seen() -> None:
    bench = Bench(node("n", "1"))
    bench.see(pod("a", "1"), pod("b", "1"))
    effects = bench.run()
    assert names(effects, Bind) == ["a"] and names(effects, Report) == ["b"]
    assert bench.run() == []
    assert bench.engine.next_due() == 300.0  # nothing but the insurance


def test_an_idle_engine_wants_nothing() -> None:
    bench = Bench(node("n"))
    bench.see(pod("a"))
    bench.bind_all(bench.run())
    assert bench.run() == []
    assert bench.engine.next_due() is None
    assert len(bench.engine.queue) == 0 and not bench.engine.state.assumed and not bench.engine.state.pending


@pytest.mark.parametrize(
    ("change", "helps"),
    [
        pytest.param(lambda b: b.engine.node_seen(node("m", "4")), True, id="node-added"),
        pytest.param(lambda b: b.engine.node_seen(node("m", "1")), False, id="small-node-added"),
        pytest.param(lambda b: b.engine.node_seen(node("n", "8")), True, id="node-grew"),
        pytest.param(lambda b: b.engine.node_seen(node("n", "1")), False, id="heartbeat"),
        pytest.param(lambda b: b.engine.node_seen(node("off", "4")), True, id="node-became-ready"),
        pytest.param(lambda b: b.gone("resident"), False, id="too-small-a-pod-left"),
        pytest.param(lambda b: b.gone("hog"), True, id="pod-left"),
        pytest.param(lambda b: b.see(bound(b.pods["uid-default-hog"], "big", "Succeeded")), True, id="pod-ended"),
        pytest.param(lambda b: b.see(pod("waiting", "1m")), True, id="it-changed-itself"),
        pytest.param(lambda b: b.see(pod("third", "4", node="big")), False, id="another-pod-arrived"),
    ],
)
def test_a_waiting_pod_is_tried_when_it_could_help(change: Any, helps: bool) -> None:
    bench = Bench(node("n", "1"), node("big", "4"), node("off", "4", ready="False"))
    bench.see(pod("resident", "100m", node="n"), pod("hog", "3", node="big"), pod("waiting", "2"))
    assert names(bench.run(), Report) == ["waiting"]
    change(bench)
    effects = bench.run()
    assert names(effects, Bind) == (["waiting"] if helps else [])
    assert names(effects, Report) == []  # it was not even tried


def test_a_pod_that_wants_company_is_tried_when_it_comes() -> None:
    def near(app: str) -> dict[str, Any]:
        term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    bench = Bench(node("n"), node("m"))
    bench.see(pod("lonely", affinity=near("db")))
    assert names(bench.run(), Report) == ["lonely"]
    bench.see(pod("web", labels={"app": "web"}))
    assert names(bench.run(), Bind) == ["web"]
    assert bench.run() == []  # not whom it waits for
    bench.see(pod("db", labels={"app": "db"}, node="m"))
    assert bench.bind_all(bench.run()) == {"lonely": "m"}


def test_many_alike_cost_one_try_and_all_go_when_there_is_room() -> None:
    bench = Bench(node("n", "1"))
    bench.see(*(pod(f"p{i:02}", "1", created=f"2026-01-01T00:00:{i:02}Z") for i in range(20)))
    assert names(bench.run(), Bind) == ["p00"]
    bench.engine.node_seen(node("m", "7"))
    effects = bench.run()
    assert names(effects, Bind) == [f"p{i:02}" for i in range(1, 8)]
    assert names(effects, Report) == ["p08"]  # the first that did not fit; the others were not asked


def test_bind_failures_are_tried_again_after_a_pause() -> None:
    bench = Bench(node("n", "1"))
    bench.see(pod("a", "1"))
    (effect,) = bench.run()
    assert isinstance(effect, Bind)
    bench.engine.bind_failed(effect.pod)
    assert bench.engine.snapshot.states["n"].count == 0
    assert bench.run() == [] and bench.engine.next_due() == 1.0
    bench.now = 1.0
    assert names(bench.run(), Bind) == ["a"]


def test_a_bind_failure_after_the_pod_is_gone_is_nothing() -> None:
    bench = Bench(node("n", "1"))
    bench.see(pod("a", "1"))
    (effect,) = bench.run()
    assert isinstance(effect, Bind)
    bench.gone("a")
    bench.engine.bind_failed(effect.pod)
    assert bench.run() == [] and bench.engine.next_due() is None


@pytest.mark.parametrize(
    "ignored",
    [
        pytest.param(pod("a", schedulerName="other"), id="another-scheduler"),
        pytest.param(pod("a", schedulingGates=[{"name": "g"}]), id="gated"),
        pytest.param(pod("a", phase="Failed"), id="ended"),
    ],
)
def test_pods_that_are_not_ours_to_place(ignored: Pod) -> None:
    bench = Bench(node("n"))
    bench.see(ignored)
    assert bench.run() == []


def test_both_names_are_ours_and_gates_open() -> None:
    bench = Bench(node("n"))
    bench.see(pod("a"), pod("b", schedulerName="kuscia-scheduler"), pod("c", schedulingGates=[{"name": "g"}]))
    assert names(bench.run(), Bind) == ["a", "b"]
    bench.see(pod("c"))
    assert names(bench.run(), Bind) == ["c"]


def test_a_status_update_is_not_a_new_attempt() -> None:
    bench = Bench(node("n", "1"))
    old = pod("a", "2")
    bench.see(old)
    bench.run()
    new = msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, message="x"))
    bench.engine.pod_seen(new, old)
    assert bench.run() == []


def test_priority_goes_first_and_preempts() -> None:
    bench = Bench(node("n", "1"))
    bench.see(pod("low", "1"), pod("mid", "1", priority=5))
    assert bench.bind_all(bench.run()) == {"mid": "n"}
    bench.see(pod("high", "1", priority=9))
    effects = bench.run()
    (evict,) = [e for e in effects if isinstance(e, Evict)]
    assert (evict.node, [v.key.name for v in evict.victims]) == ("n", ["mid"])
    # While the victim leaves nobody else is asked to, and nobody else takes the room.
    bench.see(pod("other", "1", priority=1))
    bench.engine.queue.wake_one("uid-default-high")
    effects = bench.run()
    assert not [e for e in effects if isinstance(e, Evict)]
    assert "terminating pod on the nominated node" in messages(effects)["high"]
    bench.gone("mid")
    assert bench.bind_all(bench.run()) == {"high": "n"}


def test_an_eviction_that_failed_is_forgotten() -> None:
    bench = Bench(node("n", "1"))
    bench.see(pod("low", "1", node="n"), pod("high", "1", priority=9))
    (evict,) = [e for e in bench.run() if isinstance(e, Evict)]
    bench.engine.evict_failed(evict.pod)
    assert not bench.engine.snapshot.nominations
    bench.now = 1.0
    assert [e for e in bench.run() if isinstance(e, Evict)]


def test_budgets_are_asked() -> None:
    bench = Bench(node("a", "1"), node("b", "1"))
    budget = {"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}
    bench.engine.budget_seen(msgspec.convert(budget, PodDisruptionBudget))
    bench.see(pod("spared", "1", labels={"app": "web"}, node="a"), pod("victim", "1", node="b"))
    bench.see(pod("high", "1", priority=9))
    (evict,) = [e for e in bench.run() if isinstance(e, Evict)]
    assert [v.key.name for v in evict.victims] == ["victim"]


def test_a_partners_namespace_is_not_ours() -> None:
    bench = Bench(node("n"))
    labels = {"kuscia.secretflow/role": "partner"}
    space = {"metadata": {"name": "bob", "labels": labels}}
    bench.engine.namespace_seen(msgspec.convert(space, NAMESPACES.type))
    bench.see(pod("p", namespace="bob"))
    assert messages(bench.run()) == {"p": 'namespace "bob" belongs to a partner'}
    bench.engine.namespace_seen(msgspec.convert({"metadata": {"name": "bob"}}, NAMESPACES.type))
    assert names(bench.run(), Bind) == ["p"]


# Gangs.


def gang(bench: Bench, name: str, pods: int, *, cpu: str = "1", least: int | None = None, **more: Any) -> None:
    bench.engine.task_seen(task(name, least=least or pods, **more))
    bench.see(*(gang_pod(f"{name}-{i}", name, cpu=cpu) for i in range(pods)))


def test_a_gang_is_reserved_marked_and_bound() -> None:
    bench = Bench(node("n", "3"))
    gang(bench, "t", 3)
    assert bench.run() == [MarkReserved(ObjectKey("alice", "t"))]
    assert bench.engine.snapshot.states["n"].cpu == 3000
    bench.engine.task_seen(task("t", "Reserved", least=3))
    assert bench.run() == []
    bench.engine.task_seen(task("t", "Schedulable", least=3))
    assert sorted(bench.bind_all(bench.run())) == ["t-0", "t-1", "t-2"]
    bench.run()
    assert bench.engine.next_due() is None and not bench.engine.holding()


def test_a_gang_holds_its_gpus_until_all_domains_have_theirs() -> None:
    gpu = {"nvidia.com/gpu": 1}
    bench = Bench(node("n", "8", **{"nvidia.com/gpu": 2}))
    bench.engine.task_seen(task("t", least=2))
    bench.see(*(gang_pod(f"t-{i}", "t", requests=gpu) for i in range(2)))
    assert bench.run() == [MarkReserved(ObjectKey("alice", "t"))]
    bench.see(pod("other", "1", requests=gpu))
    effects = bench.run()
    assert names(effects, Bind) == [] and "Insufficient nvidia.com/gpu" in messages(effects)["other"]
    bench.engine.task_seen(task("t", "Schedulable", least=2))
    assert sorted(bench.bind_all(bench.run())) == ["t-0", "t-1"]


def test_a_gang_waits_while_a_gpu_is_unhealthy() -> None:
    gpu = {"nvidia.com/gpu": 1}
    bench = Bench(node("n", "8", **{"nvidia.com/gpu": 1}))
    bench.engine.task_seen(task("t", least=2))
    bench.see(*(gang_pod(f"t-{i}", "t", requests=gpu) for i in range(2)))
    assert not [each for each in bench.run() if isinstance(each, MarkReserved)]
    bench.engine.node_seen(node("n", "8", **{"nvidia.com/gpu": 2}))
    assert MarkReserved(ObjectKey("alice", "t")) in bench.run()


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        pytest.param(None, 'waiting for task resource "alice/t"', id="no-task"),
        pytest.param(
            task("t", "", least=2), 'task resource "alice/t" is in phase "" and cannot be scheduled', id="no-phase"
        ),
        pytest.param(
            task("t", "Pending", least=2),
            'task resource "alice/t" is in phase "Pending" and cannot be scheduled',
            id="pending",
        ),
        pytest.param(
            task("t", "Failed", least=2, reason="domain [bob] can not reserve resources for pods"),
            'task resource "alice/t" failed: domain [bob] can not reserve resources for pods',
            id="failed",
        ),
        pytest.param(
            task("t", least=3), 'task resource "alice/t" needs 3 pods and only 2 exist', id="too-few-siblings"
        ),
    ],
)
def test_a_gang_is_refused(seen: Any, message: str) -> None:
    bench = Bench(node("n", "8"))
    if seen is not None:
        bench.engine.task_seen(seen)
    bench.see(gang_pod("t-0", "t"), gang_pod("t-1", "t"))
    assert messages(bench.run()) == {"t-0": message, "t-1": message}
    assert bench.run() == []
    bench.engine.task_seen(task("t", least=2))
    assert bench.run() == [MarkReserved(ObjectKey("alice", "t"))]


def test_a_pod_without_a_named_task_or_without_the_label_waits() -> None:
    bench = Bench(node("n", "8"))
    unnamed = gang_pod("p", "")
    bench.see(unnamed)
    assert bench.run() == []
    bench.engine.task_seen(task("t"))
    bench.see(gang_pod("p", "t", labels={"kuscia.secretflow/task-resource-uid": ""}))
    assert "have no label kuscia.secretflow/task-resource-uid" in messages(bench.run())["p"]
    bench.see(gang_pod("p", "t"))
    assert bench.run() == [MarkReserved(ObjectKey("alice", "t"))]


def test_all_or_nothing() -> None:
    bench = Bench(node("n", "2"))
    gang(bench, "t", 3)
    told = messages(bench.run())
    assert bench.engine.snapshot.states["n"].count == 0
    lacking = "0/1 nodes are available: 1 Insufficient cpu."
    assert sorted(told) == ["t-0", "t-1", "t-2"]
    assert sorted(told.values())[0] == lacking
    other = sorted(told.values())[1]
    assert other.startswith('2 of 3 pods that task resource "alice/t" needs fit at once; pod "t-') and lacking in other
    bench.engine.node_seen(node("m", "1"))
    assert bench.run() == [MarkReserved(ObjectKey("alice", "t"))]


def test_more_pods_than_needed_follow_when_there_is_room() -> None:
    bench = Bench(node("n", "2"))
    gang(bench, "t", 3, least=2)
    effects = bench.run()
    assert len(names(effects, Report)) == 1 and MarkReserved(ObjectKey("alice", "t")) in effects
    bench.engine.task_seen(task("t", "Schedulable", least=2))
    assert len(bench.bind_all(bench.run())) == 2
    bench.run()
    bench.engine.node_seen(node("m", "1"))
    assert list(bench.bind_all(bench.run()).values()) == ["m"]


def test_no_hold_outlasts_its_time_and_says_who_was_missing() -> None:
    bench = Bench(node("n", "1"))
    bench.engine.task_seen(task("bobs", "Reserving", "bob", group="job"))
    bench.engine.task_seen(task("t", seconds=7, group="job"))
    bench.see(gang_pod("p", "t", group="job"))
    bench.run()
    bench.engine.task_seen(task("t", "Reserved", seconds=7, group="job"))
    assert bench.engine.next_due() == 7.0
    bench.now = 7.0
    effects = bench.run()
    message = "domain [bob] can not reserve resources for pods"
    assert effects == [MarkFailed(ObjectKey("alice", "t"), message)]
    # Until the task resource says so nothing is given back and nothing is tried.
    bench.engine.task_seen(task("t", "Reserved", seconds=7, group="job"))
    assert bench.run() == [] and bench.engine.snapshot.states["n"].count == 1
    bench.engine.task_seen(task("t", "Failed", seconds=7, group="job"))
    assert bench.engine.snapshot.states["n"].count == 0
    assert messages(bench.run()) == {"p": message}
    bench.engine.task_seen(task("t", "Reserving", seconds=7, group="job"))
    assert MarkReserved(ObjectKey("alice", "t")) in bench.run()


def test_the_hold_lasts_30_seconds_unless_told_otherwise() -> None:
    bench = Bench(node("n", "1"))
    gang(bench, "t", 1)
    bench.run()
    assert bench.engine.next_due() == 30.0


@pytest.mark.parametrize("how", ["failed", "task-gone", "pod-gone"])
def test_room_is_given_back(how: str) -> None:
    bench = Bench(node("n", "2"))
    gang(bench, "t", 2)
    bench.run()
    bench.see(pod("other", "2"))
    bench.run()
    if how == "failed":
        bench.engine.task_seen(task("t", "Failed", least=2))
    elif how == "task-gone":
        bench.engine.task_gone(ObjectKey("alice", "t"))
    else:
        bench.gone("t-0", "alice")
        assert isinstance(bench.run()[0], MarkFailed)
        bench.engine.task_seen(task("t", "Failed", least=2))
    assert names(bench.run(), Bind) == ["other"]
    assert not bench.engine.holding()


def test_a_gang_never_preempts() -> None:
    bench = Bench(node("n", "1"))
    bench.see(pod("low", "1", node="n"))
    bench.engine.task_seen(task("t"))
    bench.see(gang_pod("p", "t", priority=100))
    assert not [e for e in bench.run() if isinstance(e, Evict)]


def test_what_is_held_is_not_preempted() -> None:
    bench = Bench(node("n", "1"))
    gang(bench, "t", 1)
    bench.run()
    bench.see(pod("high", "1", priority=100))
    assert not [e for e in bench.run() if isinstance(e, Evict)]


def test_a_mark_that_cannot_be_written_does_not_stop_the_gang_for_ever() -> None:
    bench = Bench(node("n", "1"))
    gang(bench, "t", 1, seconds=5)
    bench.run()
    bench.now = 5.0
    bench.run()
    bench.now = 20.0
    bench.engine.mark_gave_up(ObjectKey("alice", "t"))
    assert not bench.engine.holding()
    assert MarkReserved(ObjectKey("alice", "t")) in bench.run()


def test_schedulable_in_the_last_moment_is_bound() -> None:
    bench = Bench(node("n", "1"))
    gang(bench, "t", 1, seconds=5)
    bench.run()
    bench.now = 5.0
    assert isinstance(bench.run()[0], MarkFailed)
    bench.engine.task_seen(task("t", "Schedulable", seconds=5))
    assert names(bench.run(), Bind) == ["t-0"]


def test_whoever_goes_first_claims_room_after_a_fair_time() -> None:
    bench = Bench(node("n", "1"))
    gang(bench, "b", 1, seconds=9)
    bench.run()
    bench.engine.task_seen(task("b", "Reserved", seconds=9))
    gang(bench, "a", 1, seconds=9)
    assert names(bench.run(), Report) == ["a-0"]
    assert bench.engine.next_due() == pytest.approx(3.0)
    bench.now = 3.1
    effects = bench.run()
    assert MarkFailed(ObjectKey("alice", "b"), 'yielded to the pods of task resource "alice/a"') in effects
    bench.engine.task_seen(task("b", "Failed", seconds=9))
    assert MarkReserved(ObjectKey("alice", "a")) in bench.run()
    # The other way round nobody gives way.
    bench.engine.task_seen(task("b", "Reserving", seconds=9))
    bench.now = 11.0
    assert not [e for e in bench.run() if isinstance(e, MarkFailed)]
    assert [g.key.name for g in bench.engine.holding()] == ["a"]


def test_room_that_was_given_and_not_needed_is_used_by_others() -> None:
    bench = Bench(node("n", "2"))
    gang(bench, "b", 2, seconds=9)
    bench.run()
    gang(bench, "a", 1, seconds=9)
    bench.see(pod("other", "1"))
    assert not names(bench.run(), Bind)
    bench.now = 4.0
    bench.run()
    bench.engine.task_seen(task("b", "Failed", least=2, seconds=9))
    assert names(bench.run(), Bind) == ["other"]
    assert [g.key.name for g in bench.engine.holding()] == ["a"]


def test_older_task_resources_are_tried_first() -> None:
    bench = Bench(node("n", "1"))
    bench.engine.task_seen(task("young", created="2026-01-02T00:00:00Z"))
    bench.engine.task_seen(task("zold", created="2026-01-01T00:00:00Z"))
    bench.see(gang_pod("y", "young"), gang_pod("o", "zold"))
    assert MarkReserved(ObjectKey("alice", "zold")) in bench.run()


def test_who_was_promised_room_and_lost_it_goes_first() -> None:
    bench = Bench(node("n", "1"))
    gang(bench, "a", 1, seconds=9)
    bench.run()
    bench.engine.task_seen(task("z", "Schedulable"))
    bench.see(gang_pod("z-0", "z"))
    assert MarkFailed(ObjectKey("alice", "a"), 'yielded to the pods of task resource "alice/z"') in bench.run()
    bench.engine.task_seen(task("a", "Failed", seconds=9))
    assert names(bench.run(), Bind) == ["z-0"]


def test_an_echo_does_not_undo_the_answer_to_our_own_write() -> None:
    def version(one: Any, number: str) -> Any:
        meta = msgspec.structs.replace(one.metadata, resource_version=number)
        return msgspec.structs.replace(one, metadata=meta)

    bench = Bench(node("n", "1"))
    bench.engine.task_seen(version(task("t"), "5"))
    bench.see(gang_pod("p", "t"))
    bench.run()
    bench.engine.task_seen(version(task("t", "Failed"), "9"))
    bench.run()
    bench.engine.task_seen(version(task("t", "Reserved"), "7"))
    assert bench.run() == [] and not bench.engine.holding()


def test_a_scheduler_that_starts_anew_binds_what_is_schedulable() -> None:
    bench = Bench(node("n", "3"))
    bench.engine.task_seen(task("t", "Schedulable", least=2))
    bench.see(bound(gang_pod("t-0", "t"), "n"), gang_pod("t-1", "t"))
    assert bench.bind_all(bench.run()) == {"t-1": "n"}


def test_bandwidth_of_gangs_is_reserved_too() -> None:
    bench = Bench(node("n", "8", bandwidth=100))
    bench.engine.task_seen(task("t", least=2))
    bench.see(*(gang_pod(f"t-{i}", "t", requests={BANDWIDTH: 60}) for i in range(2)))
    reports = [e for e in bench.run() if isinstance(e, Report)]
    assert {r.reason for r in reports} == {"BandwidthInsufficient", "Unschedulable"}
