"""LogService: pods that run, pods that are gone, roles, containers; every code, both roles, each mode.

The API server here has no nodes: what agents would answer for a pod's log is given by the transport.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from kusciaapi_kit import World, domain_caller, here, served

from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.kube.api.errors import Forbidden, ServiceUnavailable
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.transport import Disconnected, Transport, TransportRequest, TransportResponse
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_TASKS
from coterie.kuscia.control.log_index import LoggedPod, PodLogIndex
from coterie.kuscia.kusciaapi.log_search import OPERATIONS as SEARCH
from coterie.kuscia.kusciaapi.logs import OPERATIONS, in_pages
from coterie.kuscia.kusciaapi.operations import Mode, OnLite

POD, TASK, NODE = PODS.as_dynamic, KUSCIA_TASKS.as_dynamic, NODES.as_dynamic


class Agents:
    """Answers for the logs of pods: text, or what is raised."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.logs: dict[str, bytes | Exception] = {}
        self.pages: dict[str, Object | Exception] = {}
        self.asked: list[tuple[str, str]] = []

    async def send(self, call: TransportRequest) -> TransportResponse:
        if not call.path.endswith("/log"):
            return await self._inner.send(call)
        pod = call.path.split("/")[-2]
        if pod == "*" and call.path.split("/")[-4] == CROSS_DOMAIN:
            raise Forbidden("not for domains")
        self.asked.append((pod, call.query))
        if pod == "*":
            page = self.pages[call.path.split("/")[-4]]
            if isinstance(page, Exception):
                raise page
            return TransportResponse(200, body=orjson.dumps(page))
        found = self.logs[pod]
        if isinstance(found, Exception):
            raise found
        return TransportResponse(200, lines=Said(found))

    async def close(self) -> None:
        await self._inner.close()


class Said:
    def __init__(self, text: bytes) -> None:
        self._left = [text]

    async def read(self) -> list[bytes]:
        raise NotImplementedError

    async def chunk(self) -> bytes:
        return self._left.pop() if self._left else b""

    async def close(self) -> None:
        return None


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with here(tmp_path_factory.mktemp("plane"), namespaces=("bob",)) as world:
        yield world.client


@pytest_asyncio.fixture(loop_scope="module")
async def agents(plane: Client) -> AsyncIterator[Agents]:
    yield Agents(plane.transport)
    await plane.delete_collection(POD, "alice", grace=0)
    await plane.delete_collection(TASK, CROSS_DOMAIN)
    await plane.delete_collection(NODE)


@pytest_asyncio.fixture(loop_scope="module")
async def alice(agents: Agents, tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path, client=Client(agents)) as world:
        yield world


async def put_pod(
    world: World, task: str = "t", role: str = "", index: int = 0, *, domain: str = "alice", node: str = "n1",
    containers: tuple[str, ...] = ("main",), phase: str = "Running",
) -> Object:  # fmt: skip
    """A pod as the task's controller made it."""
    tail = f"{role}-{index}" if role else str(index)
    body = {
        "metadata": {
            "name": f"{task}-{tail}",
            "labels": {
                labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_TASK, labels.KUSCIA_POD_ROLE: role,
                labels.KUSCIA_POD_IDENTITY: f"0000-uid-of-{task}-{tail}",
            },
            "annotations": {labels.KUSCIA_TASK_ID: task},
        },
        "spec": {"nodeName": node, "containers": [{"name": name, "image": "i:1"} for name in containers]},
    }  # fmt: skip
    pod = await world.client.create(POD, body, domain)
    return await world.client.patch_status(POD, pod["metadata"]["name"], domain, {"status": {"phase": phase}})


async def put_task(world: World, task: str = "t", *pods: str, parties: tuple[str, ...] = ("alice",)) -> None:
    """A task that remembers pods of alice."""
    named = [{"domainID": each, "appImageRef": "i"} for each in parties]
    spec = {"initiator": "alice", "taskInputConfig": "{}", "parties": named}
    await world.client.create(TASK, {"metadata": {"name": task, "namespace": CROSS_DOMAIN}, "spec": spec})
    told = {
        f"alice/{pod}": {"podName": pod, "namespace": "alice", "podPhase": "Succeeded", "nodeName": "n7"}
        for pod in pods
    }
    await world.client.patch_status(TASK, task, CROSS_DOMAIN, {"status": {"podStatuses": told}})


