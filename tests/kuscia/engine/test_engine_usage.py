"""Engines are measured while they run, and nothing is awake when none does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coterie.base.clock import VirtualClock
from coterie.kube.agent.runtimes.protocol import ContainerState, ContainerUsage, PodState
from coterie.kuscia.api.types.domain import TaskLinkUsage
from coterie.kuscia.control.log_index import LoggedPod
from coterie.kuscia.control.usage_log import UsageLog
from coterie.kuscia.engine.usage_recorder import EngineUsageRecorder

POD = {
    "metadata": {"name": "j-psi-0", "uid": "u", "creationTimestamp": "2026-01-02T03:04:00Z"},
    "status": {
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:04:01Z"}]
    },
}
ENTRY = LoggedPod(0, "alice", "j", "j-psi", "j-psi-0", "u")


class Runtime:
    """One pod; half a CPU while it runs."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.state: PodState | None = None
        self.measured = 0

    def run(self, finished: float = 0.0, code: int = 0) -> None:
        begun = self.clock.now().timestamp() if self.state is None else self.state.containers[0].started_at
        made = ContainerState("c", 0, "i", "", 1, begun, finished, code, reason="Error" if code else "")
        self.state = PodState("u", "alice", "j-psi-0", (made,))

    def pod(self, uid: str) -> PodState | None:
        return self.state

    async def usage(self, uid: str) -> dict[str, ContainerUsage]:
        self.measured += 1
        running = self.state is not None and self.state.containers[0].running
        return {"c": ContainerUsage(int(self.clock.monotonic() * 5e8), 1 << 20, 1)} if running else {}


async def test_a_pod_is_measured_from_its_start_to_its_end(tmp_path: Path) -> None:
    clock = VirtualClock()
    runtime = Runtime(clock)
    recorder = EngineUsageRecorder(runtime, UsageLog(tmp_path / "usage.log", clock), clock)  # type: ignore[arg-type]
    running = asyncio.ensure_future(recorder.run())
    await clock.advance(30)
    assert clock.sleepers == 0, "no engine runs: nothing is awake"
    recorder.starting(ENTRY, POD)
    recorder.starting(ENTRY, POD)
    await clock.advance(2)
    runtime.run()
    await clock.advance(3)
    runtime.run(finished=clock.now().timestamp(), code=1)
    await clock.advance(2)
    assert clock.sleepers == 0
    running.cancel()
    lines = [line.partition("usage: ")[2] for line in (tmp_path / "usage.log").read_text().splitlines()]
    about = "job=j task=j-psi pod=j-psi-0"
    assert lines[0] == f"starting {about} made=2026-01-02T03:04:00Z scheduled=2026-01-02T03:04:01Z"
    assert [line.split()[0] for line in lines] == ["starting", "sample", "sample", "sample", "ended"]
    assert "cpu=0.5 memory=1048576" in lines[2] and "began=" in lines[1] and "began=" not in lines[2]
    assert "reason=Error code=1" in lines[-1] and "finished=2026-01-02T03:04:40" in lines[-1]


async def test_a_pod_that_never_starts_is_forgotten(tmp_path: Path) -> None:
    clock = VirtualClock()
    runtime = Runtime(clock)
    recorder = EngineUsageRecorder(runtime, UsageLog(tmp_path / "usage.log", clock), clock)  # type: ignore[arg-type]
    running = asyncio.ensure_future(recorder.run())
    recorder.starting(ENTRY, POD)
    await clock.advance(400)
    assert clock.sleepers == 0
    running.cancel()
    assert len((tmp_path / "usage.log").read_text().splitlines()) == 1


async def test_links_are_written_more_seldom_with_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    target = UsageLog(tmp_path / "usage.log", clock)
    for _ in range(60 * 30):
        target.links([TaskLinkUsage(task="j-psi", peer="bob", sent_bits_per_second=0, received_bits_per_second=0,
                                    sent_bytes=1, received_bytes=2, at="")])  # fmt: skip
        await clock.advance(2)
    lines = (tmp_path / "usage.log").read_text().splitlines()
    assert lines[0].endswith("usage: link task=j-psi peer=bob sent=1 received=2")
    assert 550 < len(lines) < 700, "of an hour, where 1,800 were measured"
    target.links([])
    assert (tmp_path / "usage.log").read_text().splitlines() == lines


async def test_a_disk_that_refuses_disturbs_nobody(tmp_path: Path) -> None:
    target = UsageLog(tmp_path / "missing" / "usage.log", VirtualClock())
    target.write("sample", {"task": "t"})
