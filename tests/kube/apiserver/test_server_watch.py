"""watch: where it begins, what it shows, how it ends."""

import asyncio
from collections.abc import Iterator

import pytest
from server_kit import CMS, CRDS, IN_PROCESS, PODS, WIDGETS, Api, Watch, crd, pod, serving, version, widget

from coterie.kube.apiserver.state import collection, watching
from coterie.kube.apiserver.verbs import watch as watch_verb
from coterie.kube.store import protocol

TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
END = "k8s.io/initial-events-end"


@pytest.fixture
def small_ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(collection, "RING_EVENTS", 3)
    yield


async def settled(watch: Watch, count: int) -> None:
    """Until so many events came (histories are read by a task)."""
    for turn in range(6000):
        if len(watch.all) >= count or watch.ended:
            return
        await asyncio.sleep(0 if turn < 2000 else 0.01)  # a database answers later than this loop's turns
    raise AssertionError(f"only {len(watch.all)} events")


# ---- where it begins ----


@pytest.mark.parametrize("query", ["", "?resourceVersion=0", "?resourceVersion="])
async def test_from_the_present_state(api: Api, query: str):
    await api.config_map("a")
    watch = await api.watch(CMS + query)
    assert watch.told() == [("ADDED", "a")]
    await api.config_map("b")
    await api.patch(f"{CMS}/a", {"data": {"x": "1"}})
    await api.ok("DELETE", f"{CMS}/b")
    assert watch.told() == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


async def test_from_a_version(api: Api):
    await api.config_map("a")
    start = api.revision
    await api.config_map("b")
    await api.config_map("c")
    watch = await api.watch(f"{CMS}?resourceVersion={start}")
    assert watch.told() == [("ADDED", "b"), ("ADDED", "c")]
    now = await api.watch(f"{CMS}?resourceVersion={api.revision}")
    assert now.told() == []
    await api.config_map("d")
    assert watch.told() == now.told() == [("ADDED", "d")]


async def test_events_carry_the_object_as_a_get_shows_it(api: Api):
    watch = await api.watch(CMS)
    made = await api.config_map("a", x="1")
    assert watch.take() == [{"type": "ADDED", "object": made}]


async def test_a_deletion_shows_the_last_state_under_its_own_version(api: Api):
    made = await api.config_map("a", x="1")
    watch = await api.watch(f"{CMS}?resourceVersion={api.revision}")
    await api.ok("DELETE", f"{CMS}/a")
    (event,) = watch.take()
    assert event["type"] == "DELETED" and event["object"]["data"] == {"x": "1"}
    assert (
        int(event["object"]["metadata"]["resourceVersion"]) == api.revision > int(made["metadata"]["resourceVersion"])
    )
    assert event["object"]["metadata"]["uid"] == made["metadata"]["uid"]
    after = await api.watch(f"{CMS}?resourceVersion={event['object']['metadata']['resourceVersion']}")
    assert after.told() == [], "who resumes behind the deletion does not see it again"


async def test_initial_events_end_with_a_marked_bookmark(api: Api):
    await api.config_map("a")
    await api.config_map("b")
    options = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    for version_asked in ("", f"&resourceVersion={api.revision}", "&resourceVersion=0"):
        watch = await api.watch(f"{CMS}?{options}{version_asked}")
        *added, bookmark = watch.take()
        assert [event["object"]["metadata"]["name"] for event in added] == ["a", "b"]
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["kind"] == "ConfigMap" and bookmark["object"]["apiVersion"] == "v1"
        assert bookmark["object"]["metadata"]["annotations"] == {END: "true"}
        assert bookmark["object"]["metadata"]["resourceVersion"] == str(api.revision)
        watch.leave()


async def test_declining_initial_events_is_no_mistake(api: Api):
    await api.config_map("a")
    query = f"sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion={api.revision}"
    watch = await api.watch(f"{CMS}?{query}")
    assert watch.told() == []
    await api.config_map("b")
    assert watch.told() == [("ADDED", "b")]