def keep(world: World, pod: str, text: str, container: str = "main", run: int = 0, uid: str = "u1") -> Path:
    """Output of a pod as its agent keeps it."""
    directory = world.here.paths.pod_stdout("alice", pod, uid) / container
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{run}.log"
    file.write_text("".join(f"2026-01-02T03:04:05.000000Z stdout F {line}\n" for line in text.splitlines()))
    return file


async def read(world: World, *, caller: Any = None, **request: Any) -> tuple[int, str]:
    """(code, the whole log or why there is none)"""
    more = {"caller": caller} if caller is not None else {}
    pieces = [piece async for piece in world.pieces(OPERATIONS, "QueryLog", **{"task_id": "t", **request}, **more)]
    failed = [piece.status for piece in pieces if piece.status.code]
    if failed:
        return failed[0].code, failed[0].message
    assert all(piece.status.message == "success" for piece in pieces)
    return 0, "\n".join(piece.log for piece in pieces)


async def where(world: World, *, caller: Any = None, **request: Any) -> Any:
    more = {"caller": caller} if caller is not None else {}
    return await world.call(OPERATIONS, "QueryPodNode", **{"task_id": "t", **request}, **more)


async def test_where_they_are_to_be_had() -> None:
    table = {each.method: (each.path, each.for_domains, each.on_master, each.on_lite) for each in OPERATIONS}
    assert table == {
        "QueryLog": ("/api/v1/log/task/query", True, False, OnLite.HERE),
        "QueryPodNode": ("/api/v1/log/node/query", True, True, OnLite.FORWARD),
    }


# Pods that are there.


async def test_a_pod_is_asked_through_the_api(alice: World, agents: Agents) -> None:
    await put_pod(alice)
    agents.logs["t-0"] = b"one\ntwo\nhalf"
    assert await read(alice) == (0, "one\ntwo\nhalf")
    assert await read(alice, follow=True, container="main") == (0, "one\ntwo\nhalf")
    assert agents.asked == [("t-0", "container=main"), ("t-0", "container=main&follow=true")]


async def test_pods_are_found_by_labels_whatever_their_role(alice: World, agents: Agents) -> None:
    await put_pod(alice, role="server")
    await put_pod(alice, role="server", index=1)
    await put_pod(alice, "t-server", index=2)
    agents.logs = {"t-server-0": b"zero\n", "t-server-1": b"one\n", "t-server-2": b"of another task\n"}
    assert await read(alice) == (0, "zero")
    assert await read(alice, replica_idx=1) == (0, "one")
    assert await read(alice, replica_idx=1, role="server") == (0, "one")
    assert (await read(alice, replica_idx=2, role="server"))[0] == 13200


async def test_of_several_roles_one_is_named(alice: World, agents: Agents) -> None:
    await put_pod(alice, role="server")
    await put_pod(alice, role="client")
    agents.logs = {"t-server-0": b"s\n", "t-client-0": b"c\n"}
    refused = "role: domain alice has several in task t (client, server); name one"
    assert await read(alice) == (11100, refused)
    assert await read(alice, role="client") == (0, "c")


async def test_of_several_containers_one_is_named(alice: World, agents: Agents) -> None:
    await put_pod(alice, containers=("main", "side"))
    agents.logs["t-0"] = b"x\n"
    assert await read(alice) == (11100, "container: the pod has several (main, side); name one")
    assert await read(alice, container="back") == (11100, 'container: the pod has no "back", it has main, side')
    assert await read(alice, container="side") == (0, "x")
    assert agents.asked == [("t-0", "container=side")]


@pytest.mark.parametrize("problem", [Disconnected("the node is away"), ServiceUnavailable("no agent answers")])
async def test_a_node_that_cannot_be_asked_may_be_this_one(alice: World, agents: Agents, problem: Exception) -> None:
    pod = await put_pod(alice)
    agents.logs["t-0"] = problem
    assert await read(alice) == (13200, f"the log of pod t-0 cannot be had: {problem}")
    keep(alice, "t-0", "from the file", uid=pod["metadata"]["uid"])
    keep(alice, "t-0", "of another pod", uid="u9")
    assert await read(alice) == (0, "from the file")


