"""Routes from nothing to ready on the real API server, and what may go wrong on the way."""

from __future__ import annotations

import pytest
from domain_world import CDR, DOMAIN, DR, GATEWAY, INTEROP, PLANE, WITH_COLLECTOR, Mesh, a_domain, a_route, cert, mesh

from coterie.kube.api.meta import Object
from coterie.kube.client.transport import TransportRequest, TransportResponse


async def center(world: Mesh, **spec: object) -> None:
    """Two lites under one master, a gateway each, a route."""
    for name in ("alice", "bob"):
        await world.client.create(DOMAIN, a_domain(name))
        world.add_gateway(name, f"gw-{name}")
    await world.client.create(CDR, a_route("alice", "bob", **spec))


async def test_a_route_between_two_domains_of_ours_becomes_ready() -> None:
    async with mesh() as world:
        await center(world)
        await world.until_ready("alice-bob")
        route = await world.get(CDR, "alice-bob", "")
        assert route["metadata"]["labels"] == {
            "kuscia.secretflow/clusterdomainroute-source": "alice",
            "kuscia.secretflow/clusterdomainroute-destination": "bob",
        }
        keys = route["spec"]["tokenConfig"]
        assert keys["sourcePublicKey"] != keys["destinationPublicKey"]
        status = route["status"]["tokenStatus"]
        assert status["revision"] == 1
        assert status["sourceTokens"][-1]["token"] == "enc-1"
        assert status["destinationTokens"][-1]["effectiveInstances"] == ["gw-bob"]
        for namespace in ("alice", "bob"):
            copy = await world.get(DR, "alice-bob", namespace)
            assert copy["metadata"]["ownerReferences"][0]["name"] == "alice-bob"
            assert copy["spec"] == route["spec"]


async def test_reasons_follow_what_is_missing() -> None:
    async with mesh() as world:
        await world.client.create(CDR, a_route("alice", "bob"))
        await world.until_ready("alice-bob", "DomainNotFound")
        await world.client.create(DOMAIN, a_domain("alice"))
        await world.client.create(DOMAIN, {"metadata": {"name": "bob"}, "spec": {}})
        await world.until_ready("alice-bob", "DomainCertificateMissing")
        await world.client.patch(DOMAIN, "bob", "", {"spec": {"cert": "bm8="}})
        await world.until_ready("alice-bob", "DomainCertificateInvalid")
        await world.client.patch(DOMAIN, "bob", "", {"spec": {"cert": cert("bob")}})
        await world.until_ready("alice-bob", "GatewayNotAlive")
        world.handshakes = False
        world.add_gateway("alice", "gw-alice")
        await world.settle(1)
        assert await world.ready("alice-bob") == ("False", "GatewayNotAlive")
        world.add_gateway("bob", "gw-bob")
        await world.until_ready("alice-bob", "DestinationIsNotAuthrized")
        world.handshakes = True
        await world.until_ready("alice-bob", seconds=150)


