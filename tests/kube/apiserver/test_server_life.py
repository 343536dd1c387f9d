"""The server as a whole: its life, who may ask, what is counted and told."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from server_kit import ADMIN, CMS, MERGE, PODS, Api, config_map, pod, serving

from coterie.base.clock import VirtualClock
from coterie.base.secret import SecretValue
from coterie.http.messages import UserInfo
from coterie.kube.apiserver.audit import MemorySink
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.store import protocol
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.extensions.apiserver import KUSCIA

ALICE = UserInfo("alice", ("system:authenticated",))


@pytest.fixture
async def audited() -> AsyncIterator[tuple[Api, MemorySink]]:
    sink = MemorySink()
    tokens = [(SecretValue("admin-token"), ADMIN), (SecretValue("alice-token"), ALICE)]
    async with serving(Settings(audit_sinks=[sink], static_tokens=tokens)) as api:
        sink.events.clear()
        yield api, sink


# ---- life ----


async def test_health_before_during_and_after():
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings())
    api = Api(server, store, VirtualClock())

    async def health() -> list[int]:
        paths = ("/livez", "/readyz", "/healthz", "/readyz/ping")
        return [(await api.call("GET", path, user=ADMIN)).status for path in paths]

    assert await health() == [200, 503, 503, 503]
    await api.refused(503, "GET", CMS)
    await api.refused(503, "POST", CMS, config_map("a"))
    await server.start()
    assert await health() == [200, 200, 200, 200]
    await api.config_map("a")
    await server.stop()
    assert await health() == [200, 503, 503, 503]
    answer = await api.refused(503, "GET", CMS)
    assert answer.reason == "ServiceUnavailable" and answer.json["details"]["retryAfterSeconds"] == 1
    await api.refused(503, "POST", CMS, config_map("b"))
    await store.close()


async def test_first_objects_are_made_once():
    async with serving(Settings(extensions=[KUSCIA])) as api:
        names = set((await api.call("GET", "/api/v1/namespaces")).names)
        assert names == {"default", "kube-system", "kube-public", "kube-node-lease", "cross-domain"}
        assert "system-node-critical" in (await api.call("GET", "/apis/scheduling.k8s.io/v1/priorityclasses")).names
        assert "cluster-admin" in (await api.call("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles")).names
        crds = (await api.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")).names
        assert "kusciajobs.kuscia.secretflow" in crds and len(crds) == 29
        before = api.revision
        await api.server.stop()
        async with serving(Settings(extensions=[KUSCIA]), store=api.store, clock=api.clock) as again:
            assert again.revision == before, "a second start writes nothing"


async def test_a_default_role_that_was_cut_is_mended():
    async with serving() as api:
        role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view"
        whole = await api.get(role)
        await api.patch("/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin", {"rules": []})
        await api.server.stop()
        async with serving(store=api.store, clock=api.clock) as again:
            admin = await again.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")
            assert admin["rules"][0]["verbs"] == ["*"]
            assert await again.get(role) == whole


async def test_objects_survive_a_restart():
    async with serving() as api:
        made = await api.config_map("a", x="1")
        await api.ok("DELETE", f"{CMS}/a")
        kept = await api.config_map("b", x="2")
        await api.server.stop()
        async with serving(store=api.store, clock=api.clock) as again:
            assert await again.get(f"{CMS}/b") == kept
            await again.refused(404, "GET", f"{CMS}/a")
            new = await again.config_map("a")
            assert int(new["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


async def test_history_is_compacted_after_one_to_two_periods():
    async with serving(Settings(compact_every=100)) as api:
        start = api.revision
        await api.config_map("a")
        await api.clock.advance(101)
        assert api.store.compacted <= start + 1
        late = api.revision
        await api.clock.advance(101)
        assert api.store.compacted >= late


async def test_a_failing_compaction_does_not_end_the_housekeeping(monkeypatch: pytest.MonkeyPatch):
    async with serving(Settings(compact_every=100)) as api:
        compact, calls = api.store.compact, 0

        async def failing(revision: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise protocol.StoreError("the disk is full")
            await compact(revision)

        monkeypatch.setattr(api.store, "compact", failing)
        for _ in range(3):
            await api.config_map(f"c{api.revision}")
            await api.clock.advance(101)
        assert calls == 3 and api.store.compacted > 0


async def test_a_store_that_refuses_writes(api: Api, monkeypatch: pytest.MonkeyPatch):
    def refuse(ops: object) -> None:
        raise protocol.StoreError("the disk is full")

    monkeypatch.setattr(api.store, "submit", refuse)
    answer = await api.refused(503, "POST", CMS, config_map("a"))
    assert "the disk is full" in answer.message and answer.json["details"]["retryAfterSeconds"] == 1
    monkeypatch.undo()
    await api.config_map("a")


# ---- who may ask ----


async def test_nobody_may_ask_for_health_only(audited: tuple[Api, MemorySink]):
    api, _ = audited
    for path in ("/healthz", "/livez", "/readyz"):
        assert (await api.call("GET", path, user=None)).status == 200
    for path in (
        "/",
        "/version",
        "/version/",
        "/metrics",
        "/api",
        "/apis",
        "/openapi/v2",
        CMS,
        "/nowhere",
        "/readyz/../version",
    ):
        answer = await api.refused(401, "GET", path, user=None)
        assert answer.reason == "Unauthorized"
    await api.refused(401, "POST", CMS, config_map("a"), user=None)
    for header in ("Bearer wrong", "Basic YTpi", "Bearer", "", "Bearer "):
        await api.refused(401, "GET", CMS, user=None, headers={"authorization": header})


async def test_tokens(audited: tuple[Api, MemorySink]):
    api, _ = audited
    await api.get(CMS, user=None, headers={"authorization": "Bearer admin-token"})
    await api.get("/version", user=None, headers={"authorization": "bearer alice-token"})
    await api.refused(403, "GET", CMS, user=None, headers={"authorization": "Bearer alice-token"})


async def test_acting_as_somebody_else(audited: tuple[Api, MemorySink]):
    api, sink = audited
    admin = {"authorization": "Bearer admin-token"}
    answer = await api.refused(403, "GET", CMS, user=None, headers={**admin, "impersonate-user": "alice"})
    assert 'User "alice" cannot list' in answer.message
    await api.post(CMS, config_map("a"), user=None, headers={**admin, "impersonate-user": "bob", "impersonate-group": "system:masters\nx"})  # fmt: skip
    assert sink.events[-1].user.name == "bob" and "x" in sink.events[-1].user.groups
    alice = {"authorization": "Bearer alice-token", "impersonate-user": "admin"}
    refused = await api.refused(403, "GET", CMS, user=None, headers=alice)
    assert "impersonate" in refused.message
    await api.refused(400, "GET", CMS, user=None, headers={**admin, "impersonate-group": "x"})


async def test_the_audit_names_who_really_asked(audited: tuple[Api, MemorySink]):
    api, sink = audited
    headers = {"authorization": "Bearer admin-token", "impersonate-user": "bob", "impersonate-group": "system:masters"}
    await api.post(CMS, config_map("a"), user=None, headers=headers)
    (event,) = sink.events
    assert event.user.name == "bob" and event.impersonator is not None and event.impersonator.name == "admin"


# ---- audit ----


async def test_the_audit_sees_exactly_what_may_change_something(audited: tuple[Api, MemorySink]):
    api, sink = audited
    await api.config_map("a")
    await api.get(CMS)
    await api.get(f"{CMS}/a")
    await api.call("HEAD", f"{CMS}/a")
    (await api.watch(CMS)).leave()
    await api.patch(f"{CMS}/a", {"data": {"x": "1"}})
    await api.put(f"{CMS}/a", config_map("a"))
    await api.refused(409, "POST", CMS, config_map("a"))
    await api.refused(403, "POST", CMS, config_map("b"), user=ALICE)
    await api.post(f"{CMS}?dryRun=All", config_map("c"))
    await api.post(f"{CMS}?fieldManager=dryRun%3DAll", config_map("d"))
    await api.ok("DELETE", f"{CMS}/a")
    await api.ok("DELETE", CMS)
    await api.post(PODS, pod("p"))
    await api.post(f"{PODS}/p/binding", {"target": {"name": "n"}})
    seen = [(e.verb, e.object.resource, e.object.subresource, e.object.name, e.code, e.dry_run) for e in sink.events if e.object]  # fmt: skip
    assert seen == [
        ("create", "configmaps", "", "", 201, False),
        ("patch", "configmaps", "", "a", 200, False),
        ("update", "configmaps", "", "a", 200, False),
        ("create", "configmaps", "", "", 409, False),
        ("create", "configmaps", "", "", 403, False),
        ("create", "configmaps", "", "", 201, True),
        ("create", "configmaps", "", "", 201, False),
        ("delete", "configmaps", "", "a", 200, False),
        ("deletecollection", "configmaps", "", "", 200, False),
        ("create", "pods", "", "", 201, False),
        ("create", "pods", "binding", "p", 201, False),
    ]
    assert sink.events[4].user is ALICE and sink.events[0].time == api.clock.now()


async def test_a_write_whose_client_left_is_audited(audited: tuple[Api, MemorySink]):
    api, sink = audited
    task = asyncio.create_task(api.call("POST", CMS, config_map("a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(event.verb, event.code) for event in sink.events] == [("create", 499)]
    await api.get(f"{CMS}/a")


async def test_a_broken_sink_breaks_no_request():
    class Broken:
        def record(self, event: object) -> None:
            raise OSError("no space")

    async with serving(Settings(audit_sinks=[Broken()])) as api:
        await api.config_map("a")


# ---- metrics and other pages ----

_SAMPLE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_]+="(\\.|[^"\\\n])*",?)*\})? -?[0-9.e+-]+(Inf)?')


async def test_the_metrics_page_can_be_read(api: Api):
    await api.config_map("a")
    await api.call("GET", '/api/v1/namespaces/default/we"ird\\thing')
    watch = await api.watch(CMS)
    answer = await api.call("GET", "/metrics")
    assert answer.content_type.startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    kinds: dict[str, str] = {}
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            assert name not in kinds, "declared twice"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            assert _SAMPLE.fullmatch(line), line
            name = re.split(r"[{ ]", line)[0]
            assert name in kinds or re.sub("_(bucket|sum|count)$", "", name) in kinds, name
    text = "\n".join(lines)
    assert 'apiserver_request_total{verb="create",group="",resource="configmaps",subresource="",code="201"} 1' in text
    assert 'apiserver_longrunning_requests{verb="watch"} 1' in text
    assert 'apiserver_storage_objects{resource="core/configmaps"} 1' in text
    assert f"coterie_store_revision {api.revision}" in text
    watch.leave()


async def test_a_histogram_adds_up(api: Api):
    for n in range(5):
        await api.config_map(f"c{n}")
    text = (await api.call("GET", "/metrics")).body.decode()
    series = re.findall(r'duration_seconds_bucket\{verb="create",group="",resource="configmaps",subresource="",le="([^"]+)"\} (\d+)', text)  # fmt: skip
    counts = [int(count) for _, count in series]
    assert counts == sorted(counts) and series[-1] == ("+Inf", "5")


async def test_paths_that_do_not_exist_do_not_grow_the_metrics(api: Api):
    for n in range(200):
        await api.call("GET", f"/apis/group{n}/v1/things{n}")
    assert "things1" not in (await api.call("GET", "/metrics")).body.decode()


async def test_pages_beside_the_objects(api: Api):
    assert "/readyz" in (await api.get("/"))["paths"]
    assert (await api.get("/version"))["gitVersion"].startswith("v1.")
    for path in ("/nowhere", "/api/v9", "/apis/none", "/apis/none/v1", "/apiary", "//", "/openapi/v9"):
        assert (await api.call("GET", path)).status == 404, path
    await api.refused(403, "GET", "/metrics", user=ALICE)
    await api.get("/version", user=ALICE)


async def test_a_head_is_a_get(api: Api):
    await api.config_map("a")
    assert (await api.call("HEAD", f"{CMS}/a")).status == 200
    assert (await api.call("HEAD", f"{CMS}/b")).status == 404


async def test_a_patch_type_without_a_body(api: Api):
    await api.config_map("a")
    await api.refused(400, "PATCH", f"{CMS}/a", b"", headers={"content-type": MERGE})


async def test_the_service_of_the_api_itself(api: Api):
    await api.server.publish("192.0.2.7", 6443)
    service = await api.get("/api/v1/namespaces/default/services/kubernetes")
    assert service["spec"]["clusterIP"] == "100.112.0.1" and service["spec"]["ports"][0]["targetPort"] == 6443
    slice_path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
    assert (await api.get(slice_path))["endpoints"][0]["addresses"] == ["192.0.2.7"]
    endpoints = await api.get("/api/v1/namespaces/default/endpoints/kubernetes")
    assert endpoints["subsets"][0]["addresses"] == [{"ip": "192.0.2.7"}]
    before = api.revision
    await api.server.publish("192.0.2.7", 6443)
    assert api.revision == before, "nothing changed, so nothing is written"
    await api.server.publish("192.0.2.8", 6444)
    assert (await api.get(slice_path))["endpoints"][0]["addresses"] == ["192.0.2.8"]
    for path in ("/api/v1/namespaces/default/services/kubernetes", slice_path):
        await api.ok("DELETE", path)
        async with asyncio.timeout(10):
            while (await api.call("GET", path)).status != 200:
                await asyncio.sleep(0.01)


async def test_the_service_of_the_api_takes_another_address_when_the_first_is_taken(api: Api):
    taken = {"metadata": {"name": "a"}, "spec": {"clusterIP": "100.112.0.1", "ports": [{"port": 80}]}}
    await api.post("/api/v1/namespaces/default/services", taken)
    await api.server.publish("192.0.2.7", 6443)
    service = await api.get("/api/v1/namespaces/default/services/kubernetes")
    assert service["spec"]["clusterIP"] not in ("", "100.112.0.1")
