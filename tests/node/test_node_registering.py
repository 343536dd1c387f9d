"""A lite and its master with real Envoys: nothing is configured but an address and a token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import HOSTS
from mesh_kit import CDR, DOMAIN, DR, GATEWAY, Plane, control_plane, key_of, ready, running, settings_of, until

from coterie.api.errors import Forbidden
from coterie.api.types.core import CONFIG_MAPS
from coterie.api.types.kuscia_domain import DOMAINS
from coterie.base import identity as identities
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.base.secret import Secret
from coterie.control.manager import Manager
from coterie.gateway.model import Protocol
from coterie.gateway.settings import GatewaySettings, MasterEndpoint
from coterie.node.registering import Tie, tied


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
        deploy_token=Secret(token) if token is not None else None,
        **more,
    )


@asynccontextmanager
async def lite(settings: GatewaySettings, root: Path) -> AsyncIterator[Tie]:
    paths = DomainPaths.of(root, settings.domain).prepare()
    own = identities.ensure(paths, settings.domain, Secret(key_of(settings.domain)), datetime.now(UTC))
    tie = tied(settings, paths, own, SYSTEM_CLOCK)
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
        # It comes again without a token, on the files and ports it has.
        async with lite(doors_again(settings), tmp_path) as tie:
            assert await tie.client.get(CONFIG_MAPS, "domain-config", "alice")


def doors_again(settings: GatewaySettings) -> GatewaySettings:
    return GatewaySettings(
        settings.domain, settings.instance, internal=settings.internal, external=settings.external,
        handshake=settings.handshake, protocol=settings.protocol, control_plane=False, master=settings.master,
    )  # fmt: skip


async def test_a_master_that_lost_all_tokens_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.gateway.registration.link.CHECK_PERIOD", 0.5)
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
