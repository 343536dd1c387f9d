"""A domain's tables as its owner works with them: the catalogue through the API, the rows through the very sources that
the data mesh reads, opened with the domain's own key. So this works where the domain's files are, and nowhere else.

async with desk(node, nodes) as desk:
    await desk.register("customers", "customers.csv")
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.pki import PkiError
from coterie.cli import node_health
from coterie.cli.app import CliError
from coterie.cli.error_messages import cli_errors
from coterie.kube.api.errors import AlreadyExists
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.data import (
    DEFAULT_SOURCE,
    DOMAIN_DATA_GRANTS,
    DOMAIN_DATA_SOURCES,
    DomainData,
    DomainDataGrant,
)
from coterie.kuscia.datamesh import columns
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.errors import MeshError
from coterie.kuscia.identity import domain_identity
from coterie.kuscia.sources import sealed_sources
from coterie.kuscia.sources.catalogue_entries import FILE_SOURCES, file_format
from coterie.kuscia.sources.data_records import DataRecords, foreign_fault
from coterie.kuscia.sources.formats import by_name
from coterie.kuscia.sources.protocol import DataLocation, FileFormat, SourceError, TableReadOptions
from coterie.kuscia.sources.source_creation import source_object
from coterie.kuscia.sources.source_registry import open_source
from coterie.kuscia.sources.types import kuscia_of
from coterie.node.config import NodeSettings


class DataAccess:
    def __init__(self, node: NodeSettings, client: Client, catalogue: DataCatalogue) -> None:
        self.node = node
        self.domain = node.domain
        self.catalogue = catalogue
        self._client = client

    async def tables(self) -> Sequence[DomainData]:
        return await self.catalogue.all_data()

    async def grants(self, data: str = "") -> list[DomainDataGrant]:
        """Those that the domain gave and those it was given."""
        found = (await self._client.list(DOMAIN_DATA_GRANTS, self.domain)).items
        return [each for each in found if not data or each.spec.domain_data_id == data]

    async def revoke(self, name: str) -> None:
        await self._client.delete(DOMAIN_DATA_GRANTS.as_dynamic, name, self.domain)

    async def register(self, name: str, uri: str, source: str = DEFAULT_SOURCE) -> Object:
        """A table that lies in a source already, with the schema that is guessed from it. What was made of it."""
        info = await self.catalogue.source_info(source)
        kind = by_name(FileFormat.UNKNOWN, uri) if info.kind in FILE_SOURCES else FileFormat.UNKNOWN
        async with open_source(info) as opened:
            schema = await opened.schema(DataLocation(uri, kind))
        spec: Object = {
            "name": name,
            "type": "table",
            "relativeURI": uri,
            "dataSource": source,
            "columns": [_column(each) for each in schema],
            "fileFormat": kind.name.lower() if kind else "",
        }
        before = await self.catalogue.find_data(name)
        if before is not None and before.spec.author != self.domain:
            raise CliError(
                f'Error: "{name}" is an entry of {before.spec.author}, which granted it to {self.domain}; choose another '
                f"id with --id, or, if the grant is gone, remove it first: coterie delete domaindata {name} -n {self.domain}"
            )
        record = await DataRecords(self._client, self.domain).find(sealed_sources.location(info, uri))
        if fault := foreign_fault(record, self.domain, uri):
            raise CliError(f"Error: {fault}")
        if before is None:
            await self.catalogue.create_data(name, spec, {})
        else:
            await self.catalogue.update_data(before, spec)
        return spec

    async def put_source(self, name: str, kind: str, settings: Object) -> bool:
        """A data source with these settings, in place of one of that name. Whether there was one."""
        open_source(sealed_sources.settings_info(kind, settings))  # what cannot be right is refused before it is stored
        obj = await asyncio.to_thread(source_object, self.domain, name, kind, settings, self.catalogue.public_key)
        try:
            await self._client.create(DOMAIN_DATA_SOURCES.as_dynamic, obj, self.domain)
        except AlreadyExists:
            spec = {**obj["spec"], "infoKey": None}
            patch = {"metadata": {"labels": obj["metadata"]["labels"]}, "spec": spec}
            await self._client.patch(DOMAIN_DATA_SOURCES.as_dynamic, name, self.domain, patch)
            return True
        return False

    async def head(self, data: DomainData, rows: int) -> pa.Table:
        """The first rows, in the declared types."""
        if data.spec.author != self.domain:
            raise CliError(
                f"Error: {data.metadata.name} lies at its owner {data.spec.author}; only its engines read it"
            )
        schema = columns.schema_of(data.spec.columns or ())
        place = DataLocation(data.spec.relative_uri, file_format(data.spec.file_format), "", data.spec.attributes or {})
        kept: list[pa.RecordBatch] = []
        async with (
            open_source(await self.catalogue.source_info(data.spec.data_source)) as source,
            source.read(place, schema, TableReadOptions(batch_rows=max(rows, 1))) as batches,
        ):
            async for batch in batches:
                kept.append(batch.slice(0, rows - sum(each.num_rows for each in kept)))
                if sum(each.num_rows for each in kept) >= rows:
                    break
        return pa.Table.from_batches(kept, schema)


@asynccontextmanager
async def open_data_access(node: NodeSettings, nodes: Sequence[NodeSettings]) -> AsyncIterator[DataAccess]:
    """Failures inside are raised as `CliError`."""
    plane = node_health.plane_of(node, nodes)
    if plane is None:
        raise CliError(f"Error: the master of {node.domain} is not on this machine; do this where its files are")
    try:
        own = domain_identity.ensure(node.paths, node.domain, None, SYSTEM_CLOCK.now())
        with cli_errors():
            async with node_health.client_of(plane) as client:
                yield DataAccess(node, client, DataCatalogue(client, own))
    except PkiError as problem:
        raise CliError(f"Error: {problem}") from problem
    except MeshError as problem:
        raise CliError(f"Error: {problem}") from problem
    except SourceError as problem:
        raise CliError(f"Error: {problem}") from problem


def copy_into(file: Path, directory: Path) -> str:
    """Where in the domain's own data directory a file lies; one from elsewhere is copied there, whole or not at all."""
    inside, own = file.resolve(), directory.resolve()
    if inside.is_relative_to(own):
        return str(inside.relative_to(own))
    target = own / file.name
    if target.exists():
        raise CliError(f"Error: {target} exists already; remove it, or give your file another name")
    own.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=own, prefix=".coterie-")
    try:
        os.close(handle)
        shutil.copyfile(inside, name)
        os.link(name, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
    return file.name


def cells(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as they are shown."""
    return [tuple("NULL" if value is None else str(value) for value in row.values()) for row in table.to_pylist()]


def _column(field: pa.Field) -> Object:
    out: Object = {"name": field.name, "type": kuscia_of(field.type)}
    return out if field.nullable else {**out, "notNullable": True}
