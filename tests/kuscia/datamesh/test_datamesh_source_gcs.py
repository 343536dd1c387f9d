"""Google Cloud Storage: the source suite on an emulator (`make gcs`); tokens on a scripted server."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import servers_kit
from aiohttp import web
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from sources_suite import SMALL, ServerSuite, fetch, rows_of, small, store

from coterie.base import pki
from coterie.base.secret import SecretValue
from coterie.kuscia.sources.gcs_objects import GcsClient
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataSource,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
    TableReadOptions,
)
from coterie.kuscia.sources.source_registry import open_source

PROGRAM = Path(__file__).parents[3] / ".tools" / "gcs" / "bin" / "gcp-storage-emulator"
TOKEN = SecretValue("t0ken")

pytestmark = pytest.mark.timeout(300)


def account(key: rsa.RSAPrivateKey, server: str) -> SecretValue:
    text = {
        "client_email": "mesh@shop.example",
        "token_uri": server,
        "private_key": pki.key_pem(key, pkcs1=True).decode(),
    }
    return SecretValue(json.dumps(text))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"endpoint": "ftp://x"}, "must be such as"),
        ({"endpoint": "https://x/path"}, "must be such as"),
        ({"bucket": "a/b"}, "not the name of a bucket"),
        ({"secrets": {}}, "needs secrets.service_account"),
        ({"secrets": {"service_account": SecretValue("{}")}}, "no JSON key"),
        ({"secrets": {"service_account": SecretValue("S3CRET")}}, "no JSON key"),
    ],
)
def test_settings_that_cannot_be_right(change: dict[str, Any], sentence: str) -> None:
    good = SourceInfo(kind="gcs", bucket="box", secrets={"token": TOKEN})
    open_source(good)
    with pytest.raises(SourceError, match=sentence) as caught:
        open_source(replace(good, **change))
    assert "S3CRET" not in str(caught.value)


def test_a_token_server_without_tls(key: rsa.RSAPrivateKey) -> None:
    with pytest.raises(SourceError, match="must be https"):
        GcsClient(
            SourceInfo(kind="gcs", bucket="box", secrets={"service_account": account(key, "http://tokens.example/t")})
        )


class Google:
    """Gives tokens, and takes what they open; uploads go where `session` says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        self.session = ""
        self.calls: list[tuple[str, str, str]] = []
        self.body = b""

    async def tokens(self, request: web.Request) -> web.Response:
        self.asked.append(str((await request.post())["assertion"]))
        return web.json_response({"access_token": "fresh", "expires_in": 3600}, status=self.status)

    async def objects(self, request: web.Request) -> web.Response:
        self.calls.append((request.method, request.path_qs, request.headers.get("Authorization", "")))
        if request.query.get("uploadType") == "resumable":
            return web.Response(headers={"Location": self.session})
        if self.body and request.query.get("alt") == "media":
            return web.Response(body=self.body)  # whatever part was asked for
        return web.json_response({}, status=404)


@pytest.fixture
async def google() -> AsyncIterator[tuple[Google, str]]:
    made, app = Google(), web.Application()
    app.router.add_post("/token", made.tokens)
    app.router.add_route("*", "/{rest:.*}", made.objects)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield made, f"http://{host}:{port}"
    await runner.cleanup()


async def test_a_store_that_takes_no_ranges(google: tuple[Google, str]) -> None:
    """No more is kept than was asked for, and nothing is taken for another part of the object."""
    server, url = google
    server.body = b"abc" * 1_000_000
    client = GcsClient(SourceInfo(kind="gcs", endpoint=url, bucket="box", secrets={"token": TOKEN}))
    await client.open()
    try:
        assert await client.get_range("a", "", 0, 7) == b"abcabca"
        with pytest.raises(SourceError, match="does not give ranges"):
            await client.get_range("a", "", 3, 7)
    finally:
        await client.close()


