"""The sample engine: processes that speak with each other through a plain proxy, and the reading of its configuration."""

from __future__ import annotations

import ast
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_kit import SOURCE, ended, scene
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.engines.sample import task
from coterie.engines.sample.task import BadConfig

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("parties", [("alice", "bob"), ("alice", "bob", "carol"), ("alice",)], ids=len)
async def test_all_parties_speak_with_each_other(tmp_path: Path, parties: tuple[str, ...]) -> None:
    async with scene(tmp_path, *parties) as world:
        results = [await ended(each) for each in [await world.start(party) for party in parties]]
    assert [(code, err) for code, _, err in results] == [(0, "")] * len(parties)
    others = ", ".join(parties[1:]) or "nobody else"
    assert results[0][1] == f"task t: alice spoke with {others}\n"


async def test_a_partner_may_come_late_and_the_gateway_later(tmp_path: Path) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        world.gateway.refusals = 5
        alice = await world.start("alice")
        while world.gateway.refusals > 0:
            await asyncio.sleep(0.01)
        bob = await world.start("bob")
        assert [code for code, _, _ in (await ended(alice), await ended(bob))] == [0, 0]


async def test_megabytes_arrive_as_they_were_sent(tmp_path: Path) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        both = [await world.start(party, {"mbytes": 5}) for party in ("alice", "bob")]
        assert [(code, err) for code, _, err in [await ended(each) for each in both]] == [(0, ""), (0, "")]


async def test_a_party_that_is_told_to_fail(tmp_path: Path) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        bob = await world.start("bob", {"mode": "fail", "party": "bob"})
        assert await ended(bob) == (1, "", "task t failed at bob: the task says so\n")


async def test_a_party_that_is_told_to_crash(tmp_path: Path) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        bob = await world.start("bob", {"mode": "crash"})
        code, _, _ = await ended(bob)
        assert code == -signal.SIGKILL


async def test_a_party_that_hangs_answers_nobody_but_ends_when_told(tmp_path: Path) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        bob = await world.start("bob", {"mode": "hang", "party": "bob"})
        assert bob.stdout is not None
        assert b"does not respond" in await asyncio.wait_for(bob.stdout.readline(), 30)
        reader, writer = await world.dial("bob")
        writer.write(b"POST /greet HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        writer.close()
        bob.send_signal(signal.SIGTERM)
        assert (await ended(bob))[0] == -signal.SIGTERM


async def test_a_slow_party_tells_its_progress_and_the_others_do_not_wait(tmp_path: Path) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        wishes = {"mode": "slow", "party": "alice", "seconds": 0.1}
        alice, bob = await world.start("alice", wishes), await world.start("bob", wishes)
        assert (await ended(bob))[0] == 0
        assert (await ended(alice))[0] == 0
        assert [path for path, _ in world.gateway.reports] == ["report/progress?task_id=t"] * 10
        assert [body["progress"] for _, body in world.gateway.reports] == [pytest.approx(n / 10) for n in range(1, 11)]


@pytest.mark.parametrize(
    "greeting",
    [
        {"task": "another", "from": "bob//t-0-talk.bob.svc", "to": "alice//t-0-talk.alice.svc"},
        {"task": "t", "from": "mallory//t-0-talk.mallory.svc", "to": "alice//t-0-talk.alice.svc"},
        {"task": "t", "from": "bob//t-0-talk.bob.svc", "to": "carol//t-0-talk.carol.svc"},
        [],
    ],
    ids=["task", "stranger", "not-for-us", "nonsense"],
)
async def test_a_strangers_greeting_is_refused(tmp_path: Path, greeting: object) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        await world.start("alice")
        body = json.dumps(greeting).encode()
        reader, writer = await world.dial("alice")
        writer.write(b"POST /greet HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        told = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert told.startswith(b"HTTP/1.1 409 ")
    assert told.endswith(b'"alice//t-0-talk.alice.svc expects no such greeting"')


async def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        taken = await asyncio.start_server(lambda *_: None, "0.0.0.0", world.ports[0])
        code, _, err = await ended(await world.start("alice"))
        taken.close()
        assert (code, err) == (1, f"task t failed at alice: port {world.ports[0]}: Address already in use\n")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"task_input_config": "{"}, "task_input_config is not JSON"),
        ({"task_input_config": "[]"}, "task_input_config is not a JSON object"),
        ({"task_input_config": '{"mode": "dance"}'}, "mode is one of ok, fail, crash, hang, slow, not 'dance'"),
        ({"task_input_config": '{"seconds": "long"}'}, "seconds is a number"),
        ({"task_input_config": '{"mbytes": -1}'}, "mbytes is a whole number"),
        ({"task_input_config": '{"party": 1}'}, "party is the name of a domain"),
        ({"task_cluster_def": ""}, "task_cluster_def is not JSON"),
        ({"task_cluster_def": "{}"}, "lacks something"),
        ({"allocated_ports": '{"ports": []}'}, "no port named talk"),
        ({"allocated_ports": None}, "allocated_ports is not JSON"),
    ],
)
async def test_a_configuration_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    async with scene(tmp_path, "alice", "bob") as world:
        path = world.configuration("alice", "{}", **changes)
    with pytest.raises(BadConfig) as caught:
        task.read(str(path))
    assert told in str(caught.value)


async def test_a_file_that_is_not_there_ends_with_status_2(tmp_path: Path) -> None:
    async with scene(tmp_path, "alice") as world:
        process = await world.start("alice", "{")
        code, _, err = await ended(process)
    assert (code, err.startswith("task_input_config is not JSON")) == (2, True)
    with pytest.raises(BadConfig, match="No such file"):
        task.read(str(tmp_path / "nowhere"))


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["parties", "ports", "name", "port", "services", "selfPartyIdx", "mode"]), inner
        )
    ),
    max_leaves=8,
)


@UNHURRIED
@given(
    st.dictionaries(
        st.sampled_from(["task_id", "task_input_config", "task_cluster_def", "allocated_ports"]),
        _ANY | _ANY.map(json.dumps),
    )
)
def test_any_configuration_is_read_or_refused(whole: dict[str, Any]) -> None:
    try:
        task.parse(json.dumps(whole))
    except BadConfig as problem:
        assert str(problem)


def test_it_runs_on_the_standard_library_alone() -> None:
    for path in (Path(SOURCE) / "coterie" / "engines" / "sample").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names or name.startswith("coterie.engines.sample"), f"{path}: {name}"
