"""The client against the real doors of KusciaAPI: found by the domain's files, with certificates and the token."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from kusciaapi_kit import Place, served
from kusciaapi_stage import prepare

import coterie.sdk
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.evidence import verification
from coterie.kuscia.evidence.service import open_domain_log
from coterie.kuscia.kusciaapi.codes import ApiErrorCode
from coterie.kuscia.kusciaapi.table import OPERATIONS
from coterie.sdk import (
    AsyncConnection,
    Column,
    Data,
    Exists,
    Grant,
    GrantLimit,
    Image,
    ImageName,
    Invalid,
    Missing,
    NotOnThisNode,
    Party,
    Refused,
    Resources,
    Route,
    RouteEndpoint,
    RoutePort,
    Source,
    Task,
    Unauthorized,
    Unreachable,
)
from coterie.sdk.errors import KINDS
from coterie.sdk.resources import ResourceClient

ENDPOINT = RouteEndpoint("10.0.0.2", [RoutePort(1080)])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with served(OPERATIONS, tmp_path, namespaces=("bob", "carol")) as made:
        (made.paths.etc / "coterie.yaml").write_text(
            yaml.safe_dump({"kusciaAPI": {"HTTPPort": made.settings.http_port}})
        )
        await prepare(made.world, OPERATIONS)
        yield made


@pytest.fixture
async def alice(place: Place) -> AsyncIterator[AsyncConnection]:
    async with coterie.sdk.connect_async("alice", root=place.paths.home.parent) as found:
        yield found


async def test_jobs(alice: AsyncConnection, place: Place) -> None:
    parties = [Party("alice", resources=Resources(cpu="1")), Party("bob")]
    name = await alice.jobs.create(Task.of("engine", parties, {"x": 1}, alias="one"), custom_fields={"owner": "me"})
    job = await alice.jobs.get(name)
    assert (job.initiator, job.tasks[0].alias, job.tasks[0].task_input_config) == ("alice", "one", '{"x": 1}')
    assert [each.domain_id for each in job.tasks[0].parties] == ["alice", "bob"]
    assert dict(job.custom_fields) == {"owner": "me"} and not job.ended
    assert set(await alice.jobs.statuses([name, "job"])) == {name, "job"}
    assert set(await alice.jobs.list()) == {name, "job"}
    with pytest.raises(Refused) as caught:
        await alice.jobs.restart(name)
    assert caught.value.code == ApiErrorCode.RESTART_NOT_ENDED
    await alice.jobs.stop(name, "enough")
    await alice.jobs.delete(name)
    with pytest.raises(Refused, match="there is no job"):
        await alice.jobs.get(name)


async def test_a_job_is_followed_to_its_end(alice: AsyncConnection, place: Place) -> None:
    """No controllers here: the test plays them."""
    running = asyncio.create_task(alice.jobs.run("engine", ["alice", "bob"], job_id="watched", timeout=30))
    async with asyncio.timeout(30), contextlib.aclosing(alice.jobs.watch()) as events:
        async for event in events:
            if event.job_id == "watched":
                break
    for phase in ("Running", "Succeeded"):
        await place.client.patch_status(KUSCIA_JOBS, "watched", CROSS_DOMAIN, {"status": {"phase": phase}})
    assert (await running).check().succeeded


async def test_domains_and_routes(alice: AsyncConnection) -> None:
    await alice.domains.create("dave")
    assert [each.domain_id for each in await alice.domains.get_many(["dave", "bob"])] == ["dave", "bob"]
    assert (await alice.domains.get()).domain_id == "alice"
    await alice.domains.delete("dave")
    with pytest.raises(Missing) as caught:
        await alice.domains.get("dave")
    assert caught.value.code == ApiErrorCode.NO_DOMAIN
    route = Route("alice", "carol", ENDPOINT, authentication_type="None")
    await alice.routes.create(route)
    with pytest.raises(Exists):
        await alice.routes.create(route)
    found = await alice.routes.get("alice", "carol")
    assert found.endpoint is not None and found.endpoint.ports[0].port == 1080 and not found.ready
    assert [each.destination for each in await alice.routes.statuses([("alice", "carol")])] == ["carol"]
    await alice.routes.delete("alice", "carol")


async def test_data_sources_and_grants(alice: AsyncConnection, place: Place) -> None:
    name = await alice.data.create(Data(relative_uri="people.csv", columns=[Column("id", "str")], file_format="CSV"))
    assert (await alice.data.get(name)).columns[0].name == "id"
    await alice.data.update(Data(name, attributes={"k": "v"}))
    assert dict((await alice.data.get_many([name]))[0].attributes) == {"k": "v"}
    assert {each.domaindata_id for each in await alice.data.list()} == {name, "table"}
    grant = await alice.grants.create(Grant(name, "bob", GrantLimit(use_count=3)))
    found = await alice.grants.get(grant)
    assert found.limit is not None and found.limit.use_count == 3
    assert grant in {each.domaindatagrant_id for each in await alice.grants.list(grant_domain="bob")}
    assert [each.grant_domain for each in await alice.grants.get_many([grant])] == ["bob"]
    await alice.grants.delete(grant)
    (place.paths.data / "people.csv").write_text("id\n")
    await alice.data.delete(name, with_file=True)
    assert not (place.paths.data / "people.csv").exists()
    source = await alice.sources.create(Source("localfs", info={"localfs": {"path": "/srv"}}))
    assert (await alice.sources.get(source)).info == {"localfs": {"path": "/srv"}}
    assert source in {each.datasource_id for each in await alice.sources.list()}
    await alice.sources.delete(source)


async def test_images_config_certificates_and_health(alice: AsyncConnection) -> None:
    templates = [{"name": "t", "containers": [{"name": "c", "command": ["true"]}]}]
    await alice.images.create(Image("mine", ImageName("mine", "1"), {"a.conf": "x"}, templates))
    found = await alice.images.get("mine")
    assert found.image == ImageName("mine", "1") and found.deploy_templates[0]["containers"][0]["name"] == "c"
    assert {each.name for each in await alice.images.list()} >= {"mine", "engine"}
    await alice.images.delete("mine")
    await alice.config.create({"k": "v"})
    await alice.config.update({"k": "w"})
    assert await alice.config.get("k") == "w" and await alice.config.get_many(["k"]) == {"k": "w"}
    await alice.config.delete(["k"])
    assert await alice.config.get("k") == ""
    pair = await alice.certificates.generate("engine", organization="o")
    assert "PRIVATE KEY" in pair.key and "CERTIFICATE" in pair.cert_chain[0] and "PRIVATE" not in repr(pair)
    assert await alice.health.ready()


async def test_logs_of_what_never_ran(alice: AsyncConnection) -> None:
    with pytest.raises(Refused) as caught:
        _ = [each async for each in alice.logs.read("t")]
    assert caught.value.code == ApiErrorCode.QUERY_LOG
    with pytest.raises(Refused):
        await alice.logs.node("t")


async def test_log_requests_to_partners(alice: AsyncConnection) -> None:
    assert await alice.partner_logs.list() == []
    with pytest.raises(Refused, match="no log request"):
        await alice.partner_logs.get("none")
    with pytest.raises(Refused):
        await alice.partner_logs.ask("bob", "no-such-job", "it failed")
    with pytest.raises(Invalid, match="digest"):
        await alice.partner_logs.review("none", "Approve")


async def test_evidence(alice: AsyncConnection, place: Place) -> None:
    log = await open_domain_log(place.paths, "alice", SYSTEM_CLOCK)
    event = EvidenceEvent(kind=evidence.GRANT_USED, job="job", partner="bob")
    await log.record_requests([EventRequest(event=event, person="carol")])
    await log.checkpoint()
    await log.file.close()
    page = await alice.evidence.list(job_id="job")
    assert [(each.index, each.kind, each.who, each.parties) for each in page.events] == [
        (1, evidence.GRANT_USED, "carol", ("bob",))
    ]
    assert (page.size, (await alice.evidence.get(1)).job_id) == (2, "job")
    state = await alice.evidence.state(verify=True)
    assert (state.size, state.signed_size, state.verified, state.fault, state.logs) == (2, 2, True, "", (1,))
    rows = (await alice.evidence.export(kind="grant.", format="csv")).content
    assert rows.count("grant.used") == 1
    for shown in (await alice.evidence.prove(1), await alice.evidence.export(job_id="job")):
        assert shown.log_key == state.log_key
        assert verification.verify(io.BytesIO(shown.content.encode())).ok
    with pytest.raises(Refused, match="no event 7"):
        await alice.evidence.get(7)


async def test_the_plain_face(place: Place) -> None:
    def plainly() -> None:
        with coterie.sdk.connect("alice", root=place.paths.home.parent) as alice:
            assert alice.health.ready()
            with pytest.raises(Invalid, match="job_id"):
                alice.jobs.get("A_b")
            assert next(alice.jobs.watch()).job_id == "job"

    await asyncio.to_thread(plainly)


async def test_what_is_wrong_with_the_way_is_told(place: Place) -> None:
    certs = place.paths
    pair = {"certificate": certs.certificate("kusciaapi-client"), "key": certs.key("kusciaapi-client")}
    async with coterie.sdk.connect_async(url=place.url, token="guess", ca=certs.ca_certificate, **pair) as other:
        with pytest.raises(Unauthorized):
            await other.health.ready()
    async with coterie.sdk.connect_async(url=place.url, ca=certs.ca_certificate) as other:
        with pytest.raises(Unreachable, match="cannot be reached"):
            await other.health.ready()
    with pytest.raises(Unreachable, match="certificates cannot be used"):
        coterie.sdk.connect_async(url=place.url, ca="/nowhere/ca.crt")


def test_codes_are_those_of_the_api() -> None:
    names = {Missing: "NO_", Exists: "_EXISTS", NotOnThisNode: "NOT_ON_"}
    for kind, part in names.items():
        assert set(KINDS[kind]) == {
            int(code) for code in ApiErrorCode if part in code.name and (kind, code) != (Missing, 0)
        }


def test_every_operation_can_be_asked() -> None:
    """Each path of the API stands in the client."""
    source = Path(coterie.sdk.resources.__file__).read_text()
    for each in OPERATIONS:
        base = next(
            group
            for group in ResourceClient.__subclasses__()
            if each.path.startswith(f"{group.base}/") or each.path == group.base
        )
        verb = each.path.removeprefix(base.base).lstrip("/")
        assert f'"{verb}"' in source or f"/{verb}" in source, each.path