async def test_tokens_roll_without_the_route_ever_being_unready() -> None:
    async with mesh() as world:
        await center(world, tokenConfig={"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 20})
        await world.until_ready("alice-bob")
        for _ in range(100):
            await world.settle(1.0, step=1.0)
            assert await world.ready("alice-bob") == ("True", "Success")
            used = world.tokens(await world.get(DR, "alice-bob", "alice"))[-1]["revision"]
            held = {
                token["revision"]: token["isReady"] for token in world.tokens(await world.get(DR, "alice-bob", "bob"))
            }
            assert held[used], (used, held)
        assert used >= 4


async def test_a_dead_initializer_hands_over_and_a_silent_source_is_noticed() -> None:
    async with mesh() as world:
        await center(world)
        world.add_gateway("alice", "gw-other")
        await world.until_ready("alice-bob")

        async def initializer() -> str:
            return str((await world.get(DR, "alice-bob", "alice"))["status"]["tokenStatus"]["revisionInitializer"])

        await world.settle(20, step=5)
        first = await initializer()
        del world.gateways["alice", first]
        await world.until_ready("alice-bob", "HeartBeatTimeout", 60)
        await world.until_ready("alice-bob", seconds=300)
        assert await initializer() != first
        world.gateways.clear()
        await world.settle(200, step=10)
        assert await world.ready("alice-bob") == ("False", "GatewayNotAlive")


async def test_a_wrong_clock_on_a_gateway_does_no_harm() -> None:
    async with mesh() as world:
        await center(world)
        world.gateways["bob", "gw-bob"]["skew"] = -400
        world.gateways["alice", "gw-alice"]["skew"] = 400
        await world.until_ready("alice-bob", seconds=60)


async def test_endpoint_edit_keeps_tokens_and_key_change_does_not() -> None:
    async with mesh() as world:
        await center(world)
        await world.until_ready("alice-bob")
        before = await world.get(DR, "alice-bob", "alice")
        await world.client.patch(CDR, "alice-bob", "", {"spec": {"endpoint": {"host": "10.0.0.9"}}})
        await world.settle(1)
        after = await world.get(DR, "alice-bob", "alice")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["spec"]["endpoint"]["host"] == "10.0.0.9"
        assert world.tokens(after) == world.tokens(before)
        await world.client.patch(DOMAIN, "alice", "", {"spec": {"cert": cert("alice#2")}})
        await world.settle(0.2)
        renewed = await world.get(DR, "alice-bob", "alice")
        assert renewed["metadata"]["uid"] != before["metadata"]["uid"]
        await world.until_ready("alice-bob")
        assert (await world.get(DR, "alice-bob", "bob"))["spec"]["tokenConfig"] == renewed["spec"]["tokenConfig"]


@pytest.mark.parametrize("source", [PLANE, "alice"], ids=["control-plane", "lite"])
async def test_a_partner_has_no_copy_and_the_control_plane_gets_an_interop_config(source: str) -> None:
    """Not a lite: its namespace at the partner is forbidden to the control plane, which would retry for ever."""
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain(source))
        await world.client.create(DOMAIN, a_domain("bob", role="partner", interConnProtocols=["kuscia"]))
        world.add_gateway(source, "gw")
        await world.client.create(CDR, a_route(source, "bob"))
        await world.until_ready(f"{source}-bob", "DestinationIsNotAuthrized")
        route = await world.get(CDR, f"{source}-bob", "")
        assert route["metadata"]["labels"]["kuscia.secertflow/domainroute-partner"] == "bob"
        assert await world.list(DR, "bob") == []
        assert not await world.exists(INTEROP, f"{source}-2-bob", "")
        # Our gateway shook hands with theirs.
        copy = await world.get(DR, f"{source}-bob", source)
        token = {"isReady": True, "token": "enc", "revision": 7, "revisionTime": "2026-01-02T03:04:05Z"}
        told = {"isDestinationAuthorized": True, "tokenStatus": {"revisionToken": {**copy["status"]["tokenStatus"]["revisionToken"], **token}}}  # fmt: skip
        await world.client.patch_status(DR, f"{source}-bob", source, {"status": told})
        await world.until_ready(f"{source}-bob")
        made = [config["spec"] for config in await world.list(INTEROP, "")]
        assert made == ([{"host": "bob", "members": [PLANE]}] if source == PLANE else [])
        await world.client.patch_status(DR, f"{source}-bob", source, {"status": {"isDestinationUnreachable": True}})
        await world.until_ready(f"{source}-bob", "DestinationUnreachable")


async def test_removing_a_domain_cuts_it_off() -> None:
    async with mesh() as world:
        await center(world)
        await world.until_ready("alice-bob")
        await world.client.delete(DOMAIN, "alice")
        await world.until_ready("alice-bob", "DomainNotFound")
        assert await world.list(DR, "bob") == []
        assert await world.list(DR, "alice") == []


async def test_a_broken_route_does_not_keep_a_removed_domain_in() -> None:
    async with mesh() as world:
        await center(world)
        await world.until_ready("alice-bob")
        await world.client.patch(CDR, "alice-bob", "", {"spec": {"sourceWhiteIPList": ["ten"]}})
        await world.until_ready("alice-bob", "RouteInvalid")
        await world.client.delete(DOMAIN, "alice")
        await world.settle(1)
        assert await world.list(DR, "bob") == []


async def test_copies_go_with_their_route_and_a_domains_route_with_it() -> None:
    async with mesh(WITH_COLLECTOR) as world:
        await center(world)
        await world.client.patch(DOMAIN, "alice", "", {"spec": {"authCenter": {"authenticationType": "Token"}}})
        await world.client.create(DOMAIN, a_domain(PLANE))
        await world.until_ready("alice-bob")
        await world.client.delete(CDR, "alice-bob")

        async def gone() -> bool:
            return not await world.list(DR, "bob")

        await world.until(gone)
        assert await world.exists(CDR, f"alice-{PLANE}", "")
        await world.client.delete(DOMAIN, "alice")

        async def no_route() -> bool:
            return not await world.exists(CDR, f"alice-{PLANE}", "")

        await world.until(no_route)


async def test_a_lite_reaches_its_master_without_an_endpoint() -> None:
    async with mesh() as world:
        center = {"authenticationType": "Token", "tokenGenMethod": "RSA-GEN"}
        await world.client.create(DOMAIN, a_domain(PLANE))
        await world.client.create(DOMAIN, {"metadata": {"name": "alice"}, "spec": {"authCenter": center}})
        world.add_gateway(PLANE, "gw-hq")
        await world.until_ready(f"alice-{PLANE}", "DomainCertificateMissing")
        await world.client.patch(DOMAIN, "alice", "", {"spec": {"cert": cert("alice")}})  # it registered
        world.add_gateway("alice", "gw-alice")
        await world.until_ready(f"alice-{PLANE}")


async def test_a_reverse_tunnel_needs_the_way_back() -> None:
    async with mesh() as world:
        await center(world, transit={"transitMethod": "REVERSE-TUNNEL"}, endpoint=None)
        await world.until_ready("alice-bob", "TransitRouteMissing")
        await world.client.create(CDR, a_route("bob", "alice"))
        await world.until_ready("bob-alice")
        await world.until_ready("alice-bob")


async def test_somebody_elses_route_is_left_alone() -> None:
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("alice"))
        await world.settle(1)
        mine: Object = {**a_route("alice", "bob"), "metadata": {"name": "alice-bob", "namespace": "alice"}}
        await world.client.create(DR, mine)
        await world.client.create(DOMAIN, a_domain("bob"))
        await world.client.create(CDR, a_route("alice", "bob"))
        await world.until_ready("alice-bob", "DomainRouteConflict")
        await world.client.delete(DR, "alice-bob", "alice")
        await world.until_ready("alice-bob", "GatewayNotAlive")
        assert (await world.get(DR, "alice-bob", "alice"))["metadata"]["ownerReferences"]


