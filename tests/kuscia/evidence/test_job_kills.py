"""A control plane that is killed between an event and its effect, and before the event: no task and no approval without its event, and each event once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store import SqliteStore
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceEvent
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.evidence.log_file import EvidenceReader
from coterie.kuscia.extensions.apiserver import KUSCIA

_PLANE = """
import asyncio, os, signal, sys
from pathlib import Path
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import AlreadyExists
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store import SqliteStore
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.controllers.kusciajob import controller as kusciajob
from coterie.kuscia.evidence.api_writes import EvidenceGate
from coterie.kuscia.evidence.job_events import JobEvents
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.identity import domain_identity

home, when, kind, jobs = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])

class Dying(EvidenceService):
    "Killed before or after the first event of a kind."
    async def record(self, *requests):
        due = any(each.event.kind == kind for each in requests)
        if due and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().record(*requests)
        if due and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

IMAGE = {
    "metadata": {"name": "engine"},
    "spec": {
        "image": {"name": "coterie/host", "tag": "latest"},
        "deployTemplates": [{"name": "t", "spec": {"containers": [{"name": "c", "workingDir": "/"}]}}],
    },
}

def job(number):
    # Those with even numbers have parties of our own and run; the others wait for a partner after we approved them.
    parties = ["alice", "bob"] if number % 2 == 0 else ["alice", "carol"]
    task = {"alias": "a", "appImage": "engine", "taskInputConfig": "{}", "parties": [{"domainID": each} for each in parties]}
    spec = {"initiator": "alice", "tasks": [task], "maxParallelism": 1}
    return {"metadata": {"name": f"job-{number}", "namespace": CROSS_DOMAIN}, "spec": spec}

async def main():
    paths = DomainPaths.of(home, "alice").prepare()
    domain_identity.ensure(paths, "alice", None, SYSTEM_CLOCK.now())
    service = Dying(paths, "alice", home / "s", SYSTEM_CLOCK)
    running = [asyncio.ensure_future(service.run())]
    await service.ready.wait()
    store = SqliteStore(home / "store.db", clock=SYSTEM_CLOCK)
    await store.open()
    server = ApiServer(store, Settings(write_gate=EvidenceGate(service), extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    own = Client(InProcessTransport(server.handle, UserInfo("system:coterie-controllers", ("system:masters",))))
    anna = Client(InProcessTransport(server.handle, UserInfo("anna", ("system:masters",))))
    async def ensure(kind, body):
        try:
            await anna.create(kind.as_dynamic, body)
        except AlreadyExists:
            pass
    await ensure(DOMAINS, {"metadata": {"name": "alice"}, "spec": {}})
    await ensure(DOMAINS, {"metadata": {"name": "bob"}, "spec": {}})
    await ensure(DOMAINS, {"metadata": {"name": "carol"}, "spec": {"role": "partner"}})
    await ensure(APP_IMAGES, IMAGE)
    informers = Informers(own)
    controller = kusciajob.make(own, informers, evidence=JobEvents(service), shows=False)
    running += [asyncio.ensure_future(each.run()) for each in (informers, controller)]
    for number in range(jobs):
        await ensure(KUSCIA_JOBS, job(number))
    for _ in range(3000):
        tasks = (await own.list(KUSCIA_TASKS.as_dynamic, CROSS_DOMAIN)).items
        found = (await own.list(KUSCIA_JOBS.as_dynamic, CROSS_DOMAIN)).items
        approved = [each for each in found if (each.get("status") or {}).get("approveStatus")]
        print(len(tasks) + len(approved), flush=True)
        await asyncio.sleep(0.02)

asyncio.run(main())
"""


def test_no_task_and_no_approval_without_its_event(tmp_path: Path) -> None:
    jobs = 0
    for when in ("before", "after"):
        for kind in (evidence.JOB_APPROVED, evidence.TASK_STARTED):
            # More jobs each time, so that there is something to be killed at.
            jobs += 2
            run_until_killed(tmp_path, jobs, when, kind)
            assert_recorded(*asyncio.run(found_in(tmp_path)))
    run_until_killed(tmp_path, jobs, effects=jobs + jobs // 2)
    events, tasks, approved = asyncio.run(found_in(tmp_path))
    assert_recorded(events, tasks, approved)
    assert (len(tasks), len(approved)) == (jobs // 2, jobs)
    counts = Counter((each.kind, each.job, each.task, each.partner) for each in events)
    once = {each: count for each, count in counts.items() if each[0] in (evidence.JOB_APPROVED, evidence.TASK_STARTED)}
    assert set(once.values()) == {1}, once


def run_until_killed(home: Path, jobs: int, when: str = "", kind: str = "", effects: int | None = None) -> None:
    """By itself before or after an event of a kind, or from outside when so many tasks and approvals are there."""
    child = subprocess.Popen(
        [sys.executable, "-c", _PLANE, str(home), when, kind, str(jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        for line in child.stdout:
            if effects is not None and int(line) >= effects:
                break
    finally:
        child.kill()
        _, said = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL, said


async def found_in(home: Path) -> tuple[list[EvidenceEvent], set[str], set[str]]:
    """The events, the tasks that were made, the jobs that alice approved."""
    reader = EvidenceReader(home / "alice/var/storage/evidence/1/evidence.db")
    events = [evidence.decode(each.body or b"") for each in reader.events()]
    store = SqliteStore(home / "store.db", clock=SYSTEM_CLOCK)
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, UserInfo("anna", ("system:masters",))))
    tasks = (await client.list(KUSCIA_TASKS.as_dynamic, CROSS_DOMAIN)).items
    jobs = (await client.list(KUSCIA_JOBS.as_dynamic, CROSS_DOMAIN)).items
    await client.close()
    await server.stop()
    await store.close()
    approved = {
        each["metadata"]["name"] for each in jobs if (each.get("status") or {}).get("approveStatus", {}).get("alice")
    }
    return events, {each["metadata"]["name"] for each in tasks}, approved


def assert_recorded(events: list[EvidenceEvent], tasks: set[str], approved: set[str]) -> None:
    assert tasks <= {each.task for each in events if each.kind == evidence.TASK_STARTED}
    assert approved <= {each.job for each in events if each.kind == evidence.JOB_APPROVED and each.partner == "alice"}
