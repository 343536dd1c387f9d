"""The process that serves: asleep without engines, there for the first one, back after its death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest
from datamesh_kit import reading, served, writing

from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES
from coterie.kuscia.datamesh.process import allowed

PATIENCE = 50.0


async def until(question: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = question()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.02)


async def test_nothing_runs_without_engines_but_the_default_source_is_there(tmp_path: Path) -> None:
    async with served(tmp_path) as (world, made):

        async def there() -> bool:
            return bool((await world.client.list(DOMAIN_DATA_SOURCES, "alice")).items)

        await until(there)
        assert made.pid is None


async def test_who_comes_before_it_serves_waits_and_is_served(tmp_path: Path) -> None:
    async with served(tmp_path) as (world, made):
        pair = await world.engine(labelled=False)
        assert made.pid is None
        out = pa.table({"id": pa.array([1, 2], pa.int64())})
        columns = [{"name": "id", "type": "int64"}]
        answer = await world.call(
            pair, "CreateDomainData", domaindata_id="out", name="o", type="table", columns=columns, file_format=1
        )
        assert (answer.status.code, answer.status.message) == (0, "success")
        await writing(world, pair, "out", out)
        assert (await reading(world, pair, "out")).equals(out)
        assert (world.paths.data / "out").read_text().splitlines() == ["id", "1", "2"]


async def test_it_starts_with_the_first_engine_comes_back_and_sleeps_again(tmp_path: Path) -> None:
    async with served(tmp_path, idle=0.2) as (world, made):
        pair = await world.engine()
        await until(lambda: made.pid is not None)
        assert (await world.call(pair, "QueryDomainData", domaindata_id="x")).status.code == 12201
        before = made.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda: made.pid not in (None, before))
        assert (await world.call(pair, "QueryDomainData", domaindata_id="x")).status.code == 12201
        await world.client.patch_status(PODS, "task-1-0", "alice", {"status": {"phase": "Succeeded"}})
        await until(lambda: made.pid is None)


_OWN = "/apis/kuscia.secretflow/v1alpha1/namespaces/alice"


@pytest.mark.parametrize(
    ("method", "path", "query", "may"),
    [
        ("GET", f"{_OWN}/domaindatas", "limit=500", True),
        ("POST", f"{_OWN}/domaindatas", "", True),
        ("PUT", f"{_OWN}/domaindatagrants/g/status", "", True),
        ("GET", "/api/v1/namespaces/alice/pods/p", "", True),
        ("GET", "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciajobs/j", "", True),
        ("GET", f"{_OWN}/domaindatas", "watch=true", False),
        ("GET", "/api/v1/namespaces/alice/pods", "", False),
        ("GET", "/api/v1/namespaces/alice/pods/p/exec", "", False),
        ("DELETE", "/api/v1/namespaces/alice/pods/p", "", False),
        ("GET", "/api/v1/namespaces/alice/secrets/s", "", False),
        ("GET", "/api/v1/namespaces/bob/pods/p", "", False),
        ("POST", "/apis/kuscia.secretflow/v1alpha1/namespaces/bob/domaindatas", "", False),
        ("POST", "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciajobs/j", "", False),
        ("GET", f"{_OWN}/domaindatas/../../../secrets", "", False),
        ("GET", f"{_OWN}/domainroutes", "", False),
    ],
)  # fmt: skip
def test_the_process_reaches_no_more_of_the_api_than_it_needs(method: str, path: str, query: str, may: bool) -> None:
    assert allowed(method, path, query, "alice") is may