async def test_secrets_go_only_to_the_side_that_uses_them() -> None:
    async with mesh() as world:
        await center(world, requestHeadersToAdd={"Authorization": "Bearer abcdefgh"})
        await world.settle(1)
        assert "requestHeadersToAdd" not in (await world.get(DR, "alice-bob", "alice"))["spec"]
        assert (await world.get(DR, "alice-bob", "bob"))["spec"]["requestHeadersToAdd"]


@pytest.mark.parametrize(
    ("reports", "reason", "statuses"),
    [
        ({"alice-to-bob-http": False}, "EndpointUnreachable", {"gw-alice-http": {"endpointHealthy": False}}),
        ({"alice-to-bob-http": True}, "Success", {"gw-alice-http": {"endpointHealthy": True}}),
        ({}, "Success", {"gw-alice-http": {"endpointHealthy": False}}),
    ],
    ids=["dead", "healthy", "not-reported"],
)
async def test_endpoint_health(reports: dict[str, bool], reason: str, statuses: Object) -> None:
    async with mesh() as world:
        await center(world, authenticationType="None", tokenConfig=None)
        await world.until_ready("alice-bob")
        world.gateways["alice", "gw-alice"]["healthy"] = reports
        await world.settle(20, step=5)
        await world.until_ready("alice-bob", reason)
        assert (await world.get(CDR, "alice-bob", ""))["status"]["endpointStatuses"] == statuses


