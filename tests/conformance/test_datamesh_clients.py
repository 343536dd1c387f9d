"""A client nobody here wrote: `pyarrow.flight` with the package `kuscia`, as engines do it, against the real process.

Its own functions where they can be used; where they need pandas, what they do before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from datamesh_kit import World, served, threaded
from google.protobuf.any_pb2 import Any as Box
from kuscia.proto.api.v1alpha1.common_pb2 import DataColumn, FileFormat
from kuscia.proto.api.v1alpha1.datamesh import (
    domaindata_pb2,
    domaindata_pb2_grpc,
    domaindatagrant_pb2,
    domaindatagrant_pb2_grpc,
    domaindatasource_pb2,
    domaindatasource_pb2_grpc,
    flightdm_pb2,
)

from coterie.kuscia.identity.engine_certificates import EnginePair
from kuscia.datamesh import datamanager, dataproxy

pytestmark = pytest.mark.conformance
COLUMNS = [DataColumn(name="id", type="int"), DataColumn(name="name", type="str"), DataColumn(name="x", type="float")]
TEXT = 'id,name,x\n1,ann,0.5\n2,b "b" b,\n3,\u00fc,2.0\n'


class Party:
    """One engine with its connections."""

    def __init__(self, world: World, pair: EnginePair) -> None:
        authority = world.paths.ca_certificate.read_bytes()
        self.flight = world.flight(pair)
        credentials = grpc.ssl_channel_credentials(authority, pair.key, pair.certificate)
        self.channel = grpc.secure_channel(f"localhost:{world.grpc_port}", credentials)
        self.datas = domaindata_pb2_grpc.DomainDataServiceStub(self.channel)
        self.sources = domaindatasource_pb2_grpc.DomainDataSourceServiceStub(self.channel)
        self.grants = domaindatagrant_pb2_grpc.DomainDataGrantServiceStub(self.channel)

    def create(self, name: str, kind: str = "table", file_format: Any = FileFormat.CSV, **more: Any) -> str | None:
        columns = COLUMNS if kind == "table" else ()
        data = domaindata_pb2.DomainData(
            domaindata_id=name, name=name, type=kind, columns=columns, vendor="tests", **more
        )
        made: str | None = datamanager.create_domain_data_in_dp(self.flight, data, file_format)
        return made

    def read(self, name: str, *columns: str) -> pa.Table:
        box = Box()
        box.Pack(flightdm_pb2.CommandDomainDataQuery(domaindata_id=name, columns=columns))
        info = self.flight.get_flight_info(fl.FlightDescriptor.for_command(box.SerializeToString()))
        assert info.endpoints[0].locations[0].uri == b"kuscia://datamesh"
        return self.flight.do_get(info.endpoints[0].ticket).read_all()

    def close(self) -> None:
        self.flight.close()
        self.channel.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with served(tmp_path) as (made, _):
        yield made


async def engine(world: World, work: Callable[[Party], Any], initiator: str = "") -> Any:
    """The work of an engine, in a thread as engines have it: all of it blocks."""
    party = Party(world, await world.engine(initiator, job="j"))

    def whole() -> Any:
        try:
            return work(party)
        finally:
            party.close()

    return await threaded(whole)


async def test_a_table_goes_up_and_comes_down(world: World, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(TEXT)

    def work(party: Party) -> pa.Table:
        assert party.create("people") == "people"
        dataproxy.put_file_to_dp(party.flight, "people", str(tmp_path / "in.csv"), FileFormat.CSV)
        return party.read("people"), party.read("people", "name", "id")

    whole, some = await engine(world, work)
    assert whole.to_pydict() == {"id": [1, 2, 3], "name": ["ann", 'b "b" b', "\u00fc"], "x": [0.5, None, 2.0]}
    assert whole.schema.types == [pa.int64(), pa.string(), pa.float64()]
    assert some.column_names == ["name", "id"]


async def test_a_file_goes_up_and_comes_down(world: World, tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "model.bin").write_bytes(content)

    def work(party: Party) -> None:
        assert party.create("model", "model", FileFormat.BINARY) == "model"
        dataproxy.put_file_to_dp(party.flight, "model", str(tmp_path / "model.bin"), FileFormat.BINARY)
        dataproxy.get_file_from_dp(party.flight, "model", str(tmp_path / "back.bin"), FileFormat.BINARY)

    # Its reader of files wants no column names, so nothing but the bytes counts.
    await engine(world, work)
    assert (tmp_path / "back.bin").read_bytes() == content


async def test_the_catalogue_by_its_stubs(world: World) -> None:
    def work(party: Party) -> None:
        request = domaindata_pb2.CreateDomainDataRequest(domaindata_id="t", name="t", type="table", columns=COLUMNS)
        assert party.datas.CreateDomainData(request, timeout=30).data.domaindata_id == "t"
        update = domaindata_pb2.UpdateDomainDataRequest(domaindata_id="t", name="renamed")
        assert party.datas.UpdateDomainData(update).status.code == 0
        found = party.datas.QueryDomainData(domaindata_pb2.QueryDomainDataRequest(domaindata_id="t")).data
        assert (found.name, found.author, [each.name for each in found.columns]) == (
            "renamed",
            "alice",
            ["id", "name", "x"],
        )
        query = domaindatasource_pb2.QueryDomainDataSourceRequest(datasource_id=found.datasource_id)
        source = party.sources.QueryDomainDataSource(query).data
        assert (source.type, source.access_directly) == ("localfs", True)
        limit = domaindatagrant_pb2.GrantLimit(use_count=1)
        grant = domaindatagrant_pb2.CreateDomainDataGrantRequest(domaindata_id="t", grant_domain="bob", limit=limit)
        name = party.grants.CreateDomainDataGrant(grant).data.domaindatagrant_id
        asked = domaindatagrant_pb2.QueryDomainDataGrantRequest(domaindatagrant_id=name)
        assert party.grants.QueryDomainDataGrant(asked).data.limit.use_count == 1
        assert party.datas.DeleteDomainData(domaindata_pb2.DeleteDomainDataRequest(domaindata_id="t")).status.code == 0

    await engine(world, work)


async def test_a_partners_task_reads_as_often_as_its_grant_says(world: World, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(TEXT)

    def own(party: Party) -> None:
        party.create("people")
        dataproxy.put_file_to_dp(party.flight, "people", str(tmp_path / "in.csv"), FileFormat.CSV)
        limit = domaindatagrant_pb2.GrantLimit(use_count=2)
        request = domaindatagrant_pb2.CreateDomainDataGrantRequest(
            domaindata_id="people", grant_domain="bob", limit=limit
        )
        assert party.grants.CreateDomainDataGrant(request).status.code == 0

    def partner(party: Party) -> int:
        rows: int = party.read("people", "id").num_rows
        return rows

    await engine(world, own)
    ends = await asyncio.gather(*(engine(world, partner, "bob") for _ in range(6)), return_exceptions=True)
    assert sorted(str(type(each).__name__) for each in ends) == ["FlightUnauthorizedError"] * 4 + ["int"] * 2
    with pytest.raises(fl.FlightUnauthorizedError, match='"carol"'):
        await engine(world, partner, "carol")
