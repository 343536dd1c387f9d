"""A lite and its master with real Envoys: nothing is configured but an address and a token."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from gateway_kit import HOSTS, client_tls
from mesh_kit import CDR, DOMAIN, DR, GATEWAY, Plane, control_plane, key_of, ready, running, settings_of, until
from registration_kit import an_application, logged, plane

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES
from coterie.kube.control.manager import Manager
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS
from coterie.kuscia.extensions.agent_trust import fault
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.handshake import crypto
from coterie.kuscia.gateway.settings import GatewaySettings, MasterEndpoint
from coterie.kuscia.identity import domain_identity as identities
from coterie.node.parts.agent_endpoint import AgentTls
from coterie.node.parts.registration import LiteGateway, authority, lite_gateway, newest_token


async def deploy_token(master: Plane, name: str) -> str:
    center = {"authenticationType": "Token", "tokenGenMethod": "RSA-GEN"}
    await master.client.create(DOMAIN, {"metadata": {"name": name}, "spec": {"authCenter": center}})

    async def unused() -> str:
        listed = (await master.client.get(DOMAINS, name)).status.deploy_token_statuses or ()
        return next((each.token for each in listed if each.state == "unused"), "")

    return str(await until(unused))


def doors(master: Plane, name: str, token: str | None, **more: Any) -> GatewaySettings:
    where = master.settings.external
    assert where is not None
    tls = master.settings.protocol is not Protocol.NOTLS
    return settings_of(
        name,
        control_plane=False,
        master=MasterEndpoint(where.host, where.port, tls),
        deploy_token=SecretValue(token) if token is not None else None,
        **more,
    )


@asynccontextmanager
async def lite(settings: GatewaySettings, root: Path) -> AsyncIterator[LiteGateway]:
    paths = DomainPaths.of(root, settings.domain).prepare()
    own = identities.ensure(paths, settings.domain, SecretValue(key_of(settings.domain)), datetime.now(UTC))
    tie = lite_gateway(settings, paths, own, SYSTEM_CLOCK)
    async with running(Manager(tie.groups, name=settings.domain)):
        yield tie
    await tie.client.transport.close()


@pytest.mark.parametrize("protocol", [Protocol.MTLS, Protocol.TLS, Protocol.NOTLS], ids=str)
async def test_a_lite_reads_its_masters_api_through_both_gateways(tmp_path: Path, protocol: Protocol) -> None:
    async with control_plane("bob", tmp_path, protocol=protocol) as master:
        settings = doors(master, "alice", await deploy_token(master, "alice"), protocol=protocol)
        async with lite(settings, tmp_path) as tie:
            assert (await tie.client.get(CONFIG_MAPS, "domain-config", "alice")).metadata.namespace == "alice"
            with pytest.raises(Forbidden):
                await tie.client.list(CONFIG_MAPS, "bob")
            await ready(master, "alice-bob")
            assert (await master.client.get(GATEWAY, settings.instance, "alice"))["status"]["address"] == HOSTS["alice"]

            async def rolled() -> bool:
                agreed = tie.link.registration.agreed if tie.link.registration is not None else None
                tokens = await master.tokens("alice-bob")
                return agreed is not None and bool(tokens) and agreed.revision == tokens[-1]["revision"]

            # The token of the route takes over from the one that was agreed on at first.
            await until(rolled)
            issued = pki.load_certificate((tmp_path / "alice/var/certs/domain.crt").read_bytes())
            assert tie.link.identity.certificate.encode() == pki.certificate_pem(issued)
            assert pki.signed_by_key(issued, master.identity.key.public_key())
        # It comes again without a token, on the files and ports it has.
        async with lite(doors_again(settings), tmp_path) as tie:
            assert await tie.client.get(CONFIG_MAPS, "domain-config", "alice")


def doors_again(settings: GatewaySettings) -> GatewaySettings:
    return GatewaySettings(
        settings.domain, settings.instance, internal=settings.internal, external=settings.external,
        protocol=settings.protocol, control_plane=False, master=settings.master,
    )  # fmt: skip


async def test_a_master_that_lost_all_tokens_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.kuscia.gateway.registration.master_connection.CHECK_PERIOD", 0.5)
    async with control_plane("bob", tmp_path) as master:
        settings = doors(master, "alice", await deploy_token(master, "alice"))
        async with lite(settings, tmp_path) as tie:
            await ready(master, "alice-bob")
            await master.client.delete(CDR, "alice-bob")
            for namespace in ("alice", "bob"):
                await master.client.delete(DR, "alice-bob", namespace)

            async def reads_again() -> bool:
                async with asyncio.timeout(2):
                    return bool(await tie.client.get(CONFIG_MAPS, "domain-config", "alice"))

            # The domain controller makes the route anew; the lite agrees on a token for it.
            await ready(master, "alice-bob")
            await until(reads_again)


async def test_what_strangers_try_at_the_public_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with control_plane("bob", tmp_path) as master, aiohttp.ClientSession() as http:
        token = await deploy_token(master, "alice")
        where = f"https://{master.settings.external}/register"

        async def send(body: bytes, jwt: str) -> tuple[int, str]:
            headers = {"Host": "kuscia-handshake.master.svc", "jwt-token": jwt, "X-Forwarded-For": "6.6.6.6"}
            async with http.post(where, data=body, headers=headers, ssl=client_tls(None)) as response:
                return response.status, await response.text()

        request, jwt = an_application("alice", token, datetime.now(UTC))
        guessed, guessed_jwt = an_application("alice", "x" * 32, datetime.now(UTC), signer="mallory")
        assert (await send(guessed.encode(), guessed_jwt))[0] == 500
        assert (await send(request.encode(), jwt))[0] == 200
        with caplog.at_level(logging.WARNING):
            status, told = await send(request.encode(), jwt)
            assert (status, "made before" in told) == (400, True)
            # The certificate alone is of no use, nor is the token once it was used.
            again, again_jwt = an_application("alice", token, datetime.now(UTC), jwt_by="mallory")
            assert (await send(again.encode(), again_jwt))[0] == 400
            stolen, stolen_jwt = an_application("alice", token, datetime.now(UTC), signer="mallory")
            status, told = await send(stolen.encode(), stolen_jwt)
            assert (status, "was used" in told) == (500, True)
            assert (await send(b"x" * 200_000, jwt))[0] in (400, 413)
        lines = logged(caplog.records)
        assert "replay" in lines and "used-token" in lines and token not in lines
        assert "6.6.6.6" not in lines, "the address is the one that our own gateway saw"


# ---- the agent's endpoint ----


def test_an_agents_certificate_is_known_by_the_domains_key(tmp_path: Path) -> None:
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    own = identities.ensure(paths, "alice", SecretValue(key_of("alice")), datetime.now(UTC))
    made = AgentTls.of_domain(paths, "node-1", "127.0.1.1", SYSTEM_CLOCK)
    shown = pki.load_certificate(made.certificate.read_bytes()).public_bytes(serialization.Encoding.DER)
    assert fault(shown, own.key.public_key(), "127.0.1.1", datetime.now(UTC)) == ""
    assert AgentTls.of_domain(paths, "node-1", "127.0.1.1", SYSTEM_CLOCK) == made


async def test_whom_the_agent_believes_is_read_from_the_control_plane(tmp_path: Path) -> None:
    async with plane() as center:
        tls = AgentTls(tmp_path / "a.crt", tmp_path / "a.key", tmp_path / "ca.crt")
        reading = asyncio.create_task(authority(center.client, "alice", tls, SYSTEM_CLOCK).run())
        await center.client.create(NAMESPACES.as_dynamic, {"metadata": {"name": "alice"}})
        meta = {"name": "kube-root-ca.crt", "namespace": "alice"}
        await center.client.create(CONFIG_MAPS.as_dynamic, {"metadata": meta, "data": {"ca.crt": "PEM"}}, "alice")
        await asyncio.wait_for(reading, 60)
        assert tls.ca.read_text() == "PEM"
        # Later it is enough to have read it once.
        await center.client.delete(CONFIG_MAPS, "kube-root-ca.crt", "alice")
        await asyncio.wait_for(authority(center.client, "alice", tls, SYSTEM_CLOCK).run(), 60)


@pytest.mark.parametrize(
    ("tokens", "revision"),
    [([], None), ([(1, True)], 1), ([(1, True), (2, True)], 2), ([(1, True), (2, False)], 1), ([(3, None)], None)],
    ids=["none", "one", "two", "newest not ready", "of another key"],
)
def test_the_newest_token_of_a_route(
    tmp_path: Path, tokens: list[tuple[int, bool | None]], revision: int | None
) -> None:
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    own = identities.ensure(paths, "alice", SecretValue(key_of("alice")), datetime.now(UTC))
    listed = [
        {"token": crypto.seal(bytes([number] * 32), own) if ready is not None else "QUJD", "revision": number,
         "isReady": ready is not False}
        for number, ready in tokens
    ]  # fmt: skip
    body = {
        "metadata": {"name": "alice-hq", "namespace": "alice"},
        "spec": {"source": "alice", "destination": "hq", "authenticationType": "Token"},
        "status": {
            "isDestinationAuthorized": True,
            "isDestinationUnreachable": False,
            "tokenStatus": {"tokens": listed},
        },
    }
    found = newest_token(DOMAIN_ROUTES.decode(json.dumps(body).encode()), own)
    assert (found.revision if found is not None else None) == revision