async def test_such_a_file_is_followed_to_the_end_of_the_pod(alice: World, agents: Agents, tmp_path: Path) -> None:
    pod = await put_pod(alice)
    agents.logs["t-0"] = Disconnected("the node is away")
    file = keep(alice, "t-0", "one", uid=pod["metadata"]["uid"])
    clock = VirtualClock()
    async with here(tmp_path, client=alice.client, clock=clock) as world:
        reading = asyncio.ensure_future(read(world, follow=True))
        for _ in range(20):
            await clock.advance(1.0)
        assert not reading.done()
        with file.open("a") as out:
            out.write("2026-01-02T03:04:06.000000Z stdout F two\n")
        await alice.client.patch_status(POD, "t-0", "alice", {"status": {"phase": "Succeeded"}})
        async with asyncio.timeout(20):
            while not reading.done():
                await clock.advance(0.5)
        assert await reading == (0, "one\ntwo")


# Pods that are gone.


async def test_what_a_pod_that_is_gone_printed_is_kept(alice: World) -> None:
    await put_task(alice, "t", "t-server-0", "t-server-1")
    keep(alice, "t-server-0", "first run", run=0)
    keep(alice, "t-server-0", "second run", run=10)
    assert await read(alice) == (0, "second run")
    assert await read(alice, replica_idx=1) == (
        13200, "pod t-server-1 is gone, and its log is not on this node; node n7 keeps it for some days",
    )  # fmt: skip


async def test_of_a_task_that_was_done_again_the_newest_counts(alice: World) -> None:
    await put_task(alice, "t", "t-0")
    os.utime(keep(alice, "t-0", "old", uid="u1").parent.parent, (1, 1))
    keep(alice, "t-0", "new", uid="u2")
    assert await read(alice) == (0, "new")


async def test_another_task_of_a_longer_name_is_not_taken_for_it(alice: World) -> None:
    await put_task(alice, "t", "t-0")
    keep(alice, "t-server-0", "of the task t-server")
    assert (await read(alice))[0] == 13200


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"task_id": ""}, (11100, "task_id: must be given")),
        ({"replica_idx": -1}, (11100, "replica_idx: must not be negative")),
        ({"replica_idx": 4}, (13200, "task t has no such pod here, or not yet; see QueryJob")),
        ({"role": "x"}, (13200, "task t has no such pod here, or not yet; see QueryJob")),
        ({"task_id": "theirs"}, (13200, "domain alice takes no part in task theirs")),
        (
            {"task_id": "never"},
            (
                13200,
                "there is no pod of task never, and this node keeps no log of it; if the party has a role, name it",
            ),
        ),
        ({"local": True}, (13200, "this node keeps no log of task t; leave out `local`")),
    ],
)
async def test_what_cannot_be_had(alice: World, request_: Object, expected: tuple[int, str]) -> None:
    await put_task(alice, "t", "t-0")
    await put_task(alice, "theirs", parties=("bob",))
    assert await read(alice, **request_) == expected


@pytest.mark.parametrize("field", ["task_id", "role", "container"])
async def test_no_name_is_a_path(alice: World, field: str) -> None:
    code, words = await read(alice, **{"local": True, field: "../../secret"})
    assert (code, words.startswith(f"{field}: a lowercase")) == (11100, True)


async def test_local_reads_the_files_of_this_node_only(alice: World, agents: Agents) -> None:
    await put_pod(alice)
    agents.logs["t-0"] = b"from the api\n"
    keep(alice, "t-0", "from the file")
    keep(alice, "t-server-2", "with a role", container="side")
    assert await read(alice, local=True) == (0, "from the file")
    assert await read(alice, local=True, role="server", replica_idx=2, container="side") == (0, "with a role")
    assert agents.asked == []


async def test_where_tasks_cannot_be_read_the_role_is_named(alice: World, tmp_path: Path) -> None:
    keep(alice, "t-server-0", "kept")
    async with here(tmp_path, client=alice.client, mode=Mode.LITE) as lite:
        assert (await read(lite))[0] == 13200
        assert await read(lite, role="server") == (0, "kept")


# Who may.


async def test_logs_are_of_the_own_domain_and_not_on_a_master(alice: World, agents: Agents, tmp_path: Path) -> None:
    await put_pod(alice)
    agents.logs["t-0"] = b"x\n"
    assert await read(alice, caller=domain_caller("alice")) == (0, "x")
    assert await read(alice, caller=domain_caller("bob")) == (
        11102, "domain bob may not read logs here: they are of another domain",
    )  # fmt: skip
    async with here(tmp_path, client=alice.client, mode=Mode.MASTER, domain="kuscia-system") as master:
        assert (await read(master))[0] == 11105


