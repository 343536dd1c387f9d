"""The agent on the real API server with the fake runtime: what a user sees of pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_kit import PODS, World, container, is_ready, phase, pod, status_named, world


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.start_agent()
        yield made


async def test_a_pod_runs_and_is_told_as_kubernetes_tells_it(here: World) -> None:
    await here.create(pod("web"))
    found = await here.pod_until("web", is_ready)
    status = found["status"]
    assert status["phase"] == "Running"
    assert (status["hostIP"], status["podIP"], status["podIPs"]) == ("127.0.0.1", "127.0.0.1", [{"ip": "127.0.0.1"}])
    assert status["qosClass"] == "BestEffort" and status["startTime"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    told = status_named(found)
    assert told["state"]["running"]["startedAt"] and told["ready"] and told["started"] and told["restartCount"] == 0
    assert told["containerID"].startswith("fake://") and told["imageID"].startswith("sha256:")
    assert ("Started", "Started container main") in await here.events("web")
    assert here.machine.started == [("web", "main", 0)]


async def test_ids_of_containers_begin_with_the_handler_that_the_pod_asked_for(here: World) -> None:
    await here.create(pod("boxed", runtimeClassName="runp"))
    assert status_named(await here.pod_until("boxed", is_ready))["containerID"].startswith("runp://")


@pytest.mark.parametrize(
    ("script", "wanted", "reason", "code"),
    [
        pytest.param("echo done; exit 0", "Succeeded", "Completed", 0, id="success"),
        pytest.param("exit 3", "Failed", "Error", 3, id="failure"),
        pytest.param("oom", "Failed", "OOMKilled", 137, id="out-of-memory"),
    ],
)
async def test_a_task_ends(here: World, script: str, wanted: str, reason: str, code: int) -> None:
    await here.create(pod("task", container(script), policy="Never"))
    found = await here.pod_until("task", phase(wanted))
    ended = status_named(found)["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == (reason, code)
    ready = next(c for c in found["status"]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodCompleted" if wanted == "Succeeded" else "PodFailed")
    await here.settle(400)
    assert here.machine.started == [("task", "main", 0)]


async def test_a_crashing_container_is_restarted_with_growing_pauses(here: World) -> None:
    await here.create(pod("crash", container("exit 1")))
    found = await here.pod_until(
        "crash", lambda p: status_named(p).get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    told = status_named(found)
    assert told["restartCount"] == 1 and told["lastState"]["terminated"]["exitCode"] == 1
    assert "back-off 10s" in told["state"]["waiting"]["message"]
    assert found["status"]["phase"] == "Running"
    await here.settle(11)
    assert len(here.machine.started) == 3
    await here.settle(15)
    assert len(here.machine.started) == 3
    await here.settle(6)
    assert len(here.machine.started) == 4
    assert any(reason == "BackOff" for reason, _ in await here.events("crash"))


async def test_init_containers_run_one_after_the_other(here: World) -> None:
    await here.create(
        pod(
            "ordered",
            container(name="main"),
            initContainers=[container("sleep 2", "first"), container("sleep 2", "second")],
        )
    )
    found = await here.pod_until("ordered", lambda p: "running" in status_named(p, "first").get("state", {}))
    assert found["status"]["phase"] == "Pending"
    assert status_named(found, "main")["state"]["waiting"]["reason"] == "PodInitializing"
    found = await here.pod_until("ordered", is_ready)
    assert here.machine.started == [("ordered", "first", 0), ("ordered", "second", 0), ("ordered", "main", 0)]
    assert status_named(found, "first")["ready"] and status_named(found, "first")["state"]["terminated"]


async def test_a_sidecar_starts_first_and_ends_last(here: World) -> None:
    sidecar = container("sleep inf", "helper", restartPolicy="Always")
    await here.create(pod("served", container("sleep 5", "main"), policy="Never", initContainers=[sidecar]))
    await here.pod_until("served", is_ready)
    assert [name for _, name, _ in here.machine.started] == ["helper", "main"]
    found = await here.pod_until("served", phase("Succeeded"))
    assert status_named(found, "helper")["state"]["terminated"]


async def test_a_missing_image_fails_a_task_instead_of_hanging(here: World) -> None:
    broken = {**container("exit 0"), "image": "nobody/has:this"}
    await here.create(pod("no-image", broken, policy="Never"))
    found = await here.pod_until(
        "no-image", lambda p: status_named(p).get("state", {}).get("waiting", {}).get("reason") == "ErrImageNeverPull"
    )
    assert found["status"]["phase"] == "Pending"
    found = await here.pod_until("no-image", phase("Failed"), 90)
    assert found["status"]["reason"] == "ErrImageNeverPull" and "nobody/has:this" in found["status"]["message"]
    assert ("Failed", "Error: ErrImageNeverPull") in await here.events("no-image")


async def test_deletion_lets_a_pod_end_and_then_removes_it(here: World) -> None:
    await here.create(pod("polite", terminationGracePeriodSeconds=30))
    await here.create(pod("deaf", container("trap '' TERM; sleep inf"), terminationGracePeriodSeconds=5))
    for name in ("polite", "deaf"):
        await here.pod_until(name, is_ready)
        await here.user.delete(PODS, name, "alice")
    await here.gone("polite", 3)
    await here.settle(2)
    assert "deletionTimestamp" in (await here.pod("deaf"))["metadata"]
    await here.gone("deaf", 6)
    assert here.machine.pods == {}
    assert not list((here.root / "alice/var/pods").iterdir())


async def test_a_shorter_grace_comes_through(here: World) -> None:
    await here.create(pod("slow", container("trap '' TERM; sleep inf"), terminationGracePeriodSeconds=600))
    await here.pod_until("slow", is_ready)
    await here.user.delete(PODS, "slow", "alice")
    await here.settle(5)
    await here.user.delete(PODS, "slow", "alice", grace=10)
    await here.gone("slow", 12)


async def test_a_pod_removed_by_force_is_stopped(here: World) -> None:
    await here.create(pod("forced"))
    await here.pod_until("forced", is_ready)
    await here.user.delete(PODS, "forced", "alice", grace=0)
    await here.until(lambda: here.machine.pods == {}, 10)


async def test_the_active_deadline_ends_a_pod(here: World) -> None:
    await here.create(pod("late", policy="Never", activeDeadlineSeconds=20))
    await here.pod_until("late", is_ready)
    found = await here.pod_until("late", phase("Failed"), 25)
    assert found["status"]["reason"] == "DeadlineExceeded"
    assert any(reason == "DeadlineExceeded" for reason, _ in await here.events("late"))


async def test_exec_probes_make_ready_and_kill(here: World) -> None:
    answers = {"ready": 1, "live": 0}
    here.machine.execs["main"] = lambda command: (answers[command[0]], b"", b"not so well")
    probed = container(
        "sleep inf",
        readinessProbe={"exec": {"command": ["ready"]}, "periodSeconds": 2, "failureThreshold": 1},
        livenessProbe={"exec": {"command": ["live"]}, "periodSeconds": 5, "failureThreshold": 2},
    )
    await here.create(pod("probed", probed))
    await here.pod_until("probed", phase("Running"))
    await here.settle(5)
    assert not is_ready(await here.pod("probed"))
    answers["ready"] = 0
    await here.pod_until("probed", is_ready, 5)
    answers["live"] = 1
    found = await here.pod_until("probed", lambda p: status_named(p)["restartCount"] == 1, 30)
    assert status_named(found)["lastState"]["terminated"]["exitCode"] == 143
    told = await here.events("probed")
    assert any(reason == "Unhealthy" and "Liveness probe failed" in message for reason, message in told)
    assert ("Killing", "Container main failed liveness probe, will be restarted") in told


async def test_hooks_run_and_a_failing_post_start_kills(here: World) -> None:
    ran: list[str] = []
    here.machine.execs["good"] = lambda command: (ran.append(command[0]) or 0, b"", b"")
    hooked = container(
        "sleep inf",
        "good",
        lifecycle={"postStart": {"exec": {"command": ["hello"]}}, "preStop": {"exec": {"command": ["bye"]}}},
    )
    await here.create(pod("hooked", hooked))
    await here.pod_until("hooked", is_ready)
    assert ran == ["hello"]
    await here.user.delete(PODS, "hooked", "alice")
    await here.gone("hooked", 5)
    assert ran == ["hello", "bye"]
    here.machine.execs["bad"] = lambda command: (1, b"", b"no")
    failing = container("sleep inf", "bad", lifecycle={"postStart": {"exec": {"command": ["hello"]}}})
    await here.create(pod("failing", failing))
    await here.pod_until("failing", lambda p: status_named(p, "bad").get("restartCount", 0) >= 1)
    assert any(reason == "FailedPostStartHook" for reason, _ in await here.events("failing"))


async def test_termination_messages_come_from_file_or_log(here: World) -> None:
    written = container("echo because > /dev/termination-log; exit 1", "file")
    logged = container("echo the log says why; exit 1", "log", terminationMessagePolicy="FallbackToLogsOnError")
    await here.create(pod("why", written, logged, policy="Never"))
    found = await here.pod_until("why", phase("Failed"))
    assert status_named(found, "file")["state"]["terminated"]["message"] == "because\n"
    assert status_named(found, "log")["state"]["terminated"]["message"] == "the log says why\n"
