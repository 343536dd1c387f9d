"""Two control planes, two real Envoys: from objects to calls that arrive."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_kit import HOSTS, call, echo
from mesh_kit import (
    CDR,
    DOMAIN,
    DR,
    EVENT,
    GATEWAY,
    SERVICE,
    Plane,
    a_route,
    befriend,
    control_plane,
    introduce,
    ready,
    until,
)

from coterie.base import pki
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES
from coterie.kuscia.gateway import snapshot_source as feeds
from coterie.kuscia.gateway.addresses import KeyPair, Protocol
from coterie.kuscia.gateway.model import SnapshotInputs
from coterie.kuscia.gateway.settings import ExternalTls
from coterie.kuscia.gateway.snapshot import EnvoyResources, snapshot

INSIDE = "rds-internal.json"


async def answered(http: aiohttp.ClientSession, plane: Plane, host: str, status: int, path: str = "/") -> Any:
    """Wait until a call from inside a domain is answered so."""

    last: list[Any] = []

    async def asked() -> Any:
        last[:] = await call(http, f"{plane.inside}{path}", host)
        return (last[1] or True) if last[0] == status else None

    try:
        return await until(asked)
    except AssertionError as error:
        raise AssertionError(f"{host} at {plane.name}: not {status} but {last}") from error


async def told(plane: Plane, reason: str) -> Any:
    async def found() -> Any:
        events = (await plane.client.list(EVENT)).items
        return next((each for each in events if each["reason"] == reason), None)

    return await until(found)


@pytest.mark.parametrize("protocol", [Protocol.MTLS, Protocol.NOTLS], ids=str)
async def test_from_routes_to_calls(tmp_path: Path, protocol: Protocol) -> None:
    async with (
        echo(HOSTS["bob"]) as where,
        control_plane("alice", tmp_path, protocol=protocol) as alice,
        control_plane("bob", tmp_path, protocol=protocol) as bob,
        aiohttp.ClientSession() as http,
    ):
        await bob.serve("echo", where)
        await befriend(alice, bob)
        await ready(alice, "alice-bob")
        await ready(bob, "bob-alice")
        said = await answered(http, alice, "echo.bob.svc", 200, "/x")
        headers = dict(said["headers"])
        assert said["path"] == "/x"
        assert headers["kuscia-source"] == "alice"
        assert "kuscia-token" not in headers
        # A service that appears is reachable, one that goes is not.
        await bob.serve("later", where)
        await answered(http, alice, "later.bob.svc", 200)
        await bob.client.delete(SERVICE, "later", "bob")
        await answered(http, alice, "later.bob.svc", 403)
        # Gateways tell of themselves.
        status = (await bob.client.get(GATEWAY, "gw-bob", "bob"))["status"]
        assert status["address"] == HOSTS["bob"]
        # A route that goes takes the way with it.
        await alice.client.delete(CDR, "alice-bob")
        await alice.client.delete(DR, "alice-bob", "alice")
        await answered(http, alice, "echo.bob.svc", 404)


async def test_whoever_came_too_early_gets_in_later(tmp_path: Path) -> None:
    """A connection from the time when a partner was not known must not keep it out afterwards."""
    async with (
        echo(HOSTS["bob"]) as where,
        control_plane("alice", tmp_path) as alice,
        control_plane("bob", tmp_path) as bob,
        aiohttp.ClientSession() as http,
    ):
        await bob.serve("echo", where)
        await introduce(alice, bob)
        await told(alice, "HandshakeRefused")
        await introduce(bob, alice)
        await ready(alice, "alice-bob")
        await answered(http, alice, "echo.bob.svc", 200)


async def test_an_organisation_shows_its_own_certificate_and_calls_under_the_domains(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = pki.self_signed_ca("organisation", pki.new_key("ec"), now=now)
    key = pki.new_key("ec")
    made = pki.issue_server(authority, "gateway.bob.example", key.public_key(), names=(HOSTS["bob"],), now=now)
    pair = KeyPair(tmp_path / "shown.crt", tmp_path / "shown.key")
    pki.save_key(pair.key, key)
    pki.save_certificate(pair.certificate, made)
    trusted = {"tlsCA": base64.b64encode(pki.certificate_pem(authority.certificate)).decode()}
    async with (
        echo(HOSTS["bob"]) as there,
        echo(HOSTS["alice"]) as here,
        control_plane("alice", tmp_path) as alice,
        control_plane("bob", tmp_path, external_tls=ExternalTls(pair)) as bob,
        aiohttp.ClientSession() as http,
    ):
        await bob.serve("echo", there)
        await alice.serve("echo", here)
        await befriend(alice, bob)
        await alice.client.patch(CDR, "alice-bob", "", {"spec": {"mTLSConfig": trusted}})
        await answered(http, alice, "echo.bob.svc", 200)
        await answered(http, bob, "echo.alice.svc", 200)


async def test_tokens_roll_without_a_failed_call(tmp_path: Path) -> None:
    async with (
        echo(HOSTS["bob"]) as where,
        control_plane("alice", tmp_path) as alice,
        control_plane("bob", tmp_path) as bob,
        aiohttp.ClientSession() as http,
    ):
        await bob.serve("echo", where)
        await befriend(alice, bob, tokenConfig={"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 1})
        await ready(alice, "alice-bob")
        await answered(http, alice, "echo.bob.svc", 200)
        first = (await alice.tokens("alice-bob"))[-1]["revision"]
        failed: list[Any] = []

        async def rolled() -> bool:
            status, said, _ = await call(http, alice.inside, "echo.bob.svc")
            if status != 200:
                failed.append((status, said))
            return bool((await alice.tokens("alice-bob"))[-1]["revision"] >= first + 3)

        await until(rolled)
        assert failed == []


async def test_a_partner_calls_our_api_as_its_own_account_and_as_nobody_else(tmp_path: Path) -> None:
    async with (
        control_plane("alice", tmp_path) as alice,
        control_plane("bob", tmp_path) as bob,
        control_plane("joe", tmp_path) as joe,
        alice.as_node() as from_alice,
        bob.as_node() as from_bob,
        joe.as_node() as from_joe,
        aiohttp.ClientSession() as http,
    ):
        await befriend(alice, bob)
        # Joe lives under a foreign control plane, so it has no account at bob's.
        known = {"cert": joe.certificate, "role": "partner", "master": "zed", "interConnProtocols": ["kuscia"]}
        await bob.client.create(DOMAIN, {"metadata": {"name": "joe"}, "spec": known})
        await bob.client.create(CDR, a_route("joe", bob))
        await joe.client.create(
            DOMAIN, {"metadata": {"name": "bob"}, "spec": {"cert": bob.certificate, "role": "partner"}}
        )
        await joe.client.create(CDR, a_route("joe", bob))
        await ready(alice, "alice-bob")
        await ready(joe, "joe-bob")
        jobs = "/apis/kuscia.secretflow/v1alpha1/namespaces/{}/kusciajobs"
        await answered(from_alice, alice, "apiserver.bob.svc", 200, jobs.format("alice"))
        # To ourselves nothing is given: who calls brings credentials of its own.
        await answered(from_bob, bob, "apiserver.master.svc", 401, jobs.format("alice"))
        # Pods do not get there at all, also where they share the machine's network.
        await answered(http, alice, "apiserver.bob.svc", 403, jobs.format("alice"))
        await answered(http, bob, "apiserver.master.svc", 403, jobs.format("alice"))
        # The account has no rights elsewhere, and a credential that the caller brings is replaced.
        status, said, _ = await call(from_alice, f"{alice.inside}{jobs.format('bob')}", "apiserver.bob.svc")
        assert (status, said["reason"]) == (403, "Forbidden")
        assert "system:serviceaccount:alice:alice" in said["message"]
        forged = {"Authorization": "Bearer nonsense"}
        status, _, _ = await call(
            from_alice, f"{alice.inside}{jobs.format('alice')}", "apiserver.bob.svc", headers=forged
        )
        assert status == 200
        status, said, _ = await call(from_joe, f"{joe.inside}{jobs.format('alice')}", "apiserver.bob.svc")
        assert (status, "Forbidden" in str(said)) == (403, False)


async def test_what_envoy_refuses_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(inputs: SnapshotInputs) -> EnvoyResources:
        made = snapshot(inputs)
        if any(each.name == "poison" for each in inputs.services):
            table = made.files[INSIDE][0]
            made.files[INSIDE] = ({**table, "request_headers_to_add": [{"header": {"key": ":path", "value": "x"}}]},)
        return made

    monkeypatch.setattr(feeds, "snapshot", poisoned)
    async with echo(HOSTS["bob"]) as where, control_plane("bob", tmp_path) as bob, aiohttp.ClientSession() as http:
        await bob.serve("echo", where)
        await answered(http, bob, "echo.bob.svc", 200)
        await bob.serve("poison", where)
        event = await told(bob, "ConfigurationRefused")
        assert INSIDE in event["message"]
        assert event["involvedObject"]["name"] == "gw-bob"
        feed = bob.part("gateway-feed")

        async def put_back() -> bool:
            table = (bob.paths.var / "gateway" / INSIDE).read_text()
            return '":path"' not in table and "poison" not in table

        await until(put_back)
        await answered(http, bob, "echo.bob.svc", 200)
        # The next change is tried anew.
        await bob.client.delete(SERVICE, "poison", "bob")
        await bob.serve("later", where)
        await answered(http, bob, "later.bob.svc", 200)

        async def accepted() -> bool:
            return bool(feed.status.applied.accepted)

        await until(accepted)  # Envoy serves before all its workers have confirmed


async def test_what_cannot_be_done_is_told_where_it_was_asked(tmp_path: Path) -> None:
    async with echo(HOSTS["bob"]) as where, control_plane("bob", tmp_path) as bob:
        await bob.serve("odd", where, **{"kuscia.secretflow/protocol": "smtp"})
        event = await told(bob, "GatewayRefused")
        assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Service", "odd")
        assert "smtp" in event["message"]
        assert [each.about for each in bob.part("gateway-feed").status.problems] == ["service odd"]


async def test_weaker_forms_of_a_route_are_named_where_they_were_asked_for(tmp_path: Path) -> None:
    async with control_plane("bob", tmp_path) as bob:
        spec: dict[str, Any] = {"source": "zed", "destination": "bob", "authenticationType": "Token"}
        spec["tokenConfig"] = {"tokenGenMethod": "RSA-GEN"}
        meta = {"name": "zed-bob", "namespace": "bob"}
        annotations = {"coterie.io/kuscia-wire": "no-client-certificate"}
        await bob.client.create(
            DOMAIN_ROUTES.as_dynamic, {"metadata": {**meta, "annotations": annotations}, "spec": spec}, "bob"
        )
        event = await told(bob, "ProtectionOff")
        assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("DomainRoute", "zed-bob")
        assert "whoever learns its token" in event["message"]


async def test_a_tunnel_in_kuscias_frames_from_the_handshake_on(tmp_path: Path) -> None:
    """bob is not dialled: he fetches alice's handshake, and then her calls."""
    async with (
        echo(HOSTS["bob"]) as where,
        control_plane("alice", tmp_path) as alice,
        control_plane("bob", tmp_path) as bob,
        aiohttp.ClientSession() as http,
    ):
        await bob.serve("echo", where)
        tunnel = a_route("alice", bob, transit={"transitMethod": "REVERSE-TUNNEL"})
        tunnel["spec"]["endpoint"]["ports"][0]["port"] = 1  # nobody dials it
        tunnel["metadata"]["annotations"] = {"coterie.io/kuscia-wire": "reverse-tunnel"}
        for here, there in ((alice, bob), (bob, alice)):
            known = {"cert": there.certificate, "role": "partner", "interConnProtocols": ["kuscia"]}
            await here.client.create(DOMAIN, {"metadata": {"name": there.name}, "spec": known})
            await here.client.create(CDR, a_route("bob", alice))
            await here.client.create(CDR, tunnel)
        await ready(bob, "bob-alice")
        await ready(alice, "alice-bob")
        said = await answered(http, alice, "echo.bob.svc", 200, "/x%2Fy?z")
        headers = dict(said["headers"])
        assert (said["path"], headers["kuscia-source"]) == ("/x%2Fy?z", "alice")
        assert "kuscia-token" not in headers


