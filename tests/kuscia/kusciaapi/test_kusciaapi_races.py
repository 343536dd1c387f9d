"""Updates that meet: somebody else writes between an operation's look and its own write."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kusciaapi_kit import World, domain_caller, here

from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import Transport, TransportRequest, TransportResponse
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import (
    DEFAULT_SOURCE,
    DOMAIN_DATA_GRANTS,
    DOMAIN_DATA_SOURCES,
    DOMAIN_DATAS,
    DomainDataGrant,
)
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import APP_IMAGES
from coterie.kuscia.kusciaapi import datasources, domaindata, grants, servings
from coterie.kuscia.kusciaapi.operations import Mode


class Overtaken:
    """Before the first write that is sent, or another call that is chosen, somebody else's happens."""

    def __init__(
        self,
        inner: Transport,
        other: Callable[[], Awaitable[object]],
        before: Callable[[TransportRequest], bool] | None,
    ) -> None:
        self._inner = inner
        self._other = [other]
        self._before = before or (lambda call: call.mutating)
        self.writes = 0

    async def send(self, call: TransportRequest) -> TransportResponse:
        self.writes += call.mutating
        if self._other and self._before(call):
            await self._other.pop()()
        return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()


def overtaken(
    world: World, other: Callable[[], Awaitable[object]], before: Callable[[TransportRequest], bool] | None = None
) -> tuple[World, Overtaken]:
    transport = Overtaken(world.client.transport, other, before)
    return World(replace(world.here, client=Client(transport))), transport


async def test_a_grant_that_changed_meanwhile_is_changed_again(tmp_path: Path) -> None:
    async with here(tmp_path) as world:
        for name in ("alice", "bob"):
            await world.client.create(DOMAINS.as_dynamic, {"metadata": {"name": name}, "spec": {}})
        spec: Object = {
            "author": "alice", "name": "t", "type": "model", "relativeURI": "t", "dataSource": DEFAULT_SOURCE,
        }  # fmt: skip
        await world.client.create(DOMAIN_DATAS.as_dynamic, {"metadata": {"name": "t"}, "spec": spec}, "alice")
        named = {"domain_id": "alice", "domaindatagrant_id": "g"}
        made = await world.call(
            grants.OPERATIONS, "CreateDomainDataGrant", **named, domaindata_id="t", grant_domain="bob"
        )
        assert made.status.code == 0, made.status.message

        def others() -> Awaitable[object]:
            return world.call(grants.OPERATIONS, "UpdateDomainDataGrant", **named, description={"by": "another"})

        slow, transport = overtaken(world, others)
        answer = await slow.call(grants.OPERATIONS, "UpdateDomainDataGrant", **named, limit={"use_count": 3})
        assert (answer.status.code, answer.status.message, transport.writes) == (0, "success", 2)
        kept: DomainDataGrant = await world.client.get(DOMAIN_DATA_GRANTS, "g", "alice")
        assert (kept.limit.use_count, kept.spec.description) == (3, {"by": "another"})


@pytest.mark.parametrize("gone", [False, True], ids=["changed", "gone"])
async def test_a_source_that_changed_meanwhile_keeps_a_label_that_is_true(tmp_path: Path, gone: bool) -> None:
    async with here(tmp_path) as world:
        named = {"domain_id": "alice", "datasource_id": "s"}
        made = await world.call(
            datasources.OPERATIONS, "CreateDomainDataSource", **named, type="localfs", info={"localfs": {"path": "/d"}}
        )
        assert made.status.code == 0, made.status.message
        database = {"endpoint": "db:3306", "user": "u", "password": "p", "database": "d"}

        def others() -> Awaitable[object]:
            if gone:
                return world.client.delete(DOMAIN_DATA_SOURCES, "s", "alice")
            return world.call(
                datasources.OPERATIONS, "UpdateDomainDataSource", **named, type="mysql", info={"database": database}
            )

        slow, _ = overtaken(world, others)
        answer = await slow.call(datasources.OPERATIONS, "UpdateDomainDataSource", **named, name="mine")
        if gone:
            assert answer.status.code == 11806
            return
        assert answer.status.code == 0, answer.status.message
        kept = await world.client.get(DOMAIN_DATA_SOURCES, "s", "alice")
        assert (kept.spec.name, kept.spec.type) == ("mine", "mysql")
        assert (kept.metadata.labels or {})[labels.KUSCIA_DOMAINDATASOURCE_TYPE] == "mysql"


@pytest.mark.parametrize("method", ["UpdateDomainData", "DeleteDomainData"])
async def test_data_that_is_gone_meanwhile_is_said_to_be_gone(tmp_path: Path, method: str) -> None:
    async with here(tmp_path) as world:
        spec: Object = {
            "author": "alice", "name": "t", "type": "model", "relativeURI": "t", "dataSource": DEFAULT_SOURCE,
        }  # fmt: skip
        for kind, name, content in (
            (DOMAIN_DATAS, "t", spec),
            (DOMAIN_DATA_SOURCES, DEFAULT_SOURCE, {"name": "d", "type": "localfs", "uri": "/d"}),
        ):
            await world.client.create(kind.as_dynamic, {"metadata": {"name": name}, "spec": content}, "alice")
        slow, _ = overtaken(world, lambda: world.client.delete(DOMAIN_DATAS, "t", "alice"))
        answer = await slow.call(domaindata.OPERATIONS, method, domain_id="alice", domaindata_id="t")
        assert (answer.status.code, answer.status.message) == (11506, 'there is no DomainData "t" of alice')


async def test_a_service_that_is_another_domains_meanwhile_is_not_changed(tmp_path: Path) -> None:
    async with here(tmp_path, mode=Mode.MASTER, domain="zeus", namespaces=["alice", "bob"]) as world:
        template = {"name": "t", "spec": {"containers": [{"name": "c", "workingDir": "/"}]}}
        body = {"image": {"name": "i", "tag": "1"}, "deployTemplates": [template]}
        await world.client.create(APP_IMAGES.as_dynamic, {"metadata": {"name": "engine"}, "spec": body})

        async def serve(domain: str) -> None:
            made = await world.call(
                servings.OPERATIONS, "CreateServing", serving_id="s", initiator=domain,
                parties=[{"domain_id": domain, "app_image": "engine"}], serving_input_config=domain,
            )  # fmt: skip
            assert made.status.code == 0, made.status.message

        async def others() -> None:
            await world.call(servings.OPERATIONS, "DeleteServing", serving_id="s")
            await serve("alice")

        await serve("bob")
        looks = itertools.count()
        slow, _ = overtaken(world, others, lambda call: "kusciadeployments/s" in call.path and next(looks) == 1)
        answer = await slow.call(
            servings.OPERATIONS,
            "UpdateServing",
            caller=domain_caller("bob"),
            serving_id="s",
            serving_input_config="mine",
        )
        assert (answer.status.code, answer.status.message) == (11603, "there is no service s")
        kept = await world.call(servings.OPERATIONS, "QueryServing", serving_id="s")
        assert (kept.data.initiator, kept.data.serving_input_config) == ("alice", "alice")
