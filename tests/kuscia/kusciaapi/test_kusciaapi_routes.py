"""DomainRouteService: every code, both roles; and routes that the controllers make usable."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import definitions_kit
import pytest
from kuscia.proto.api.v1alpha1.kusciaapi import (
    domain_pb2,
    domain_pb2_grpc,
    domain_route_pb2,
    domain_route_pb2_grpc,
)
from kusciaapi_kit import World, domain_caller, here, logged, served

from coterie.base import pki
from coterie.kube.api.meta import Object
from coterie.kube.client.informers import Informers
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS
from coterie.kuscia.controllers.clusterdomainroute import controller as cdr
from coterie.kuscia.controllers.domain import controller as domain_controller
from coterie.kuscia.kusciaapi import domains
from coterie.kuscia.kusciaapi.operations import Mode
from coterie.kuscia.kusciaapi.routes import OPERATIONS

NOW = datetime(2026, 11, 1, tzinfo=UTC)
AUTHORITY = pki.self_signed_ca("alice", pki.new_key("ec"), now=NOW)
CLIENT_KEY = pki.new_key("ec")
CLIENT = pki.issue_client(AUTHORITY, "alice", CLIENT_KEY.public_key(), now=NOW)


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


SECRET = b64(pki.key_pem(CLIENT_KEY))
MTLS = {
    "tls_ca": b64(pki.certificate_pem(AUTHORITY.certificate)),
    "source_client_cert": b64(pki.certificate_pem(CLIENT)),
    "source_client_private_key": SECRET,
}
ENDPOINT = {"host": "bob.example.com", "ports": [{"port": 1080}]}
TO_BOB: Object = {"source": "alice", "destination": "bob", "authentication_type": "Token", "endpoint": ENDPOINT}
FROM_BOB: Object = {"source": "bob", "destination": "alice", "authentication_type": "Token"}


def code(answer: Any) -> tuple[int, str]:
    return answer.status.code, answer.status.message


@asynccontextmanager
async def a_world(directory: Path, mode: Mode = Mode.AUTONOMY, domain: str = "alice") -> AsyncIterator[World]:
    async with here(directory, mode=mode, domain=domain) as world:
        for name in ("alice", domain, "carol"):
            await world.call(domains.OPERATIONS, "CreateDomain", domain_id=name)
        await world.call(domains.OPERATIONS, "CreateDomain", domain_id="bob", role="partner")
        yield world


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    """alice and carol are ours, bob is a partner."""
    async with a_world(tmp_path) as world:
        yield world


async def spec(world: World, name: str) -> Object:
    return dict((await world.client.get(CLUSTER_DOMAIN_ROUTES.as_dynamic, name))["spec"])


def test_messages_are_those_of_the_stubs() -> None:
    assert definitions_kit.differences(domain_route_pb2) == []


# Creating.


async def test_little_makes_a_route(alice: World) -> None:
    answer = await alice.call(OPERATIONS, "CreateDomainRoute", **TO_BOB)
    assert (*code(answer), answer.data.name) == (0, "success", "alice-bob")
    assert await spec(alice, "alice-bob") == {
        "source": "alice",
        "destination": "bob",
        "interConnProtocol": "kuscia",
        "authenticationType": "Token",
        "tokenConfig": {"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 86400},
        "endpoint": {
            "host": "bob.example.com",
            "ports": [{"name": "http", "protocol": "HTTP", "port": 1080, "isTLS": False}],
        },
    }


async def test_everything_that_is_said_is_kept_and_told(alice: World) -> None:
    request = {
        **TO_BOB,
        "authentication_type": "MTLS",
        "endpoint": {
            "host": "10.0.0.2",
            "ports": [
                {"name": "in", "port": 443, "protocol": "HTTPS", "path_prefix": "/kuscia"},
                {"port": 8443, "protocol": "GRPCS"},
                {"port": 80, "isTLS": True},
            ],
        },
        "token_config": {"rolling_update_period": 600, "token_gen_method": "UID-RSA-GEN"},
        "mtls_config": MTLS,
        "body_encryption": {"algorithm": "AES"},
    }
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **request)) == (0, "success")
    kept = await spec(alice, "alice-bob")
    assert kept["mTLSConfig"]["sourceClientPrivateKey"] == SECRET
    data = (await alice.call(OPERATIONS, "QueryDomainRoute", source="alice", destination="bob")).data
    assert (data.name, data.source, data.destination, data.authentication_type) == ("alice-bob", "alice", "bob", "MTLS")
    assert data.endpoint.host == "10.0.0.2"
    assert [(each.name, each.port, each.protocol, each.isTLS, each.path_prefix) for each in data.endpoint.ports] == [
        ("in", 443, "HTTP", True, "/kuscia"), ("grpc-1", 8443, "GRPC", True, ""), ("http-2", 80, "HTTP", True, ""),
    ]  # fmt: skip
    assert (data.token_config.rolling_update_period, data.token_config.token_gen_method) == (600, "UID-RSA-GEN")
    assert (data.mtls_config.tls_ca, data.mtls_config.source_client_cert) == (MTLS["tls_ca"], MTLS["source_client_cert"])  # fmt: skip
    assert data.body_encryption.algorithm == "AES"


async def test_the_private_key_never_comes_back(alice: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    request = {**TO_BOB, "authentication_type": "MTLS", "mtls_config": MTLS}
    made = await alice.call(OPERATIONS, "CreateDomainRoute", **request)
    told = await alice.call(OPERATIONS, "QueryDomainRoute", source="alice", destination="bob")
    again = await alice.call(OPERATIONS, "CreateDomainRoute", **request)
    broken = {**MTLS, "source_client_private_key": SECRET[:-8]}
    refused = await alice.call(OPERATIONS, "CreateDomainRoute", **{**request, "mtls_config": broken})
    assert [each.status.code for each in (made, told, again, refused)] == [0, 0, 11405, 11100]
    assert told.data.mtls_config.source_client_private_key == ""
    for text in (*map(str, (made, told, again, refused)), logged(caplog)):
        assert SECRET[:40] not in text
    assert next(each for each in OPERATIONS if each.method == "CreateDomainRoute").secret


async def test_a_third_domain_carries(alice: World) -> None:
    request = {
        **TO_BOB, "endpoint": None, "transit": {"transit_method": "THIRD-DOMAIN", "domain": {"domain_id": "carol"}},
    }  # fmt: skip
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **request)) == (0, "success")
    data = (await alice.call(OPERATIONS, "QueryDomainRoute", source="alice", destination="bob")).data
    assert (data.transit.transit_method, data.transit.domain.domain_id) == ("THIRD-DOMAIN", "carol")
    assert not data.HasField("endpoint")


async def test_who_cannot_be_dialled_dials(alice: World) -> None:
    request = {**TO_BOB, "endpoint": None, "transit": {"transit_method": "REVERSE-TUNNEL"}}
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **request)) == (0, "success")
    assert (await spec(alice, "alice-bob"))["transit"] == {"transitMethod": "REVERSE-TUNNEL"}


def port(**fields: Any) -> Object:
    return {**TO_BOB, "endpoint": {"host": "bob", "ports": [fields]}}


BAD: dict[str, tuple[Object, int, str]] = {
    "no source": ({**TO_BOB, "source": ""}, 11100, "source: must be given"),
    "no destination": ({**TO_BOB, "destination": ""}, 11100, "destination: must be given"),
    "bad name": ({**TO_BOB, "source": "Alice"}, 11100, "source: a lowercase"),
    "itself": ({**TO_BOB, "destination": "alice"}, 11100, "destination: must be another domain"),
    "no authentication": ({**TO_BOB, "authentication_type": ""}, 11100, "authentication_type: must be Token, MTLS or None"),
    "no endpoint": ({**TO_BOB, "endpoint": None}, 11100, "endpoint.host: give the address of bob's gateway"),
    "no ports": ({**TO_BOB, "endpoint": {"host": "bob"}}, 11100, "endpoint.ports: give at least one port"),
    "port 0": (port(port=0), 11100, "endpoint.ports[0].port: must be between 1 and 65535"),
    "port too high": (port(port=65536), 11100, "endpoint.ports[0].port"),
    "protocol": (port(port=1, protocol="FTP"), 11100, "endpoint.ports[0].protocol: must be HTTP"),
    "prefix": (port(port=1, path_prefix="kuscia"), 11100, "endpoint.ports[http].path_prefix: must begin with a slash"),
    "host": ({**TO_BOB, "endpoint": {"host": "no host", "ports": [{"port": 1}]}}, 11400, "host"),
    "token method": ({**TO_BOB, "token_config": {"token_gen_method": "RAND"}}, 11100, "token_config.token_gen_method"),
    "token period": ({**TO_BOB, "token_config": {"rolling_update_period": -1}}, 11100, "token_config.rolling_update_period"),
    "token key": ({**TO_BOB, "token_config": {"source_public_key": "x"}}, 11100, "token_config.source_public_key: not base64"),
    "no client": ({**TO_BOB, "authentication_type": "MTLS"}, 11100, "mtls_config.source_client_cert: is needed"),
    "another's key": (
        {**TO_BOB, "mtls_config": {**MTLS, "source_client_private_key": b64(pki.key_pem(AUTHORITY.key))}},
        11100, "mtls_config.source_client_private_key: does not belong to source_client_cert",
    ),
    "authority": ({**TO_BOB, "mtls_config": {**MTLS, "tls_ca": "eA=="}}, 11100, "mtls_config.tls_ca: not a certificate"),
    "SM4": ({**TO_BOB, "body_encryption": {"algorithm": "SM4"}}, 11100, "body_encryption.algorithm: SM4 is not supported"),
    "cipher": ({**TO_BOB, "body_encryption": {"algorithm": "ROT13"}}, 11100, "body_encryption.algorithm: must be AES"),
    "transit method": ({**TO_BOB, "transit": {"transit_method": "PIGEON"}}, 11100, "transit.transit_method: must be"),
    "carrier": ({**TO_BOB, "transit": {"transit_method": "THIRD-DOMAIN"}}, 11100, "transit.domain.domain_id: name the domain"),
    "unknown carrier": ({**TO_BOB, "transit": {"domain": {"domain_id": "joe"}}}, 11305, 'there is no domain "joe"'),
    "unknown destination": ({**TO_BOB, "destination": "joe"}, 11305, 'there is no domain "joe"'),
    "unknown source": ({**TO_BOB, "source": "joe"}, 11305, 'there is no domain "joe"'),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "number", "sentence"), BAD.values(), ids=BAD.keys())
async def test_refusals_name_the_field_and_leave_nothing(
    alice: World, request_: Object, number: int, sentence: str
) -> None:
    refused = code(await alice.call(OPERATIONS, "CreateDomainRoute", **request_))
    assert refused[0] == number, refused
    assert sentence in refused[1]
    assert not (await alice.client.list(CLUSTER_DOMAIN_ROUTES)).items


async def test_a_route_that_exists_is_not_made_again(alice: World) -> None:
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **TO_BOB))[0] == 0
    before = await spec(alice, "alice-bob")
    again = {**TO_BOB, "endpoint": {"host": "elsewhere", "ports": [{"port": 1}]}}
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **again))[0] == 11405
    assert await spec(alice, "alice-bob") == before


async def test_routes_whose_names_fall_together_are_told_apart(alice: World) -> None:
    for name in ("a", "a-b", "b-c", "c"):
        await alice.call(domains.OPERATIONS, "CreateDomain", domain_id=name)
    one = {**TO_BOB, "source": "a-b", "destination": "c"}
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **one))[0] == 0
    ends = {"source": "a", "destination": "b-c"}
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **{**one, **ends}))[0] == 11405
    assert code(await alice.call(OPERATIONS, "QueryDomainRoute", **ends))[0] == 11404
    assert code(await alice.call(OPERATIONS, "DeleteDomainRoute", **ends))[0] == 11404
    assert code(await alice.call(OPERATIONS, "QueryDomainRoute", source="a-b", destination="c"))[0] == 0


# Looking and deleting.


async def test_what_is_not_there_is_told_so(alice: World) -> None:
    ends = {"source": "alice", "destination": "bob"}
    for method in ("QueryDomainRoute", "DeleteDomainRoute"):
        assert code(await alice.call(OPERATIONS, method, **ends)) == (11404, "there is no route alice -> bob")
        assert code(await alice.call(OPERATIONS, method, destination="bob"))[1] == "source: must be given"
    assert code(await alice.call(OPERATIONS, "BatchQueryDomainRouteStatus", route_keys=[ends]))[0] == 11404
    assert code(await alice.call(OPERATIONS, "BatchQueryDomainRouteStatus"))[0] == 11100
    wrong = code(await alice.call(OPERATIONS, "BatchQueryDomainRouteStatus", route_keys=[ends, {"source": "x"}]))
    assert wrong == (11100, "route_keys[1].destination: must be given")


async def test_a_deleted_route_can_be_made_anew(alice: World) -> None:
    for _ in range(2):
        assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **TO_BOB))[0] == 0
        assert code(await alice.call(OPERATIONS, "DeleteDomainRoute", source="alice", destination="bob"))[0] == 0


STATES: dict[str, tuple[Object | None, tuple[str, str]]] = {
    "new": (None, ("Failed", "NotLookedAtYet")),
    "ready": ({"status": "True", "reason": "Success"}, ("Succeeded", "")),
    "not": ({"status": "False", "reason": "TokenNotGenerate"}, ("Failed", "TokenNotGenerate")),
    "why": (
        {"status": "False", "reason": "DestinationIsNotAuthrized", "message": "bob says no"},
        ("Failed", "DestinationIsNotAuthrized: bob says no"),
    ),
}


@pytest.mark.parametrize(("condition", "wanted"), STATES.values(), ids=STATES.keys())
async def test_the_state_of_a_route(alice: World, condition: Object | None, wanted: tuple[str, str]) -> None:
    await alice.call(OPERATIONS, "CreateDomainRoute", **TO_BOB)
    await alice.call(OPERATIONS, "CreateDomainRoute", **FROM_BOB)
    if condition is not None:
        status = {"conditions": [{"type": "Ready", **condition}]}
        await alice.client.patch_status(CLUSTER_DOMAIN_ROUTES, "alice-bob", "", {"status": status})
    told = (await alice.call(OPERATIONS, "QueryDomainRoute", source="alice", destination="bob")).data.status
    assert (told.status, told.reason) == wanted
    keys = [{"source": "bob", "destination": "alice"}, {"source": "alice", "destination": "bob"}]
    found = (await alice.call(OPERATIONS, "BatchQueryDomainRouteStatus", route_keys=keys)).data.routes
    assert [(each.name, each.source, each.destination) for each in found] == [
        ("bob-alice", "bob", "alice"), ("alice-bob", "alice", "bob"),
    ]  # fmt: skip
    assert (found[1].status.status, found[1].status.reason) == wanted


# Who.


async def test_a_domain_makes_routes_to_itself_only(alice: World) -> None:
    bob, carol = domain_caller("bob"), domain_caller("carol")
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", caller=carol, **TO_BOB))[0] == 11102
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", caller=bob, **FROM_BOB))[0] == 11102
    assert code(await alice.call(OPERATIONS, "CreateDomainRoute", caller=bob, **TO_BOB))[0] == 0
    ends = {"source": "alice", "destination": "bob"}
    for who, number in ((bob, 0), (domain_caller("alice"), 0), (carol, 11102)):
        assert code(await alice.call(OPERATIONS, "QueryDomainRoute", caller=who, **ends))[0] == number
        batch = await alice.call(OPERATIONS, "BatchQueryDomainRouteStatus", caller=who, route_keys=[ends])
        assert batch.status.code == number
    assert code(await alice.call(OPERATIONS, "DeleteDomainRoute", caller=domain_caller("alice"), **ends))[0] == 11102
    assert code(await alice.call(OPERATIONS, "DeleteDomainRoute", caller=bob, **ends))[0] == 0


async def test_a_stranger_learns_not_even_what_exists(alice: World) -> None:
    joe = domain_caller("joe")
    for ends in ({"source": "alice", "destination": "bob"}, {"source": "x", "destination": "y"}):
        assert code(await alice.call(OPERATIONS, "QueryDomainRoute", caller=joe, **ends))[0] == 11102


async def test_lites_ask_their_master() -> None:
    assert {(each.on_lite.value, each.for_domains) for each in OPERATIONS} == {("forward", True)}


async def test_a_master_makes_routes_between_its_lites(tmp_path: Path) -> None:
    async with a_world(tmp_path, Mode.MASTER, "kuscia-system") as master:
        request = {**TO_BOB, "destination": "carol", "endpoint": {"host": "carol", "ports": [{"port": 1080}]}}
        assert code(await master.call(OPERATIONS, "CreateDomainRoute", caller=domain_caller("carol"), **request))[0] == 0  # fmt: skip


# With the controllers.


@asynccontextmanager
async def controlled(world: World) -> AsyncIterator[None]:
    informers = Informers(world.client)
    running = [
        domain_controller.make(world.client, informers, control_plane="alice"),
        cdr.make(world.client, informers, control_plane="alice"),
    ]
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(informers.run())
        await informers.ready.wait()
        working = [tasks.create_task(each.run()) for each in running]
        try:
            yield
        finally:
            for each in running:
                each.stop()
            await asyncio.gather(*working)
            watching.cancel()


async def until(wanted: Any, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await wanted():
            await asyncio.sleep(0.02)


async def test_a_route_that_came_with_its_domain_gives_way_once(alice: World) -> None:
    """A partner's route to us is there as soon as the partner is, and would come back if it were deleted."""
    kind = CLUSTER_DOMAIN_ROUTES.as_dynamic

    async def there() -> bool:
        return any(each.metadata.name == "bob-alice" for each in (await alice.client.list(CLUSTER_DOMAIN_ROUTES)).items)

    async with controlled(alice):
        await until(there)
        assert (await alice.client.get(kind, "bob-alice"))["metadata"]["ownerReferences"][0]["name"] == "bob"
        wanted = {**FROM_BOB, "body_encryption": {"algorithm": "AES"}}
        assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **wanted)) == (0, "success")
        found = await alice.client.get(kind, "bob-alice")
        assert found["spec"]["bodyEncryption"] == {"algorithm": "AES"}
        assert not found["metadata"].get("ownerReferences")
        assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **wanted))[0] == 11405