# ---- what it shows ----


async def test_namespaces_are_apart(api: Api):
    await api.namespace("other")
    here, everywhere = await api.watch(CMS), await api.watch("/api/v1/configmaps")
    await api.config_map("x", "other")
    await api.config_map("y")
    assert here.told() == [("ADDED", "y")]
    assert everywhere.told() == [("ADDED", "x"), ("ADDED", "y")]


@pytest.mark.parametrize(
    "path", [f"{CMS}/a", f"{CMS}?fieldSelector=metadata.name%3Da", "/api/v1/configmaps?fieldSelector=metadata.name%3Da"]
)
async def test_one_name(api: Api, path: str):
    await api.config_map("b")
    watch = await api.watch(path)
    await api.config_map("a")
    await api.config_map("aa")
    await api.ok("DELETE", f"{CMS}/a")
    assert watch.told() == [("ADDED", "a"), ("DELETED", "a")]


async def test_objects_enter_and_leave_a_selection(api: Api):
    watch = await api.watch(f"{CMS}?labelSelector=on%3Dyes")
    late = api.revision
    await api.config_map("a", labels={"on": "no"})
    assert watch.told() == []
    await api.patch(f"{CMS}/a", {"metadata": {"labels": {"on": "yes"}}})
    assert watch.told() == [("ADDED", "a")]
    await api.patch(f"{CMS}/a", {"data": {"x": "1"}})
    assert watch.told() == [("MODIFIED", "a")]
    gone = await api.patch(f"{CMS}/a", {"metadata": {"labels": {"on": "no"}}, "data": {"x": "2"}})
    (event,) = watch.take()
    assert event["type"] == "DELETED"
    assert event["object"]["metadata"]["resourceVersion"] == gone["metadata"]["resourceVersion"]
    assert event["object"]["data"] == {"x": "1"}, "as it last was inside"
    await api.ok("DELETE", f"{CMS}/a")
    assert watch.told() == []
    again = await api.watch(f"{CMS}?labelSelector=on%3Dyes&resourceVersion={late}")
    assert again.told() == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")], "a replay shows the same"


async def test_a_field_moves_an_object_into_a_selection(api: Api):
    mine = await api.watch(f"{PODS}?fieldSelector=spec.nodeName%3Dn1")
    free = await api.watch(f"{PODS}?fieldSelector=spec.nodeName%3D")
    await api.post(PODS, pod("p"))
    assert (mine.told(), free.told()) == ([], [("ADDED", "p")])
    await api.post(f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "n1"}})
    assert (mine.told(), free.told()) == ([("ADDED", "p")], [("DELETED", "p")])