# Where pods are.


async def test_the_node_of_a_pod(alice: World, tmp_path: Path) -> None:
    await alice.client.create(NODE, {"metadata": {"name": "n1"}})
    address = [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"}]
    await alice.client.patch_status(NODE, "n1", "", {"status": {"addresses": address}})
    await put_pod(alice, role="server")
    await put_pod(alice, role="server", index=1, node="")
    await put_task(alice, "gone", "gone-0")
    answer = await where(alice)
    assert (answer.status.code, answer.node_name, answer.node_ip) == (0, "n1", "10.0.0.1")
    answer = await where(alice, task_id="gone", domain="alice")
    assert (answer.status.code, answer.node_name, answer.node_ip) == (0, "n7", "")
    answer = await where(alice, replica_idx=1)
    assert (answer.status.code, answer.status.message) == (
        13201, "the pod of task t has no node yet; see QueryJob for why",
    )  # fmt: skip
    answer = await where(alice, domain="bob")
    assert (answer.status.code, answer.status.message) == (13201, "domain bob has no such pod of task t")
    async with here(tmp_path, client=alice.client, mode=Mode.MASTER, domain="kuscia-system") as master:
        assert (await where(master, domain="alice")).node_name == "n1"
        assert (await where(master)).status.message == "domain: must be given"
        assert (await where(master, caller=domain_caller("alice"))).node_name == "n1", "a lite asks for its own"
        refused = (await where(master, caller=domain_caller("bob"), domain="alice")).status
        assert (refused.code, refused.message) == (11102, "domain bob may not ask for nodes of alice")


# In pages.


async def pieces_of(*pieces: bytes) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


async def test_a_page_has_a_hundred_lines() -> None:
    lines = [f"line {number}" for number in range(250)]
    text = "\n".join(lines).encode()
    cut = [text[at : at + 7] for at in range(0, len(text), 7)]
    pages = [page async for page in in_pages(pieces_of(*cut), SYSTEM_CLOCK)]
    assert [page.count("\n") + 1 for page in pages] == [100, 100, 50]
    assert "\n".join(pages) == text.decode()


async def test_bytes_that_are_no_text_do_no_harm() -> None:
    pages = [page async for page in in_pages(pieces_of(b"a\xff\n"), SYSTEM_CLOCK)]
    assert pages == ["a\ufffd"]


async def test_a_line_without_end_is_told_in_pieces() -> None:
    pages = [page async for page in in_pages(pieces_of(*[b"x" * 65536] * 40), SYSTEM_CLOCK)]
    assert "".join("".join(pages).split("\n")) == "x" * 65536 * 40
    assert len(pages) >= 1


async def test_few_lines_are_told_after_a_while() -> None:
    clock, more = VirtualClock(), asyncio.Event()
    closed = []

    async def slowly() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one\ntw"
            await more.wait()
        finally:
            closed.append(True)

    pages = in_pages(slowly(), clock)
    first = asyncio.ensure_future(anext(pages))
    await clock.advance(4.9)
    assert not first.done()
    await clock.advance(0.2)
    assert await first == "one"
    await pages.aclose()
    assert closed == [True], "who leaves closes the stream"


async def test_what_breaks_off_is_told(alice: World, agents: Agents) -> None:
    class Broken(Said):
        async def chunk(self) -> bytes:
            if not self._left:
                raise Disconnected("the agent went away")
            return await super().chunk()

    await put_pod(alice)

    async def send(call: TransportRequest) -> TransportResponse:
        return (
            TransportResponse(200, lines=Broken(b"one\ntwo\n"))
            if call.path.endswith("/log")
            else await Agents.send(agents, call)
        )

    agents.send = send  # type: ignore[method-assign]
    pieces = [piece async for piece in alice.pieces(OPERATIONS, "QueryLog", task_id="t")]
    assert [(piece.log, piece.status.code, piece.status.message) for piece in pieces] == [
        ("one\ntwo", 0, "success"), ("", 13200, "the agent went away"),
    ]  # fmt: skip


# Through the doors.


async def test_over_http_objects_follow_each_other(tmp_path: Path) -> None:
    async with served(OPERATIONS, tmp_path) as place:
        keep(place.world, "t-0", "\n".join(f"line {number}" for number in range(150)))
        async with place.session() as session:
            async with session.post("/api/v1/log/task/query", json={"task_id": "t", "local": True}) as answer:
                body = await answer.text()
            assert body.startswith('{"status":{"message":"success"},"log":"line 0\\nline 1\\n')
            assert body.count('}{"status"') == 1
            assert body.endswith('line 149"}')
            async with session.post("/api/v1/log/task/query", json={"task_id": "t"}) as answer:
                assert '"code":13200' not in await answer.text(), (
                    "without `local` too: the pod is gone, the file is here"
                )


# Searching (SearchLog, and QueryLog with its fields). The API server here has no nodes.


async def test_a_search_asks_for_the_own_domain_and_gives_lines(alice: World, agents: Agents) -> None:
    found = {
        "at": "2026-01-02T03:04:05.000000000Z", "source": "gateway", "party": "alice", "task": "t", "pod": "",
        "text": "200", "job": "j", "container": "", "node": "n1", "level": "",
    }  # fmt: skip
    agents.pages["alice"] = {"lines": [found], "cursor": "2026-01-02T03:04:05.000000000Z", "notes": ["n"]}
    answer = await alice.call(SEARCH, "SearchLog", job_id="j", task_id="t", sources=["gateway"], grep="2..", limit=5)
    assert answer.status.code == 0
    (line,) = answer.lines
    assert (line.domain_id, line.task_id, line.source, line.text) == ("alice", "t", "gateway", "200")
    assert (answer.cursor, list(answer.notes)) == ("2026-01-02T03:04:05.000000000Z", ["n"])
    assert agents.asked == [("*", "job=j&task=t&grep=2..&source=gateway&limit=5")]


async def test_a_query_with_a_time_is_a_search_of_one_task(alice: World, agents: Agents) -> None:
    lines = [{"at": f"2026-01-02T03:04:0{n}.000000000Z", "source": "engine", "text": f"line {n}"} for n in range(5)]
    agents.pages["alice"] = {"lines": lines, "cursor": "", "notes": []}
    assert await read(alice, since="1h", limit=2, sources=["engine"]) == (0, "line 3\nline 4")
    assert (await read(alice, since="1h", follow=True))[0] == 11100
    assert (await read(alice, grep="("))[0] == 11100


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({}, "job_id"),
        ({"job_id": "j", "since": "x"}, "since: 'x' is neither"),
        ({"job_id": "j", "grep": "("}, "grep: is no regular expression"),
        ({"job_id": "j", "sources": ["x"]}, "sources: 'x' is unknown"),
        ({"job_id": "../x"}, "job_id"),
    ],
)
async def test_searches_that_cannot_be_asked(alice: World, request_: Any, says: str) -> None:
    answer = await alice.call(SEARCH, "SearchLog", **request_)
    assert answer.status.code == 11100
    assert says in answer.status.message


