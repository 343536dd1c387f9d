"""External data proxies: somebody else's Flight server opens a source in the data mesh's place."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from datamesh_kit import PEOPLE, World, api_world, command, reading, threaded, writing

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api.grants import columns_limit
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS
from coterie.kuscia.datamesh import messages
from coterie.kuscia.datamesh.server import DataMesh
from coterie.kuscia.datamesh.settings import DataProxy, MeshSettings, proxies_of, proxies_text
from coterie.kuscia.sources.source_creation import ensure_default_source

ODPS = {"endpoint": "http://odps.example", "project": "shop", "access_key_id": "AK", "access_key_secret": "S3CRET"}
PROBLEMS = (fl.FlightError, pa.ArrowException)


class Proxy(fl.FlightServerBase):  # type: ignore[misc]
    """Keeps what it was asked; serves one table whatever the columns that it is asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__("grpc+tls://127.0.0.1:0" if options else "grpc://127.0.0.1:0", **options)
        self.asked: list[Any] = []
        self.rows = PEOPLE
        self.extra_parts = 0
        self.problem: Exception | None = None
        self.gate: threading.Event | None = None
        self.written: pa.Table | None = None

    def get_flight_info(self, context: Any, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        name, body = messages.unpacked(descriptor.command)
        self.asked.append(messages.mesh(name).FromString(body))
        if self.problem is not None:
            raise self.problem
        # A location that must never be called.
        ends = [fl.FlightEndpoint(f"t{each}", ["grpc://127.0.0.1:1"]) for each in range(1 + self.extra_parts)]
        return fl.FlightInfo(self.rows.schema, descriptor, ends, -1, -1)

    def do_get(self, context: Any, ticket: fl.Ticket) -> fl.RecordBatchStream:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from self.rows.to_batches()
            if self.gate is not None:
                self.gate.wait(60)
                yield from self.rows.to_batches()

        return fl.GeneratorStream(self.rows.schema, batches())

    def do_put(self, context: Any, descriptor: fl.FlightDescriptor, reader: Any, writer: Any) -> None:
        assert descriptor.command == b"t0"
        self.written = reader.read_all()


@contextmanager
def running(proxy: Proxy) -> Iterator[Proxy]:
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        if proxy.gate is not None:
            proxy.gate.set()
        proxy.shutdown()
        thread.join(60)


@asynccontextmanager
async def mesh(directory: Path, proxy: DataProxy) -> AsyncIterator[World]:
    async with api_world(directory) as made:
        settings = MeshSettings(
            made.domain, made.paths, http_port=0, grpc_port=0, recheck_seconds=0.05, proxies=(proxy,)
        )
        made.mesh = DataMesh(settings, made.client, made.identity, made.shelf.open, SYSTEM_CLOCK, run=directory)
        await ensure_default_source(made.client, made.domain, made.paths.data, made.identity.key.public_key())
        await made.source("warehouse", "odps", ODPS)
        await made.table("people", dataSource="warehouse", relativeURI="people", fileFormat="unknown")
        async with made.mesh:
            made.grpc_port = made.mesh.grpc_port
            yield made


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with running(Proxy()) as made:
        yield made


@pytest.fixture
async def alice(tmp_path: Path, proxy: Proxy) -> AsyncIterator[World]:
    async with mesh(tmp_path, DataProxy(f"127.0.0.1:{proxy.port}", ("odps", "hive"))) as made:
        yield made


async def test_reads_go_to_the_proxy_with_the_settings_of_the_source(alice: World, proxy: Proxy) -> None:
    proxy.extra_parts = 1
    got = await reading(alice, await alice.engine(), "people", ["salary", "id"])
    assert got.column_names == ["salary", "id"] and got.num_rows == 6
    asked = proxy.asked[-1]
    assert (asked.query.domaindata_id, list(asked.query.columns)) == ("people", ["salary", "id"])
    assert (asked.domaindata.relative_uri, asked.domaindata.datasource_id) == ("people", "warehouse")
    assert (asked.datasource.type, asked.datasource.info.odps.project) == ("odps", "shop")
    assert asked.datasource.info.odps.access_key_secret == "S3CRET"


async def test_the_partition_goes_along(alice: World, proxy: Proxy) -> None:
    query = command("CommandDomainDataQuery", domaindata_id="people", partition_spec="age=30")
    with alice.flight(await alice.engine()) as client:
        info = await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))
        assert info.endpoints[0].locations[0].uri == b"kuscia://datamesh"
        await threaded(lambda: client.do_get(info.endpoints[0].ticket).read_all())
    assert proxy.asked[-1].query.partition_spec == "age=30"
    assert dict(proxy.asked[-1].domaindata.attributes)["partition_spec"] == "age=30"


