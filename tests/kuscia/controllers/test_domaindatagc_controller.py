"""Old results of jobs are forgotten; what people registered stays."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from domain_world import mesh

from coterie.base.clock import VirtualClock
from coterie.kube.api.types.core import NAMESPACES
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import DOMAIN_DATAS
from coterie.kuscia.controllers.domaindatagc import controller
from coterie.kuscia.controllers.domaindatagc.plan import Settings, expired
from coterie.node import config
from coterie.node.parts import controllers

NOW = datetime(2026, 2, 1, tzinfo=UTC)
DAY = 86400.0
OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-31T12:00:00Z"
DATA = DOMAIN_DATAS.as_dynamic


def body(name: str, vendor: str = "manual", job: str = "", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "DomainData",
        "metadata": {
            "name": name,
            "namespace": "alice",
            "labels": {labels.KUSCIA_DOMAINDATA_VENDOR: vendor, **more.pop("labels", {})},
            "annotations": {labels.COTERIE_MADE_BY: job} if job else {},
            **more,
        },
        "spec": {
            "author": "alice", "name": name, "type": "table", "dataSource": "s", "relativeURI": name, "vendor": vendor,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "removed"),
    [
        pytest.param(body("a", "secretflow", creationTimestamp=OLD), True, id="vendor of the specification"),
        pytest.param(body("a", "coterie", "job-1", creationTimestamp=OLD), True, id="made through the data mesh"),
        pytest.param(body("a", "secretflow", creationTimestamp=NEW), False, id="too young"),
        pytest.param(body("a", creationTimestamp=OLD), False, id="registered by hand"),
        pytest.param(body("a", "", creationTimestamp=OLD), False, id="vendor unknown"),
        pytest.param(body("a", "secretflow", "running", creationTimestamp=OLD), False, id="its job runs"),
        pytest.param(body("a", "grant", labels={labels.KUSCIA_OWNER_REFERENCES: "a"}, creationTimestamp=OLD), False, id="copy of granted data"),
        pytest.param(body("a", "secretflow", labels={labels.KUSCIA_OWNER_REFERENCES: "a"}, creationTimestamp=OLD), False, id="copy from a partner"),
        pytest.param(body("a", "secretflow", creationTimestamp=OLD, deletionTimestamp=NEW, finalizers=["x/y"]), False, id="already going"),
        pytest.param(body("a", "secretflow"), False, id="age unknown"),
    ],
)  # fmt: skip
def test_what_is_removed(data: dict[str, Any], removed: bool) -> None:
    typed = DOMAIN_DATAS.decode(DATA.encode(data))
    assert (expired([typed], {"running"}, NOW, 7 * DAY) == [typed]) is removed


def test_the_oldest_first() -> None:
    datas = [
        DOMAIN_DATAS.decode(DATA.encode(body(name, "secretflow", creationTimestamp=made)))
        for name, made in (("b", "2026-01-02T00:00:00Z"), ("c", OLD), ("a", OLD))
    ]
    assert [each.metadata.name for each in expired(datas, (), NOW, DAY)] == ["a", "c", "b"]


async def test_results_of_jobs_go_when_their_time_is_over() -> None:
    kept = Settings(7 * DAY, batch=1)
    async with mesh([partial(_make, settings=kept)]) as world:
        await world.client.create(NAMESPACES.as_dynamic, {"metadata": {"name": "alice"}})
        for name, vendor, job in (("hand", "manual", ""), ("result", "secretflow", ""), ("table", "coterie", "gone")):
            await world.client.create(DATA, body(name, vendor, job))
        await world.settle(kept.period)
        assert len(await world.list(DATA, "alice")) == 3
        await world.clock.advance(7 * DAY)
        await world.settle(2 * kept.period)
        assert [each["metadata"]["name"] for each in await world.list(DATA, "alice")] == ["hand"]


def _make(client: Client, informers: Informers, *, settings: Settings, clock: VirtualClock, **_: Any) -> Any:
    return controller.make(client, informers, settings=settings, clock=clock)


@pytest.mark.parametrize(("block", "runs"), [({}, False), ({"enable": True, "durationHours": 24}, True)])
def test_it_runs_where_the_configuration_says_so(tmp_path: Path, block: dict[str, Any], runs: bool) -> None:
    document = {"mode": "master", "domainID": "alice", "garbageCollection": {"kusciaDomainDataGC": block}}
    settings = config.parse(document, tmp_path, lowest_port=0)
    client = Client(object())  # type: ignore[arg-type]
    parts = controllers.controllers(settings, client, Informers(client), "", VirtualClock())
    found = [part for part in parts if isinstance(part, controller.DomainDataCollector)]
    assert bool(found) is runs
    if runs:
        assert found[0]._settings.retention == 24 * 3600