async def test_rows_with_columns_only_in_the_first(api: Api):
    await api.config_map("a")
    watch = await api.watch(CMS, headers=TABLE)
    late = await api.watch(f"{CMS}?resourceVersion={api.revision}", headers=TABLE)
    await api.config_map("b")
    await api.config_map("c")
    first, second, third = (event["object"] for event in watch.take())
    assert [column["name"] for column in first["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert not second.get("columnDefinitions") and not third.get("columnDefinitions")
    assert [part["rows"][0]["cells"][0] for part in (first, second, third)] == ["a", "b", "c"]
    assert second["rows"][0]["object"]["metadata"]["name"] == "b"
    b, c = (event["object"] for event in late.take())
    assert b["columnDefinitions"] and not c.get("columnDefinitions")


async def test_metadata_only(api: Api):
    watch = await api.watch(CMS, headers={"accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"})
    await api.config_map("a", x="1")
    (event,) = watch.take()
    assert event["object"]["kind"] == "PartialObjectMetadata" and "data" not in event["object"]


async def test_equal_watches_are_encoded_once(api: Api):
    watches = [await api.watch(f"{CMS}?labelSelector=a%3Db") for _ in range(5)]
    other = await api.watch(CMS)
    await api.config_map("x", labels={"a": "b"})
    assert len({id(watch.chunks[0]) for watch in watches}) == 1
    assert other.chunks == watches[0].chunks and other.chunks[0] is not watches[0].chunks[0]
    watches[0].leave()
    await api.config_map("y", labels={"a": "b"})
    assert len(watches[0].all) == 1 and len(watches[4].all) == 2


@IN_PROCESS
async def test_a_batch_of_writes_is_one_chunk(api: Api):
    watch = await api.watch(CMS)
    await asyncio.gather(*(api.config_map(f"c{n}") for n in range(10)))
    assert len(watch.all) == 10 and len(watch.chunks) == 1


async def test_slow_watchers_are_cut(api: Api):
    slow, quick = await api.watch(CMS), await api.watch(CMS)
    slow.pending = watching.MAX_PENDING + 1
    await api.config_map("a")
    assert slow.ended == "aborted" and quick.told() == [("ADDED", "a")]
    assert api.server.state.collection("/registry/core/configmaps").watchers != []
    await api.config_map("b")
    assert slow.all == []


# ---- histories ----


async def test_resuming_behind_what_the_ring_holds(api: Api, small_ring: None):
    start = api.revision
    await api.config_map("a")
    await api.patch(f"{CMS}/a", {"data": {"x": "1"}})
    await api.ok("DELETE", f"{CMS}/a")
    for n in range(5):
        await api.config_map(f"c{n}")
    watch = await api.watch(f"{CMS}?resourceVersion={start}")
    await settled(watch, 8)
    expected = [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), *(("ADDED", f"c{n}") for n in range(5))]
    assert watch.told() == expected
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in watch.all]
    assert versions == sorted(versions) and versions[0] == start + 1
    await api.config_map("z")
    assert watch.told() == [("ADDED", "z")]


async def test_a_selection_in_a_history(api: Api, small_ring: None):
    start = api.revision
    await api.config_map("a", labels={"on": "yes"})
    await api.patch(f"{CMS}/a", {"metadata": {"labels": {"on": "no"}}})
    await api.ok("DELETE", f"{CMS}/a")
    for n in range(4):
        await api.config_map(f"c{n}")
    watch = await api.watch(f"{CMS}?labelSelector=on%3Dyes&resourceVersion={start}")
    await settled(watch, 2)
    assert watch.told() == [("ADDED", "a"), ("DELETED", "a")]


async def test_no_gap_and_no_duplicate_while_others_write(api: Api, small_ring: None):
    start = api.revision
    for n in range(30):
        await api.config_map(f"a{n}")

    async def writer(lane: int) -> None:
        for n in range(20):
            await api.config_map(f"w{lane}-{n}")

    writers = [asyncio.create_task(writer(lane)) for lane in range(4)]
    watches = []
    for n in range(25):
        watches.append(await api.watch(f"{CMS}?resourceVersion={start + n}"))
        await asyncio.sleep(0)
    await asyncio.gather(*writers)
    for n, watch in enumerate(watches):
        await settled(watch, 110 - n)
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in watch.all]
        assert versions == list(range(start + n + 1, start + 111)), f"watch {n}"


async def test_what_happened_to_an_object_that_is_older_than_compaction(api: Api, small_ring: None):
    """The watch begins where history begins, and its first event changes something much older."""
    await api.config_map("old", x="1")
    for n in range(5):
        await api.config_map(f"c{n}")
    start = api.revision
    await api.store.compact(start)
    await api.patch(f"{CMS}/old", {"data": {"x": "2"}})
    await api.ok("DELETE", f"{CMS}/c0")
    for n in range(5):
        await api.config_map(f"d{n}")
    watch = await api.watch(f"{CMS}?resourceVersion={start}")
    await settled(watch, 7)
    assert watch.told()[:2] == [("MODIFIED", "old"), ("DELETED", "c0")]


async def test_too_old_is_an_event(api: Api, small_ring: None):
    start = api.revision
    for n in range(6):
        await api.config_map(f"c{n}")
    await api.store.compact(api.revision)
    watch = await api.watch(f"{CMS}?resourceVersion={start}")
    await settled(watch, 1)
    (event,) = watch.take()
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert "too old resource version" in event["object"]["message"]
    assert watch.ended == "closed"