@pytest.mark.parametrize("value", ["30 OR salary>1", "30 or salary", "30' OR '1'='1", "30;x", "30)", "(1)", "30=30"])
async def test_a_partition_is_no_condition(alice: World, proxy: Proxy, value: str) -> None:
    """A partner that may choose rows by one column must not by another."""
    await alice.grant("to-bob", "people", "bob", inputConfig=columns_limit(["age"]))
    query = command("CommandDomainDataQuery", domaindata_id="people", columns=["age"], partition_spec=f"age={value}")
    flight = alice.flight(await alice.engine("bob"))
    with flight as client, pytest.raises(pa.ArrowException, match="not sent to a data proxy"):
        info = await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))
        await threaded(lambda: client.do_get(info.endpoints[0].ticket).read_all())
    assert proxy.asked == []


async def test_a_partition_is_sent_as_it_was_understood(alice: World, proxy: Proxy) -> None:
    query = command("CommandDomainDataQuery", domaindata_id="people", partition_spec=" age='30'/id=2024-01-01 00:00:00")
    with alice.flight(await alice.engine()) as client:
        info = await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))
        await threaded(lambda: client.do_get(info.endpoints[0].ticket).read_all())
    assert proxy.asked[-1].query.partition_spec == "age=30,id=2024-01-01 00:00:00"


async def test_a_partner_is_not_let_through_without_a_grant(alice: World, proxy: Proxy) -> None:
    bob = await alice.engine("bob")
    with pytest.raises(fl.FlightUnauthorizedError, match="no grant"):
        await reading(alice, bob, "people")
    await alice.grant("to-bob", "people", "bob", inputConfig=columns_limit(["id"]), useCount=1)
    with pytest.raises(fl.FlightUnauthorizedError, match="does not give column"):
        await reading(alice, bob, "people")
    assert proxy.asked == []
    # The proxy sends all columns whatever it is asked for; only the granted one goes on.
    assert (await reading(alice, bob, "people", ["id"])).to_pydict() == {"id": [1, 2, 3]}
    assert len((await alice.the_grant("to-bob")).uses) == 1
    with pytest.raises(fl.FlightUnauthorizedError, match="was used"):
        await reading(alice, bob, "people", ["id"])


async def test_a_grant_that_ends_stops_the_stream(alice: World, proxy: Proxy) -> None:
    proxy.gate = threading.Event()
    await alice.grant("to-bob", "people", "bob")
    with alice.flight(await alice.engine("bob")) as client:
        query = command("CommandDomainDataQuery", domaindata_id="people")
        info = await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))
        reader = await threaded(client.do_get, info.endpoints[0].ticket)
        assert (await threaded(reader.read_chunk)).data.num_rows == 3
        await alice.client.delete(DOMAIN_DATA_GRANTS, "to-bob", alice.domain)
        with pytest.raises(fl.FlightUnauthorizedError, match="was revoked"):
            await threaded(reader.read_all)


async def test_writes_go_to_the_proxy(alice: World, proxy: Proxy) -> None:
    await writing(alice, await alice.engine(), "people", PEOPLE)
    assert proxy.written is not None and proxy.written.equals(PEOPLE)
    assert proxy.asked[-1].update.domaindata_id == "people"
    # A partner's task cannot know whether a place behind a proxy is free, so it has none there.
    answer = await alice.call(
        await alice.engine("bob"), "CreateDomainData", domaindata_id="mine", name="mine", type="table",
        datasource_id="warehouse", relative_uri="mine", columns=[{"name": "id", "type": "int64"}],
    )  # fmt: skip
    assert answer.status.code and "choose another source" in answer.status.message