async def test_a_taken_port_is_said_at_once(tmp_path: Path) -> None:
    async with echo(HOSTS["bob"]) as taken:
        with pytest.raises(Exception, match="cannot listen on") as failure:
            async with control_plane("bob", tmp_path, internal=taken):
                pass
        assert f"{taken}" in str(failure.value)


async def test_two_gateways_of_one_domain_each_take_a_token_before_it_is_used(tmp_path: Path) -> None:
    async with (
        echo(HOSTS["bob"]) as where,
        control_plane("alice", tmp_path) as alice,
        control_plane("bob", tmp_path) as bob,
        aiohttp.ClientSession() as http,
    ):
        await bob.serve("echo", where)
        async with bob.replica("gw-bob-2") as second:
            await befriend(alice, bob)
            await ready(alice, "alice-bob")
            loaded = (await bob.tokens("alice-bob"))[-1]["effectiveInstances"]
            assert sorted(loaded) == ["gw-bob", "gw-bob-2"]
            # A call may come in at either.
            for door in (bob.settings.external, second.external):
                assert door is not None
                port = {"name": "http", "protocol": "HTTP", "port": door.port, "isTLS": True}
                endpoint = {"host": door.host, "ports": [port]}
                await alice.client.patch(CDR, "alice-bob", "", {"spec": {"endpoint": endpoint}})
                await answered(http, alice, "echo.bob.svc", 200)