async def test_after_a_restart_the_store_has_the_history():
    async with serving() as api:
        start = api.revision
        await api.config_map("a")
        await api.ok("DELETE", f"{CMS}/a")
        await api.server.stop()
        async with serving(store=api.store, clock=api.clock) as again:
            watch = await again.watch(f"{CMS}?resourceVersion={start}")
            await settled(watch, 2)
            assert watch.told() == [("ADDED", "a"), ("DELETED", "a")]
            await again.config_map("b")
            assert watch.told() == [("ADDED", "b")]


async def test_who_leaves_while_history_is_read_is_forgotten(api: Api, small_ring: None):
    start = api.revision
    for n in range(6):
        await api.config_map(f"c{n}")
    watch = await api.watch(f"{CMS}?resourceVersion={start}")
    watch.leave()
    for _ in range(50):
        await asyncio.sleep(0)
    assert api.server.state.collection("/registry/core/configmaps").watchers == []
    assert api.server._watch.count == 0


class SlowHistory:
    """A store whose log cannot be read until the test says so."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = asyncio.Event()
        real = api.store.replay

        async def replay(prefix: str, after: int, upto: int):
            await self.gate.wait()
            async for batch in real(prefix, after, upto):
                yield batch

        monkeypatch.setattr(api.store, "replay", replay)


async def test_no_bookmark_overtakes_the_history(api: Api, small_ring: None, monkeypatch: pytest.MonkeyPatch):
    """A bookmark says: you have seen everything up to here. It must not be said while old events wait."""
    history = SlowHistory(api, monkeypatch)
    monkeypatch.setattr(watch_verb, "BOOKMARK_PERIOD", 0.001)
    start = api.revision
    for n in range(6):
        await api.config_map(f"c{n}")
    watch = await api.watch(f"{CMS}?allowWatchBookmarks=true&resourceVersion={start}")
    await asyncio.sleep(0.01)
    assert watch.all == []
    history.gate.set()
    await settled(watch, 6)
    await asyncio.sleep(0.01)
    kinds = [event["type"] for event in watch.take()]
    assert kinds[:6] == ["ADDED"] * 6 and "BOOKMARK" in kinds


async def test_a_broken_store_ends_the_watch(api: Api, small_ring: None, monkeypatch: pytest.MonkeyPatch):
    start = api.revision
    for n in range(6):
        await api.config_map(f"c{n}")

    async def broken(prefix: str, after: int, upto: int):
        raise protocol.StoreClosed("the disk is gone")
        yield

    monkeypatch.setattr(api.store, "replay", broken)
    watch = await api.watch(f"{CMS}?resourceVersion={start}")
    await settled(watch, 1)
    assert watch.ended and [event["type"] for event in watch.all] == ["ERROR"]


# ---- bookmarks and ends ----


async def test_bookmarks_come_only_when_asked_for(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch_verb, "BOOKMARK_PERIOD", 0.002)
    with_marks, without = await api.watch(f"{CMS}?allowWatchBookmarks=true"), await api.watch(CMS)
    await api.namespace("elsewhere")
    await asyncio.sleep(0.02)
    marks = with_marks.take()
    assert marks and without.all == []
    assert {mark["type"] for mark in marks} == {"BOOKMARK"}
    assert marks[-1]["object"]["metadata"] == {"resourceVersion": str(api.revision), "creationTimestamp": None}


@pytest.mark.parametrize("shape", ["Table", "PartialObjectMetadata"])
async def test_the_shape_of_bookmarks(api: Api, monkeypatch: pytest.MonkeyPatch, shape: str):
    accept = {"accept": f"application/json;as={shape};v=v1;g=meta.k8s.io"}
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    (mark,) = (await api.watch(f"{CMS}?{query}", headers=accept)).take()
    obj = mark["object"]
    assert obj["kind"] == shape and obj["metadata"]["resourceVersion"] == str(api.revision)
    inner = obj["rows"][0]["object"] if shape == "Table" else obj
    assert inner["metadata"]["annotations"] == {END: "true"}


async def test_the_time_is_up(api: Api):
    plain = await api.watch(f"{CMS}?timeoutSeconds=1")
    marked = await api.watch(f"{CMS}?timeoutSeconds=1&allowWatchBookmarks=true")
    assert not plain.ended
    await asyncio.sleep(1.05)
    assert plain.ended == marked.ended == "closed"
    assert plain.all == []
    assert [event["type"] for event in marked.all] == ["BOOKMARK"]
    assert api.server._watch.count == 0


async def test_without_a_time_it_ends_between_half_an_hour_and_an_hour(api: Api):
    loop = asyncio.get_running_loop()
    await api.watch(CMS)
    (timers,) = api.server._watch._timers.values()
    assert 1790 < timers[0].when() - loop.time() < 3610


async def test_stopping_ends_watches(small_ring: None, monkeypatch: pytest.MonkeyPatch):
    async with serving() as api:
        start = api.revision
        for n in range(6):
            await api.config_map(f"c{n}")
        SlowHistory(api, monkeypatch)
        waiting = await api.watch(f"{CMS}?resourceVersion={start}")
        running = await api.watch(CMS)
        await asyncio.sleep(0)
    assert running.ended == waiting.ended == "closed"


async def test_a_watch_ends_with_its_definition(api: Api):
    await api.post(CRDS, crd())
    watch = await api.watch(WIDGETS)
    await api.post(WIDGETS, widget("w"))
    await api.ok("DELETE", f"{CRDS}/widgets.example.com")
    assert not watch.ended, "the finalizer holds the definition while objects are removed"
    await api.ok("DELETE", f"{WIDGETS}/w")
    await api.patch(f"{CRDS}/widgets.example.com", {"metadata": {"finalizers": None}})
    assert watch.told() == [("ADDED", "w"), ("DELETED", "w")]
    assert watch.ended == "closed"
    await api.refused(404, "GET", f"{WIDGETS}?watch=true")


async def test_a_watch_ends_with_its_version(api: Api):
    await api.post(CRDS, crd(versions=[version("v1"), version("v2", storage=False)]))
    old, new = await api.watch(WIDGETS), await api.watch(WIDGETS.replace("/v1/", "/v2/"))
    await api.patch(
        f"{CRDS}/widgets.example.com",
        [{"op": "replace", "path": "/spec/versions/1/served", "value": False}],
        "application/json-patch+json",
    )
    assert new.ended == "closed" and not old.ended
    await api.post(WIDGETS, widget("w"))
    assert old.told() == [("ADDED", "w")]


async def test_every_version_shows_its_own_name(api: Api):
    await api.post(CRDS, crd(versions=[version("v1"), version("v2", storage=False)]))
    second = WIDGETS.replace("/v1/", "/v2/")
    watches = {"example.com/v1": await api.watch(WIDGETS), "example.com/v2": await api.watch(second)}
    await api.post(second, widget("w", "example.com/v2"))
    for api_version, watch in watches.items():
        (event,) = watch.take()
        assert event["object"]["apiVersion"] == api_version


async def test_a_watcher_that_cannot_be_encoded_does_not_hurt_the_others(api: Api, monkeypatch: pytest.MonkeyPatch):
    table, plain = await api.watch(CMS, headers=TABLE), await api.watch(CMS)
    strategy = api.server._strategies[("", "v1", "configmaps")]

    def broken(*_: object) -> bytes:
        raise KeyError("a fault in a column")

    monkeypatch.setattr(type(strategy.table), "row_json", broken)
    await api.config_map("a")
    assert plain.told() == [("ADDED", "a")]
    assert table.ended == "aborted"
    await api.config_map("b")
    assert plain.told() == [("ADDED", "b")]


async def test_watching_needs_the_verb(api: Api):
    await api.refused(405, "GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews?watch=true")