async def test_a_route_reaches_the_domains_it_is_between(alice: World) -> None:
    certificate = pki.certificate_pem(pki.self_signed_ca("bob", pki.new_key("rsa"), now=NOW).certificate).decode()
    own = alice.here.identity.certificate
    assert code(await alice.call(domains.OPERATIONS, "UpdateDomain", domain_id="bob", cert=certificate))[0] == 0
    assert code(await alice.call(domains.OPERATIONS, "UpdateDomain", domain_id="alice", cert=own))[0] == 0

    async def copied() -> bool:
        return any(each.metadata.name == "alice-bob" for each in (await alice.client.list(DOMAIN_ROUTES, "alice")).items)  # fmt: skip

    async def judged() -> bool:
        told = (await alice.call(OPERATIONS, "QueryDomainRoute", source="alice", destination="bob")).data
        return bool(told.token_config.destination_public_key) and told.status.reason.startswith("GatewayNotAlive")

    async with controlled(alice):
        assert code(await alice.call(OPERATIONS, "CreateDomainRoute", **TO_BOB))[0] == 0
        await until(copied)
        await until(judged)
    assert (await alice.client.get(DOMAINS, "bob")).partner


# Through the doors.


async def test_kuscias_own_client_introduces_two_domains(tmp_path: Path) -> None:
    async with served((*domains.OPERATIONS, *OPERATIONS), tmp_path) as place, place.channel() as channel:
        token = (("token", place.token),)
        people = domain_pb2_grpc.DomainServiceStub(channel)
        ways = domain_route_pb2_grpc.DomainRouteServiceStub(channel)
        await place.client.create(DOMAINS.as_dynamic, {"metadata": {"name": "alice"}, "spec": {}})
        partner = domain_pb2.CreateDomainRequest(domain_id="bob", role="partner")
        assert (await people.CreateDomain(partner, metadata=token)).status.code == 0
        told = await people.QueryDomain(domain_pb2.QueryDomainRequest(domain_id="bob"), metadata=token)
        assert (told.data.role, told.data.auth_center.token_gen_method) == ("partner", "RSA-GEN")
        made = await ways.CreateDomainRoute(domain_route_pb2.CreateDomainRouteRequest(**TO_BOB), metadata=token)
        assert made.data.name == "alice-bob"
        body = {"routeKeys": [{"source": "alice", "destination": "bob"}]}
        status, answer = await place.post("/api/v1/route/status/batchQuery", body)
        wanted = {"name": "alice-bob", "destination": "bob", "source": "alice"}
        state = {"status": "Failed", "reason": "NotLookedAtYet"}
        assert (status, answer["data"]) == (200, {"routes": [{**wanted, "status": state}]})
