"""Two API servers on one store: what one acknowledged the other knows, and neither gives away what the other has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from server_kit import CMS, CRDS, PODS, WIDGETS, Api, config_map, crd, pod, serving, widget
from store_servers_kit import SHARED, fresh_address, shared_store

from coterie.base.store_address import StoreAddress

Pair = tuple[Api, Api]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=SHARED)
def address(request: pytest.FixtureRequest) -> StoreAddress:
    return fresh_address(request.param, request.getfixturevalue(request.param))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(address: StoreAddress) -> AsyncIterator[Pair]:
    """One for all tests here: the first objects of a store take a while."""
    async with AsyncExitStack() as stack:
        stores = [shared_store(address), shared_store(address)]
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        # Started together on an empty store: both make the first objects.
        first, second = await asyncio.gather(
            *(stack.enter_async_context(serving(store=store)) for store in stores)  # type: ignore[arg-type]
        )
        yield first, second


async def test_what_one_acknowledged_the_other_shows(pair: Pair) -> None:
    one, two = pair
    for turn in range(20):
        writer, reader = (one, two) if turn % 2 else (two, one)
        made = await writer.config_map(f"c{turn}", turn=str(turn))
        assert (await reader.get(f"{CMS}/c{turn}"))["metadata"] == made["metadata"]
        assert f"c{turn}" in (await reader.call("GET", CMS)).names
        await reader.patch(f"{CMS}/c{turn}", {"data": {"seen": "yes"}})
        assert (await writer.get(f"{CMS}/c{turn}"))["data"]["seen"] == "yes"
        assert (await writer.call("DELETE", f"{CMS}/c{turn}")).status == 200
        assert (await reader.call("GET", f"{CMS}/c{turn}")).status == 404


async def test_no_increment_is_lost(pair: Pair) -> None:
    await pair[0].config_map("counter", n="0")

    async def add(api: Api) -> None:
        for _ in range(5):
            while True:
                found = await api.get(f"{CMS}/counter")
                found["data"]["n"] = str(int(found["data"]["n"]) + 1)
                answer = await api.call("PUT", f"{CMS}/counter", found)
                if answer.status == 200:
                    break
                assert answer.status == 409

    await asyncio.gather(*(add(api) for api in pair for _ in range(4)))
    assert (await pair[1].get(f"{CMS}/counter"))["data"]["n"] == "40"


async def test_patches_without_a_version_do_not_conflict(pair: Pair) -> None:
    await pair[0].config_map("many")
    patches = (
        api.patch(f"{CMS}/many", {"data": {f"{which}-{n}": "x"}}) for which, api in enumerate(pair) for n in range(10)
    )
    await asyncio.gather(*patches)
    assert len((await pair[0].get(f"{CMS}/many"))["data"]) == 20


async def test_of_two_creations_one_wins(pair: Pair) -> None:
    for turn in range(10):
        answers = await asyncio.gather(*(api.call("POST", CMS, config_map(f"only{turn}")) for api in pair))
        assert sorted(answer.status for answer in answers) == [201, 409]


async def test_a_quota_holds_for_both_together(pair: Pair) -> None:
    await pair[0].namespace("limited")
    where = "/api/v1/namespaces/limited"
    await pair[0].post(f"{where}/resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"configmaps": "7"}}})
    answers = await asyncio.gather(
        *(
            api.call("POST", f"{where}/configmaps", config_map(f"q{which}-{n}"))
            for which, api in enumerate(pair)
            for n in range(8)
        )
    )
    made = sum(answer.status == 201 for answer in answers)
    there = len((await pair[1].call("GET", f"{where}/configmaps")).names)
    assert (made, there) == (7, 7)
    assert {answer.status for answer in answers} <= {201, 403, 409}


async def test_no_address_is_given_twice(pair: Pair) -> None:
    services = "/api/v1/namespaces/default/services"

    def service(name: str) -> dict[str, object]:
        return {"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}

    answers = await asyncio.gather(
        *(api.post(services, service(f"s{which}-{n}")) for which, api in enumerate(pair) for n in range(5))
    )
    assert len({made["spec"]["clusterIP"] for made in answers}) == 10
    assert len({made["spec"]["ports"][0]["nodePort"] for made in answers}) == 10


async def test_a_definition_made_here_serves_there(pair: Pair) -> None:
    one, two = pair
    await one.post(CRDS, crd())
    await two.post(WIDGETS, widget("w"))
    assert (await one.get(f"{WIDGETS}/w"))["kind"] == "Widget"


async def test_versions_and_tokens_of_one_are_good_at_the_other(pair: Pair) -> None:
    one, two = pair
    await one.namespace("paged")
    paged = "/api/v1/namespaces/paged/configmaps"
    for n in range(6):
        await one.config_map(f"c{n}", "paged")
    first = (await one.call("GET", paged, query={"limit": "2"})).json
    await two.config_map("c2-later", "paged")
    rest = (await two.call("GET", paged, query={"limit": "10", "continue": first["metadata"]["continue"]})).json
    names = [item["metadata"]["name"] for item in first["items"] + rest["items"]]
    assert names == [f"c{n}" for n in range(6)]
    made = await one.config_map("newest")
    version = made["metadata"]["resourceVersion"]
    assert "newest" in (await two.call("GET", CMS, query={"resourceVersion": version})).names
    watch = await two.watch(f"{CMS}?resourceVersion={version}")
    await one.config_map("after")
    for _ in range(500):
        if watch.all:
            break
        await asyncio.sleep(0.01)
    assert watch.told() == [("ADDED", "after")]


async def test_watches_at_both_tell_the_same_story(pair: Pair) -> None:
    start = (await pair[0].call("GET", PODS)).json["metadata"]["resourceVersion"]
    watches = [await api.watch(f"{PODS}?resourceVersion={start}") for api in pair]

    async def live(api: Api, name: str) -> None:
        await api.post(PODS, pod(name))
        await api.patch(f"{PODS}/{name}", {"metadata": {"labels": {"a": "b"}}})
        await api.call("DELETE", f"{PODS}/{name}", query={"gracePeriodSeconds": "0"})

    await asyncio.gather(*(live(api, f"p{which}-{n}") for which, api in enumerate(pair) for n in range(5)))
    for api in pair:
        await api.get(PODS)  # both have heard of everything then
    told = [[(e["type"], e["object"]["metadata"]["resourceVersion"]) for e in watch.all] for watch in watches]
    assert told[0] == told[1]
    assert len(told[0]) == 30


async def test_caches_equal_the_store(pair: Pair) -> None:
    await asyncio.gather(*(api.config_map(f"cached{which}-{n}") for which, api in enumerate(pair) for n in range(10)))
    for api in pair:
        await api.get(CMS)
        stored = {record.key: record.revision for record in (await api.store.scan("/registry/")).records}
        held = {
            f"{each.key}/{entry.namespace}/{entry.name}".replace("//", "/"): entry.revision
            for each in api.server.state.collections()
            for entry in each
        }
        assert held == stored