async def test_sql_of_the_domain_itself_goes_to_the_proxy(alice: World, proxy: Proxy) -> None:
    text = "SELECT TRANSFORM(id) USING 'x' FROM people"
    query = command("CommandDataSourceSqlQuery", datasource_id="warehouse", sql=text)
    with alice.flight(await alice.engine()) as client:
        info = await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))
        got = await threaded(lambda: client.do_get(info.endpoints[0].ticket).read_all())
    assert got.equals(PEOPLE)
    assert (proxy.asked[-1].query.sql, proxy.asked[-1].datasource.datasource_id) == (text, "warehouse")
    await alice.grant("to-bob", "people", "bob")
    before = len(proxy.asked)
    with (
        alice.flight(await alice.engine("bob")) as client,
        pytest.raises(fl.FlightUnauthorizedError, match="grants cannot be checked"),
    ):
        await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))
    assert len(proxy.asked) == before


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (fl.FlightUnavailableError("S3CRET"), "does not answer"),
        (fl.FlightUnauthenticatedError("S3CRET"), "does not let the data mesh in"),
        (fl.FlightUnauthorizedError("S3CRET"), "does not let the data mesh in"),
        (KeyError("S3CRET"), "finds no such table"),
        (pa.ArrowInvalid("S3CRET"), "refused .INVALID_ARGUMENT.; its log says why"),
        (NotImplementedError("S3CRET"), "does not know this request"),
        (fl.FlightInternalError("S3CRET"), "refused .INTERNAL."),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
async def test_errors_are_translated_and_their_texts_stay_there(
    alice: World, proxy: Proxy, problem: Exception, said: str
) -> None:
    proxy.problem = problem
    with pytest.raises(PROBLEMS, match=said) as caught:
        await reading(alice, await alice.engine(), "people")
    assert "S3CRET" not in str(caught.value)


async def test_a_proxy_that_is_away(tmp_path: Path) -> None:
    async with mesh(tmp_path, DataProxy("127.0.0.1:9", ("odps",))) as alice:
        with pytest.raises(PROBLEMS, match="does not answer"):
            await reading(alice, await alice.engine(), "people")


async def test_with_tls_both_sides_show_certificates(tmp_path: Path) -> None:
    now = SYSTEM_CLOCK.now()
    authority = pki.self_signed_ca("proxies", pki.new_key(), now=now)
    files = {"ca": tmp_path / "ca.crt", "cert": tmp_path / "c.crt", "key": tmp_path / "c.key"}
    server, client = (pki.new_key() for _ in range(2))
    shown = pki.issue_server(authority, "proxy", server.public_key(), names=("127.0.0.1",), now=now)
    ours = pki.issue_client(authority, "mesh", client.public_key(), now=now)
    files["ca"].write_bytes(pki.certificate_pem(authority.certificate))
    files["cert"].write_bytes(pki.certificate_pem(ours))
    files["key"].write_bytes(pki.key_pem(client))
    options = {
        "tls_certificates": [(pki.certificate_pem(shown), pki.key_pem(server))],
        "verify_client": True,
        "root_certificates": files["ca"].read_bytes(),
    }
    with running(Proxy(**options)) as proxy:
        settings = DataProxy(
            f"127.0.0.1:{proxy.port}", ("odps",), *(str(files[each]) for each in ("ca", "cert", "key")), secure=True
        )
        (tmp_path / "one").mkdir()
        async with mesh(tmp_path / "one", settings) as alice:
            assert (await reading(alice, await alice.engine(), "people")).num_rows == 3
        for at, wrong in enumerate((replace(settings, cert_file="", key_file=""), replace(settings, ca_file=""))):
            (tmp_path / f"wrong{at}").mkdir()
            async with mesh(tmp_path / f"wrong{at}", wrong) as alice:
                with pytest.raises(PROBLEMS, match="does not answer"):
                    await reading(alice, await alice.engine(), "people")


def test_settings_pass_to_the_child() -> None:
    given = (DataProxy("a:1", ("odps",), "/ca", "/c", "/k", secure=True), DataProxy("b:2", ("hive", "dameng")))
    assert proxies_of(proxies_text(given)) == given