async def test_logs_of_others_are_not_searched(alice: World) -> None:
    other = await alice.call(SEARCH, "SearchLog", job_id="j", domain_id="bob")
    assert (other.status.code, "LogRequest" in other.status.message) == (11102, True)
    partner = await alice.call(SEARCH, "SearchLog", job_id="j", caller=domain_caller("bob"))
    assert partner.status.code == 11102


async def test_a_lite_searches_its_own_files_and_asks_its_master(agents: Agents, tmp_path: Path) -> None:
    async with here(tmp_path, mode=Mode.LITE, client=Client(agents)) as lite:
        keep(lite, "t-0", "kept here")
        PodLogIndex.of(lite.here.paths.stdout).add(LoggedPod(1, "alice", "j", "t", "t-0", "u1"))
        agents.pages["alice"] = Disconnected("the master is away")
        answer = await lite.call(SEARCH, "SearchLog", job_id="j")
        assert [line.text for line in answer.lines] == ["kept here"]
        assert any("the master was not asked" in note for note in answer.notes)
        placed = {"at": "2026-01-02T03:04:04.000000000Z", "source": "scheduler", "text": "placed"}
        agents.pages["alice"] = {"lines": [placed], "cursor": "", "notes": []}
        answer = await lite.call(SEARCH, "SearchLog", job_id="j")
        assert [line.text for line in answer.lines] == ["placed", "kept here"]
        assert "tasks=t" in agents.asked[-1][1], "a lite may not read the job; it knows the tasks that ran here"