async def test_a_token_is_fetched_with_the_key_and_kept(google: tuple[Google, str], key: rsa.RSAPrivateKey) -> None:
    server, url = google
    secrets = {"service_account": account(key, f"{url}/token")}
    client = GcsClient(SourceInfo(kind="gcs", endpoint=url, bucket="box", secrets=secrets))
    await client.open()
    try:
        for _ in range(2):
            assert await client.head("a/b c") is None
    finally:
        await client.close()
    [assertion] = server.asked
    signed, _, signature = assertion.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    key.public_key().verify(raw, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    claims = json.loads(base64.urlsafe_b64decode(signed.split(".")[1] + "=="))
    assert (claims["iss"], claims["aud"]) == ("mesh@shop.example", f"{url}/token")
    assert server.calls[0] == ("GET", "/storage/v1/b/box/o/a%2Fb%20c", "Bearer fresh")


async def test_a_token_server_that_refuses(google: tuple[Google, str], key: rsa.RSAPrivateKey) -> None:
    server, url = google
    server.status = 401
    secrets = {"service_account": account(key, f"{url}/token")}
    async with open_source(SourceInfo(kind="gcs", endpoint=url, bucket="box", secrets=secrets)) as source:
        with pytest.raises(SourceUnreachable, match="gives the service account no token"):
            await fetch(source, DataLocation("t.csv"), SMALL)
    assert server.calls == []


async def test_an_upload_that_is_sent_elsewhere_is_not(google: tuple[Google, str]) -> None:
    server, url = google
    server.session = "http://127.0.0.2:1/upload"
    client = GcsClient(SourceInfo(kind="gcs", endpoint=url, bucket="box", secrets={"token": TOKEN}))
    await client.open()
    try:
        with pytest.raises(SourceError, match="names another server"):
            await client.begin("t.csv")
    finally:
        await client.close()


# On the emulator.


@pytest.fixture
def unused_port() -> int:
    return servers_kit.free_port()


@pytest.fixture(scope="module")
def emulator() -> Iterator[SourceInfo]:
    if not PROGRAM.exists():
        pytest.skip("no emulator: run make gcs")
    with servers_kit._folder() as folder:
        port = servers_kit.free_port()
        info = SourceInfo(
            kind="gcs",
            endpoint=f"http://127.0.0.1:{port}",
            bucket="mesh",
            prefix="top/tables",
            secrets={"token": TOKEN},
        )
        command = [
            str(PROGRAM),
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--default-bucket",
            "mesh",
            "-M",
            "-q",
        ]
        with servers_kit._running(command, port, folder, info, dict(os.environ), unprivileged=False):
            yield info


class TestGcs(ServerSuite):
    ending = ".csv"

    @pytest.fixture
    def info(self, emulator: SourceInfo) -> SourceInfo:
        return emulator

    async def check_nothing_left(self, source: DataSource) -> None:
        """Sessions that are not ended are in no list."""

    async def test_wrong_secret_is_refused_and_not_told(self, info: SourceInfo) -> None:
        pytest.skip("the emulator lets everybody in")

    async def test_large_tables_go_in_parts(
        self, source: DataSource, place: DataLocation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("coterie.kuscia.sources.s3.PART", 256 * 1024)
        await store(source, place, *(small(each * 20000, 20000) for each in range(5)))
        assert sorted((await fetch(source, place, SMALL))["id"].to_pylist()) == list(range(100_000))
        with pytest.raises(RuntimeError, match="on purpose"):
            async with source.write(place, SMALL) as sink:
                for each in range(5):
                    await sink.put(small(each * 20000, 20000))
                raise RuntimeError("on purpose")
        assert (await fetch(source, place, SMALL)).num_rows == 100_000

    @pytest.mark.parametrize("uri", ["../other.csv", "a/../../b.csv", "/a.csv", ""])
    async def test_names_stay_below_the_prefix(self, source: DataSource, uri: str) -> None:
        with pytest.raises(SourceForbidden):
            await fetch(source, DataLocation(uri), SMALL)

    @pytest.mark.parametrize("ending", ["parquet", "orc", "arrow"])
    async def test_formats_that_are_read_in_ranges(self, source: DataSource, ending: str) -> None:
        place = DataLocation(f"ranges/table.{ending}")
        await store(source, place, small(0, 1000))
        assert rows_of(await fetch(source, place, SMALL, TableReadOptions(columns=("name",))))[:1] == [("n0",)]
