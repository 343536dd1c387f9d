"""Jobs: counting, verdicts, pauses and indexes as rows and properties; whole lives on a real API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_world import JOB, POD, World, template, world

from coterie.base.clock import rfc3339
from coterie.kube.api.labels import FINALIZER_JOB_TRACKING, JOB_COMPLETION_INDEX
from coterie.kube.api.meta import Object
from coterie.kube.api.types.batch import JOBS, Job, JobStatus
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.controllers.job import bodies, controller, failures, indexes, plan

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
NEVER = template({"app": "job"}, restartPolicy="Never")


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


def job(*, status: Any = None, deleting: bool = False, **spec: Any) -> Job:
    meta: Object = {"name": "work", "namespace": "default", "uid": "j"}
    if deleting:
        meta["deletionTimestamp"] = ago(1)
    body = {
        "metadata": meta,
        "spec": {"completions": 1, "parallelism": 1, "backoffLimit": 6, "template": NEVER, **spec},
        "status": msgspec.to_builtins(status) if isinstance(status, JobStatus) else status or {},
    }
    return JOBS.decode(JOBS.as_dynamic.encode(body))


def pod(
    name: str, phase: str = "Running", *, held: bool = True, deleting: bool = False, code: int = 0, ended: float = 0,
    index: int | None = None, restarts: int = 0, index_failures: int | None = None, conditions: Any = (), node: str = "n",
) -> Pod:  # fmt: skip
    meta: Object = {
        "name": name,
        "uid": name,
        "namespace": "default",
        "finalizers": [FINALIZER_JOB_TRACKING] if held else [],
    }
    meta["annotations"] = {}
    if index is not None:
        meta["annotations"][JOB_COMPLETION_INDEX] = str(index)
    if index_failures is not None:
        meta["annotations"][bodies.INDEX_FAILURES] = str(index_failures)
    if deleting:
        meta["deletionTimestamp"] = ago(1)
    state = {"terminated": {"exitCode": code, "finishedAt": ago(ended)}} if phase in ("Succeeded", "Failed") else {}
    told = {
        "phase": phase,
        "conditions": list(conditions),
        "containerStatuses": [{"name": "main", "restartCount": restarts, "state": state}],
    }
    return PODS.decode(PODS.as_dynamic.encode({"metadata": meta, "spec": {"nodeName": node}, "status": told}))


def names(pods: list[Pod]) -> list[str]:
    return [one.metadata.name for one in pods]


def word(status: JobStatus, type_: str) -> str:
    return next((f"{c.status} {c.reason}" for c in status.conditions or () if c.type == type_), "")


# ---- indexes ----


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", set()),
        ("0", {0}),
        ("0-2,5", {0, 1, 2, 5}),
        ("3-99", {3, 4, 5, 6, 7, 8, 9}),
        ("x,1-y,2", {2}),
        (None, set()),
    ],
)
def test_indexes_are_read(text: str | None, wanted: set[int]) -> None:
    assert indexes.parse(text, 10) == wanted


@given(st.sets(st.integers(0, 300)))
def test_indexes_survive_writing(found: set[int]) -> None:
    assert indexes.parse(indexes.write(found), 301) == found


def test_bodies_of_indexed_pods() -> None:
    body = bodies.pod_body(job(completionMode="Indexed", completions=3), 2, 1)
    meta = body["metadata"]
    assert meta["generateName"] == "work-2-" and meta["finalizers"] == [FINALIZER_JOB_TRACKING]
    assert (
        meta["annotations"] == {JOB_COMPLETION_INDEX: "2", bodies.INDEX_FAILURES: "1"}
        and meta["labels"][JOB_COMPLETION_INDEX] == "2"
    )
    assert body["spec"]["hostname"] == "work-2" and "hostname" not in NEVER["spec"]
    (variable,) = body["spec"]["containers"][0]["env"]
    assert (
        variable["name"] == "JOB_COMPLETION_INDEX"
        and JOB_COMPLETION_INDEX in variable["valueFrom"]["fieldRef"]["fieldPath"]
    )
    assert "env" not in NEVER["spec"]["containers"][0] and "hostname" not in bodies.pod_body(job(), None)["spec"]


# ---- counting ----


def test_a_pod_is_noted_then_released_then_counted() -> None:
    first = plan.plan(job(completions=2), [pod("a", "Succeeded")], NOW)
    assert first.status.uncounted_terminated_pods and first.status.uncounted_terminated_pods.succeeded == ("a",)
    assert first.status.succeeded == 0 and names(first.release) == ["a"] and len(first.create) == 1
    again = plan.plan(job(completions=2, status=first.status), [pod("a", "Succeeded")], NOW)
    assert again.status == first.status and names(again.release) == ["a"]
    for rest in ([pod("a", "Succeeded", held=False)], []):
        then = plan.plan(job(completions=2, status=first.status), rest, NOW)
        assert then.status.succeeded == 1 and then.status.uncounted_terminated_pods is None and not then.release


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["end", "fail", "delete", "vanish", "crash", "step"]), max_size=40), st.integers(1, 6))
def test_counting_is_exact_whatever_happens(actions: list[str], completions: int) -> None:
    """A model of the server: every pod that ended is counted exactly once, also over crashes between the writes."""
    stored = JobStatus()
    pods: dict[str, Pod] = {}
    truth = {"Succeeded": 0, "Failed": 0}
    made = 0

    def step(stop_after: int | None) -> None:
        nonlocal stored, made
        wanted = plan.plan(
            job(completions=completions, parallelism=3, backoffLimit=1000, status=stored),
            list(pods.values()),
            NOW + timedelta(hours=1),
        )
        stored = wanted.status
        for i, released in enumerate(wanted.release):
            if i == stop_after:
                return
            name = released.metadata.name
            pods[name] = msgspec.structs.replace(
                pods[name], metadata=msgspec.structs.replace(pods[name].metadata, finalizers=None)
            )
            if pods[name].metadata.deleting:
                del pods[name]
        if stop_after is None:
            for _ in wanted.create:
                made += 1
                pods[f"p{made}"] = pod(f"p{made}")

    for action in actions:
        running = [one for one in pods.values() if not one.ended and not one.metadata.deleting]
        if action in ("end", "fail") and running:
            name, phase = running[0].metadata.name, "Succeeded" if action == "end" else "Failed"
            pods[name] = pod(name, phase, ended=5)
            truth[phase] += 1
        elif action == "delete" and running:
            name = running[0].metadata.name
            pods[name] = pod(name, deleting=True)
            truth["Failed"] += 1
        elif action == "vanish":
            for name in [n for n, one in pods.items() if one.ended and not plan.tracked(one)]:
                del pods[name]
        elif action == "crash":
            step(0)
        elif action == "step":
            step(None)
        if stored.conditions:
            break
    for _ in range(3):
        step(None)
        for name in [n for n, one in pods.items() if not one.ended]:
            del pods[name]  # what was made meanwhile is not part of the question
    assert (stored.succeeded, stored.failed) == (truth["Succeeded"], truth["Failed"])


# ---- verdicts ----

DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
POLICY = {
    "rules": [
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [1]}},
    ]
}
ON_FAILURE = template({"app": "job"}, restartPolicy="OnFailure")


@pytest.mark.parametrize(
    ("spec", "status", "pods", "verdict"),
    [
        ({"completions": 0}, {}, [], "Complete: True CompletionsReached"),
        ({}, {"succeeded": 1}, [], "Complete: True CompletionsReached"),
        ({}, {}, [pod("a", "Succeeded")], "SuccessCriteriaMet: True CompletionsReached"),
        ({"completions": 2}, {"succeeded": 1}, [], ""),
        ({"completions": None, "parallelism": 3}, {"succeeded": 1}, [pod("b")], ""),
        ({"completions": None, "parallelism": 3}, {"succeeded": 1}, [], "Complete: True CompletionsReached"),
        ({"backoffLimit": 1}, {"failed": 1}, [], ""),
        ({"backoffLimit": 1}, {"failed": 2}, [], "Failed: True BackoffLimitExceeded"),
        ({"backoffLimit": 0}, {}, [pod("a", "Failed")], "FailureTarget: True BackoffLimitExceeded"),
        ({"backoffLimit": 1}, {"failed": 2}, [pod("a")], "FailureTarget: True BackoffLimitExceeded"),
        ({"backoffLimit": 3, "template": ON_FAILURE}, {}, [pod("a", restarts=3)], "FailureTarget: True BackoffLimitExceeded"),
        ({"backoffLimit": 3, "template": ON_FAILURE}, {}, [pod("a", restarts=2)], ""),
        ({"backoffLimit": 0, "template": ON_FAILURE}, {}, [pod("a", restarts=1)], "FailureTarget: True BackoffLimitExceeded"),
        ({"activeDeadlineSeconds": 60}, {"startTime": ago(61)}, [], "Failed: True DeadlineExceeded"),
        ({"activeDeadlineSeconds": 60}, {"startTime": ago(59)}, [], ""),
        ({"activeDeadlineSeconds": 60, "suspend": True}, {"startTime": ago(61)}, [], ""),
        ({"podFailurePolicy": POLICY}, {}, [pod("a", "Failed", code=42)], "FailureTarget: True PodFailurePolicy"),
        ({"podFailurePolicy": POLICY}, {}, [pod("a", "Failed", code=1)], ""),
        ({"podFailurePolicy": POLICY, "backoffLimit": 0}, {}, [pod("a", "Failed", code=137, conditions=DISRUPTED)], ""),
        ({"completionMode": "Indexed", "completions": 2}, {"completedIndexes": "0-1"}, [], "Complete: True CompletionsReached"),
        ({"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 1}, {"completedIndexes": "0"}, [pod("a", "Failed", index=1, index_failures=1)], "FailureTarget: True FailedIndexes"),
        ({"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 1}, {"completedIndexes": "0"}, [pod("a", "Failed", index=1, index_failures=0)], ""),
        ({"completionMode": "Indexed", "completions": 9, "backoffLimitPerIndex": 0, "maxFailedIndexes": 0}, {}, [pod("a", "Failed", index=1)], "FailureTarget: True MaxFailedIndexesExceeded"),
    ],
)  # fmt: skip
def test_verdicts(spec: Object, status: Object, pods: list[Pod], verdict: str) -> None:
    found = plan.plan(job(status=status, **spec), pods, NOW)
    if not verdict:
        assert not any(
            c.type in ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")
            for c in found.status.conditions or ()
        )
        return
    type_, _, told = verdict.partition(": ")
    assert word(found.status, type_) == told
    over = type_ in ("Complete", "Failed")
    assert bool(found.notes) is over and (found.status.completion_time is not None) is (type_ == "Complete")
    assert not found.create and names(found.delete) == [p.metadata.name for p in pods if p.status.phase == "Running"]


def test_policy_messages_and_ignored_failures() -> None:
    ruled = failures.rule(job(podFailurePolicy=POLICY), pod("a", "Failed", code=42))
    assert ruled.message == "Container main for pod default/a failed with exit code 42 matching FailJob rule at index 0"
    ignored = plan.plan(job(podFailurePolicy=POLICY), [pod("a", "Failed", code=137, conditions=DISRUPTED)], NOW)
    assert ignored.status.uncounted_terminated_pods is None and names(ignored.release) == ["a"]


def test_a_verdict_once_given_stays() -> None:
    first = plan.plan(job(backoffLimit=0), [pod("a", "Failed"), pod("b")], NOW)
    later = plan.plan(job(backoffLimit=99, status=first.status), [pod("b", deleting=True)], NOW)
    assert word(later.status, "FailureTarget") and not word(later.status, "Failed")
    end = plan.plan(job(backoffLimit=99, status=later.status), [], NOW)
    assert word(end.status, "Failed") == "True BackoffLimitExceeded" and end.status.failed == 2


# ---- pods ----


@pytest.mark.parametrize(
    ("spec", "status", "pods", "create", "withdraw"),
    [
        ({"completions": 5, "parallelism": 2}, {}, [], 2, 0),
        ({"completions": 5, "parallelism": 2}, {"succeeded": 4}, [], 1, 0),
        ({"completions": 5, "parallelism": 2}, {}, [pod("a")], 1, 0),
        ({"completions": 5, "parallelism": 1}, {}, [pod("a"), pod("b"), pod("c")], 0, 2),
        ({"completions": 5, "parallelism": 0}, {}, [pod("a")], 0, 1),
        ({"completions": None, "parallelism": 3}, {}, [], 3, 0),
        ({"completions": None, "parallelism": 3}, {"succeeded": 1}, [pod("a")], 0, 0),
        ({"completions": 3, "parallelism": 3, "suspend": True}, {}, [pod("a")], 0, 1),
        ({"completions": 1}, {}, [pod("a", "Failed", ended=9)], 0, 0),
        ({"completions": 1}, {}, [pod("a", "Failed", ended=11)], 1, 0),
        ({"completions": 1}, {}, [pod("a", deleting=True)], 1, 0),
        ({"completions": 1, "podReplacementPolicy": "Failed"}, {}, [pod("a", deleting=True)], 0, 0),
    ],
    ids=[
        "start", "last", "one-more", "too-many", "none-wanted", "queue", "queue-ends", "suspended", "pause", "pause-over",
        "deleted", "deleted-but-wait",
    ],
)  # fmt: skip
def test_pods_made_and_withdrawn(spec: Object, status: Object, pods: list[Pod], create: int, withdraw: int) -> None:
    found = plan.plan(job(status=status, **spec), pods, NOW)
    assert (len(found.create), len(found.withdraw)) == (create, withdraw)


def test_no_pods_for_a_job_that_goes_away() -> None:
    found = plan.plan(job(deleting=True, podReplacementPolicy="Failed"), [pod("a", deleting=True), pod("b")], NOW)
    assert not found.create and names(found.release) == ["a"]


def test_indexes_are_filled_from_below_and_doubles_go() -> None:
    spec: Object = {"completionMode": "Indexed", "completions": 6, "parallelism": 4}
    pods = [pod("a", index=2), pod("b", index=2, node=""), pod("c", index=9), pod("d", index=0)]
    found = plan.plan(job(status={"completedIndexes": "0-1"}, **spec), pods, NOW)
    assert sorted(names(found.withdraw)) == ["b", "c", "d"]
    assert [new.index for new in found.create] == [3, 4, 5] and found.status.succeeded == 2
    done = plan.plan(
        job(**spec),
        [pod("a", "Succeeded", index=3), pod("b", "Succeeded", index=3), pod("c", "Succeeded", index=77)],
        NOW,
    )
    assert (
        done.status.completed_indexes == "3"
        and done.status.uncounted_terminated_pods is None
        and len(done.release) == 3
    )


def test_failures_of_an_index_are_carried_on() -> None:
    spec: Object = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimitPerIndex": 3}
    found = plan.plan(
        job(**spec),
        [pod("a", "Failed", index=0, index_failures=1, ended=100), pod("b", "Failed", index=1, ended=3)],
        NOW,
    )
    assert found.create == [plan.NewPod(0, 2)] and found.after == 7.0 and found.status.failed_indexes == ""


@pytest.mark.parametrize(
    ("ends", "pause"),
    [([], 0), ([("Failed", 0)], 10), ([("Failed", 4)], 6), ([("Failed", 5), ("Failed", 50)], 15), ([("Failed", 0)] * 30, 600), ([("Failed", 20), ("Succeeded", 10)], 0), ([("Failed", 90), ("Succeeded", 50), ("Failed", 5)], 5)],
)  # fmt: skip
def test_pauses(ends: list[tuple[str, float]], pause: float) -> None:
    assert failures.pause([pod(f"p{i}", phase, ended=at) for i, (phase, at) in enumerate(ends)], NOW) == pause


@pytest.mark.parametrize(
    ("status", "left"),
    [
        ({"completionTime": ago(10), "conditions": [{"type": "Complete", "status": "True"}]}, 90.0),
        ({"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": ago(300)}]}, 0.0),
        ({}, None),
    ],
)
def test_time_to_live(status: Object, left: float | None) -> None:
    assert plan.expires_in(job(status=status, ttlSecondsAfterFinished=100), NOW) == left
    assert plan.expires_in(job(status=status), NOW) is None


# ---- on the server ----

MAKES = (("job-controller", controller.make), lambda c, i, clock: GarbageCollector(c, clock=clock))


def body(name: str = "work", **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"template": NEVER, **spec}}


async def finished(w: World, name: str = "work") -> bool:
    return any(
        c["type"] in ("Complete", "Failed") and c["status"] == "True"
        for c in (await w.status(JOB, name)).get("conditions") or ()
    )


def reason_of(status: Object, type_: str) -> str:
    return next((c["reason"] for c in status.get("conditions") or () if c["type"] == type_), "")


async def held(w: World) -> list[str]:
    return [p["metadata"]["name"] for p in await w.pods() if p["metadata"].get("finalizers")]


async def test_a_job_with_failures_completes() -> None:
    async with world(*MAKES) as w:
        bad = iter([True, False, True])
        verdicts: dict[str, str] = {}

        def outcome(found: Object) -> str:
            name = found["metadata"]["name"]
            if name not in verdicts:
                verdicts[name] = "Failed" if next(bad, False) else "Succeeded"
            return verdicts[name]

        w.outcome = outcome
        await w.client.create(JOB, body(completions=5, parallelism=2))
        await w.until(lambda: finished(w), 300)
        status = await w.status(JOB, "work")
        assert (status["succeeded"], status["failed"], status.get("active", 0)) == (5, 2, 0)
        assert (
            reason_of(status, "Complete") == "CompletionsReached" and status["completionTime"] and status["startTime"]
        )
        assert "uncountedTerminatedPods" not in status and len(w.started) == 7
        await w.settle(2)
        assert await held(w) == []
        reasons = [reason for reason, _ in await w.events()]
        assert "Completed" in reasons and "SuccessfulCreate" in reasons


async def test_too_many_failures_end_it_and_pauses_grow() -> None:
    async with world(*MAKES) as w:
        w.outcome = lambda found: "Failed"
        await w.client.create(JOB, body(backoffLimit=2))
        await w.settle(9)
        assert len(w.started) == 1
        await w.settle(3)
        assert len(w.started) == 2
        await w.until(lambda: finished(w), 60)
        status = await w.status(JOB, "work")
        assert status["failed"] == 3 and reason_of(status, "Failed") == "BackoffLimitExceeded"
        assert ("BackoffLimitExceeded", "Job has reached the specified backoff limit") in await w.events()


async def test_deadline_deletes_what_runs() -> None:
    async with world(*MAKES) as w:
        await w.client.create(JOB, body(completions=3, parallelism=3, activeDeadlineSeconds=30))
        await w.settle(28)
        assert (await w.status(JOB, "work"))["ready"] == 3
        await w.until(lambda: finished(w), 10)
        await w.settle(2)
        assert reason_of(await w.status(JOB, "work"), "Failed") == "DeadlineExceeded" and await w.pods() == []


async def test_suspended_and_resumed() -> None:
    async with world(*MAKES) as w:
        await w.client.create(JOB, body(completions=2, parallelism=2))
        await w.settle(2)
        assert (await w.status(JOB, "work"))["active"] == 2
        await w.client.patch(JOB, "work", "default", {"spec": {"suspend": True}})
        await w.settle(3)
        status = await w.status(JOB, "work")
        assert await w.pods() == [] and reason_of(status, "Suspended") == "JobSuspended"
        assert status.get("failed", 0) == 0 and "startTime" not in status
        w.outcome = lambda found: "Succeeded"
        await w.client.patch(JOB, "work", "default", {"spec": {"suspend": False}})
        await w.until(lambda: finished(w))
        assert (await w.status(JOB, "work"))["succeeded"] == 2
        assert {"Suspended", "Resumed"} <= {reason for reason, _ in await w.events()}


async def test_indexed() -> None:
    async with world(*MAKES) as w:
        failed: set[str] = set()

        def outcome(found: Object) -> str:
            index = found["metadata"]["annotations"][JOB_COMPLETION_INDEX]
            if index == "1" and (not failed or found["metadata"]["name"] in failed):
                failed.add(found["metadata"]["name"])
                return "Failed"
            return "Succeeded"

        w.outcome = outcome
        await w.client.create(JOB, body(completions=4, parallelism=2, completionMode="Indexed"))
        await w.until(lambda: finished(w), 120)
        status = await w.status(JOB, "work")
        assert (status["completedIndexes"], status["succeeded"], status["failed"]) == ("0-3", 4, 1)
        spec = (await w.pods())[0]["spec"]
        assert (
            spec["hostname"].startswith("work-") and spec["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
        )


async def test_pods_deleted_by_hand_are_counted_and_replaced() -> None:
    async with world(*MAKES) as w:
        await w.client.create(JOB, body())
        await w.settle(2)
        (first,) = await w.pods()
        await w.client.delete(POD, first["metadata"]["name"], "default")
        await w.settle(2)
        assert (await w.status(JOB, "work"))["failed"] == 1 and len(w.started) == 2
        w.outcome = lambda found: "Succeeded"
        await w.until(lambda: finished(w))


async def test_finished_jobs_go_after_their_time_and_pods_are_never_left_held() -> None:
    async with world(*MAKES) as w:
        w.outcome = lambda found: "Succeeded"
        await w.client.create(JOB, body(ttlSecondsAfterFinished=20))
        await w.until(lambda: finished(w))
        await w.settle(15)
        assert await w.exists(JOB, "work")
        await w.settle(15)
        assert not await w.exists(JOB, "work") and await w.pods() == []
        for policy in ("Background", "Orphan", "Foreground"):
            w.outcome = lambda found: "Running"
            await w.client.create(JOB, body("short", parallelism=2, completions=2))
            await w.settle(1)
            assert len(await held(w)) == 2
            await w.client.delete(JOB, "short", "default", propagation=policy)  # type: ignore[arg-type]
            await w.settle(8)
            assert not await w.exists(JOB, "short") and await held(w) == []
            assert len(await w.pods()) == (2 if policy == "Orphan" else 0)
            for left in await w.pods():
                await w.client.delete(POD, left["metadata"]["name"], "default")
            await w.settle(1)
