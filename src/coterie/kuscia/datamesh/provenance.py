"""Who made a table, as the data mesh itself recorded it (`kuscia/sources/data_records.py`), for those that decide."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import structs

from coterie.kube.api.errors import ApiError
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.data import DomainData, DomainDataRecord, DomainDataRecordSpec
from coterie.kuscia.datamesh.authentication import EngineCaller, unavailable
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError
from coterie.kuscia.sources import sealed_sources
from coterie.kuscia.sources.data_records import DataRecords, fingerprint
from coterie.kuscia.sources.protocol import SourceInfo


class DataProvenance:
    """Raises MeshError when the API cannot be asked."""

    def __init__(self, client: Client, catalogue: DataCatalogue) -> None:
        self._catalogue = catalogue
        self._records = DataRecords(client, catalogue.domain)

    async def of(self, data: DomainData) -> DomainDataRecordSpec | None:
        """The record of just this entry. None: nothing is known of it, so it is the domain's own; also where something
        else lies there now than was written."""
        try:
            info = await self._catalogue.source_info(data.spec.data_source)
        except MeshError as problem:
            if problem.kind is GrpcStatusName.NOT_FOUND:
                return None
            raise
        location = sealed_sources.location(info, data.spec.relative_uri)
        found = await self.at(location)
        if found is None or found.spec.domain_data_id != data.metadata.name:
            return None
        spec = found.spec
        if spec.written_by and spec.fingerprint != await asyncio.to_thread(fingerprint, info, location):
            return structs.replace(spec, written_by="")
        return spec

    async def at(self, location: Sequence[str]) -> DomainDataRecord | None:
        with _mesh_errors():
            return await self._records.find(location)

    async def all(self) -> Sequence[DomainDataRecord]:
        with _mesh_errors():
            return await self._records.all()

    async def registered(self, caller: EngineCaller, name: str, info: SourceInfo, uri: str) -> None:
        with _mesh_errors():
            await self._records.put(_record(caller, name, sealed_sources.location(info, uri)))

    async def written(self, caller: EngineCaller, data: DomainData) -> None:
        info = await self._catalogue.source_info(data.spec.data_source)
        location = sealed_sources.location(info, data.spec.relative_uri)
        files = await asyncio.to_thread(fingerprint, info, location)
        made = structs.replace(
            _record(caller, data.metadata.name, location), written_by=caller.job or caller.pod, fingerprint=files
        )
        with _mesh_errors():
            await self._records.put(made)


def _record(caller: EngineCaller, name: str, location: tuple[str, ...]) -> DomainDataRecordSpec:
    return DomainDataRecordSpec(
        domain_data_id=name,
        location=location,
        initiator=caller.initiator,
        job=caller.job,
        flow=caller.flow,
        task=caller.task,
    )


@contextmanager
def _mesh_errors() -> Iterator[None]:
    try:
        yield
    except (ApiError, TransportError) as problem:
        raise unavailable(problem) from problem


# Pure.


def made_by(caller: EngineCaller, record: DomainDataRecordSpec | None) -> bool:
    """The caller's own job, or its flow, wrote it through a data mesh."""
    if record is None or not record.written_by or record.initiator != caller.initiator:
        return False
    return record.written_by == caller.job or bool(caller.flow and record.flow == caller.flow)


def registered_by(caller: EngineCaller, record: DomainDataRecordSpec | None) -> bool:
    """The caller's own job, or its flow, told us of it: what is known of it is what they said, also where nothing of it
    was written here, as of a report, or of a result that another party has."""
    if record is None or record.initiator != caller.initiator:
        return False
    return any(wanted and found == wanted for wanted, found in ((caller.job, record.job), (caller.flow, record.flow)))