async def test_transit_needs_its_routes() -> None:
    async with mesh() as world:
        await center(world, transit={"domain": {"domainID": "joe"}}, endpoint=None)
        await world.client.create(DOMAIN, a_domain("joe"))
        world.add_gateway("joe", "gw-joe")
        await world.until_ready("alice-bob", "TransitRouteMissing")
        await world.client.create(CDR, a_route("alice", "joe"))
        await world.until_ready("alice-joe")
        assert await world.ready("alice-bob") == ("False", "TransitRouteMissing")
        await world.client.create(CDR, a_route("joe", "bob"))
        await world.until_ready("alice-bob")
        del world.gateways["joe", "gw-joe"]
        await world.until_ready("alice-bob", "TransitRouteNotReady", 400)


async def test_an_invalid_edit_is_said_and_the_last_good_copy_stays() -> None:
    async with mesh() as world:
        await center(world)
        await world.until_ready("alice-bob")
        await world.client.patch(CDR, "alice-bob", "", {"spec": {"sourceWhiteIPList": ["10.0.0.0/40"]}})
        await world.until_ready("alice-bob", "RouteInvalid")
        conditions = (await world.get(CDR, "alice-bob", ""))["status"]["conditions"]
        assert "sourceWhiteIPList[0]" in conditions[0]["message"]
        assert "sourceWhiteIPList" not in (await world.get(DR, "alice-bob", "bob"))["spec"]
        await world.client.patch(CDR, "alice-bob", "", {"spec": {"sourceWhiteIPList": ["10.0.0.0/8"]}})
        await world.until_ready("alice-bob")
        assert (await world.get(DR, "alice-bob", "bob"))["spec"]["sourceWhiteIPList"] == ["10.0.0.0/8"]


async def test_faults_of_the_api_are_survived() -> None:
    async with mesh() as world:
        world.faults.share = 0.3
        await center(world)
        await world.until_ready("alice-bob", seconds=120)


async def test_controllers_that_restart_go_on() -> None:
    async with mesh() as world:
        await center(world, tokenConfig={"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 30})
        await world.until_ready("alice-bob")
        await world.stop()
        await world.settle(100, step=5)
        await world.start()
        await world.settle(40, step=1)
        assert await world.ready("alice-bob") == ("True", "Success")
        assert world.tokens(await world.get(DR, "alice-bob", "alice"))[-1]["revision"] >= 2


async def test_gateways_that_are_gone_are_forgotten() -> None:
    async with mesh() as world:
        await world.client.create(DOMAIN, a_domain("alice"))
        world.add_gateway("alice", "gw-old")
        world.add_gateway("alice", "gw-slow-clock", skew=-7200)
        await world.settle(5)
        del world.gateways["alice", "gw-old"]
        await world.settle(3500, step=14)
        assert await world.exists(GATEWAY, "gw-old", "alice")
        await world.settle(200, step=14)
        assert not await world.exists(GATEWAY, "gw-old", "alice")
        assert await world.exists(GATEWAY, "gw-slow-clock", "alice")


async def test_a_route_at_rest_is_nearly_silent() -> None:
    """Heartbeats of gateways and routes come every fifteen seconds; what controllers write about them does not."""
    async with mesh() as world:
        await center(world)
        await world.until_ready("alice-bob")
        await world.settle(40, step=1)
        writes: list[str] = []
        send = world.faults.send

        async def counted(call: TransportRequest) -> TransportResponse:
            if call.mutating:
                writes.append(call.path)
            return await send(call)

        world.faults.send = counted  # type: ignore[method-assign]
        await world.settle(120, step=1)
        assert len(writes) <= 3, writes
