"""Azure Blob Storage: the source suite on Azurite (`make azurite`), and signatures without it."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import servers_kit
from sources_suite import SMALL, ServerSuite, fetch, rows_of, small, store

from coterie.base.secret import SecretValue
from coterie.kuscia.sources.azure_blobs import AzureClient, string_to_sign
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataSource,
    SourceError,
    SourceForbidden,
    SourceInfo,
    TableReadOptions,
)
from coterie.kuscia.sources.source_registry import open_source

PROGRAM = Path(__file__).parents[3] / ".tools" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
ACCOUNT = "mesh"
KEY = base64.b64encode(b"k" * 64).decode()

pytestmark = pytest.mark.timeout(300)


# Without a server.


def test_what_is_signed() -> None:
    headers = {"x-ms-version": "2021-12-02", "x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "range": "bytes=0-9"}
    query = {"restype": "container", "comp": "list"}
    assert string_to_sign("GET", "acc", "/box", query, headers, 0) == (
        "GET\n\n\n\n\n\n\n\n\n\n\nbytes=0-9\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2021-12-02\n"
        "/acc/box\ncomp:list\nrestype:container"
    )
    assert "\n12\n" in string_to_sign("PUT", "acc", "/box/a", {}, headers, 12)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"endpoint": "ftp://x"}, "needs an endpoint"),
        ({"endpoint": "https://user@x"}, "needs an endpoint"),
        ({"bucket": "a/b"}, "not the name of a bucket"),
        ({"access_key_secret": SecretValue("not base64!")}, "in base64"),
        ({"access_key_secret": None}, "needs access_key_id"),
        ({"access_key_id": ""}, "needs access_key_id"),
        ({"secrets": {"sas_token": SecretValue("sv=1&sig=x")}}, "needs access_key_id"),
    ],
)
def test_settings_that_cannot_be_right(change: dict[str, object], sentence: str) -> None:
    good = SourceInfo(
        kind="azure", endpoint="https://x", bucket="box", access_key_id=ACCOUNT, access_key_secret=SecretValue(KEY)
    )
    AzureClient(good)
    with pytest.raises(SourceError, match=sentence):
        open_source(replace(good, **change))  # type: ignore[arg-type]


# On Azurite.


@pytest.fixture
def unused_port() -> int:
    return servers_kit.free_port()


@pytest.fixture(scope="module")
def azurite() -> Iterator[SourceInfo]:
    if not PROGRAM.exists() or shutil.which("node") is None:
        pytest.skip("no Azurite: run make azurite")
    with servers_kit._folder() as folder:
        port = servers_kit.free_port()
        info = SourceInfo(
            kind="azure",
            endpoint=f"http://127.0.0.1:{port}/{ACCOUNT}",
            bucket="mesh",
            prefix="top/tables",
            access_key_id=ACCOUNT,
            access_key_secret=SecretValue(KEY),
        )
        command = [
            str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent",
            "--disableTelemetry",
        ]  # fmt: skip
        env = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
        with servers_kit._running(command, port, folder, info, env, unprivileged=False) as server:

            async def container() -> None:
                client = AzureClient(info)
                await client.open()
                async with client.request("PUT", "", {"restype": "container"}):
                    pass
                await client.close()

            asyncio.run(container())
            assert isinstance(server.process, subprocess.Popen)
            yield info


class TestAzure(ServerSuite):
    ending = ".csv"
    wrong_secret = base64.b64encode(b"w" * 64).decode()

    @pytest.fixture
    def info(self, azurite: SourceInfo) -> SourceInfo:
        return azurite

    async def check_nothing_left(self, source: DataSource) -> None:
        """Blocks that are not committed are in no list."""

    async def test_large_tables_go_in_blocks(
        self, source: DataSource, place: DataLocation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("coterie.kuscia.sources.s3.PART", 64 * 1024)
        await store(source, place, *(small(each * 5000, 5000) for each in range(10)))
        assert sorted((await fetch(source, place, SMALL))["id"].to_pylist()) == list(range(50_000))
        with pytest.raises(RuntimeError, match="on purpose"):
            async with source.write(place, SMALL) as sink:
                for each in range(10):
                    await sink.put(small(each * 5000, 5000))
                raise RuntimeError("on purpose")
        assert (await fetch(source, place, SMALL)).num_rows == 50_000

    @pytest.mark.parametrize("uri", ["../other.csv", "a/../../b.csv", "/a.csv", ""])
    async def test_names_stay_below_the_prefix(self, source: DataSource, uri: str) -> None:
        with pytest.raises(SourceForbidden):
            await fetch(source, DataLocation(uri), SMALL)

    @pytest.mark.parametrize("ending", ["parquet", "orc", "arrow"])
    async def test_formats_that_are_read_in_ranges(self, source: DataSource, ending: str) -> None:
        place = DataLocation(f"ranges/table.{ending}")
        await store(source, place, small(0, 1000))
        assert rows_of(await fetch(source, place, SMALL, TableReadOptions(columns=("name",))))[:1] == [("n0",)]

    async def test_a_container_that_is_not_there(self, info: SourceInfo) -> None:
        async with open_source(replace(info, bucket="nobox")) as source:
            with pytest.raises(SourceError, match="no such bucket"):
                await fetch(source, DataLocation("t.csv"), SMALL)
