"""SQL of engines on a data source: what counts is the columns that a query reads, of every table that it names.

    CommandDataSourceSqlQuery ──parse──> tables ──DomainData of this source──> columns ──permits──> statement ──describe──> schema

A task of the domain itself may query every table of the source, as it may read all of the domain's data. Everybody else (tasks that a
partner began, actors of functions) queries tables that are DomainData of the source, each under the same rules as a read of these
columns: a grant, and one use of it, for each table. The statement that runs is ours (`sources/sql_queries.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from coterie.base.log import logger
from coterie.kuscia.api.types.data import DEFAULT_SOURCE, DomainData
from coterie.kuscia.datamesh.authentication import EngineCaller
from coterie.kuscia.datamesh.authorization import DataAuthorizer, Permit
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.data_proxy import ProxySource
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError, MeshErrorCode, NotPermitted, mesh_error
from coterie.kuscia.datamesh.locations import DataLocations
from coterie.kuscia.sources import sql_queries
from coterie.kuscia.sources.protocol import DataSource, SourceError, SqlSource
from coterie.kuscia.sources.sql_queries import ParsedQuery, RefusedQuery

log = logger("datamesh.sql")


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    permits: tuple[Permit, ...]
    """One for each table; empty for a task of the domain itself."""
    source: str
    version: str
    """Of the DomainDataSource: what was checked was checked for these settings."""
    statement: str
    schema: pa.Schema

    @property
    def shown(self) -> str:
        return ",".join(each.use.data for each in self.permits) or self.source

    @property
    def read_schema(self) -> pa.Schema:
        return self.schema

    def rows(self, source: DataSource) -> AbstractAsyncContextManager[AsyncIterator[pa.RecordBatch]]:
        return cast(SqlSource, source).query(self.statement, self.schema)


class SqlReads:
    def __init__(self, catalogue: DataCatalogue, permits: DataAuthorizer, places: DataLocations) -> None:
        self._catalogue = catalogue
        self._permits = permits
        self._places = places

    async def prepare(self, caller: EngineCaller, command: Any) -> PreparedQuery:
        """Nothing is counted yet. Raises MeshError."""
        name = command.datasource_id or DEFAULT_SOURCE
        version = (await self._catalogue.source(name)).metadata.resource_version
        if (behind := await self._places.proxied(name)) is not None:
            return await self._passed_on(caller, name, version, behind, command.sql)
        source = await self._opened(name)
        try:
            query = await asyncio.to_thread(sql_queries.parse_query, command.sql, source.sql_dialect)
            async with source:
                return await self._prepared(caller, name, version, source, query)
        except RefusedQuery as problem:
            log.warning("A query was refused", source=name, task=caller.task, initiator=caller.initiator, why=problem)
            raise MeshError(MeshErrorCode.INVALID, str(problem)) from problem
        except SourceError as problem:
            raise mesh_error(problem) from problem

    async def _prepared(
        self, caller: EngineCaller, name: str, version: str, source: SqlSource, query: ParsedQuery
    ) -> PreparedQuery:
        permits: tuple[Permit, ...] = ()
        if caller.at_home and caller.tables is None:
            tables = await source.sql_tables(query.tables)
            columns = {each: tables[each].columns for each in query.tables}
            resolved = await asyncio.to_thread(sql_queries.resolve, query, columns)
        else:
            datas = {each: await self._data(caller, name, each) for each in query.tables}
            columns = {each: tuple(column.name for column in datas[each].spec.columns or ()) for each in query.tables}
            resolved = await asyncio.to_thread(sql_queries.resolve, query, columns)
            permits = tuple(
                [await self._permits.read(caller, datas[each], resolved.reads[each]) for each in query.tables]
            )
            # The database is asked only after everything was allowed.
            tables = await source.sql_tables(query.tables)
        statement = await asyncio.to_thread(sql_queries.statement, resolved, tables)
        return PreparedQuery(permits, name, version, statement, await source.query_schema(statement))

    async def _passed_on(
        self, caller: EngineCaller, name: str, version: str, source: ProxySource, text: str
    ) -> PreparedQuery:
        """SQL for a data proxy goes there as it is, as in Kuscia; which columns it reads is not known."""
        if not caller.at_home or caller.tables is not None:
            sentence = (
                f'{caller.describe} of "{caller.initiator}" may not send SQL to {name}, which is behind a data proxy: '
                "grants cannot be checked on it"
            )
            log.warning("A query was refused", source=name, task=caller.task, initiator=caller.initiator, why=sentence)
            raise NotPermitted(MeshErrorCode.QUERY_DATA, sentence)
        try:
            async with source:
                return PreparedQuery((), name, version, text, await source.query_schema(text))
        except SourceError as problem:
            raise mesh_error(problem) from problem

    async def source(self, kept: PreparedQuery) -> DataSource:
        """Not yet entered."""
        if (await self._catalogue.source(kept.source)).metadata.resource_version != kept.version:
            raise MeshError(MeshErrorCode.INVALID, f"{kept.source} changed since GetFlightInfo; call it again")
        return await self._places.proxied(kept.source) or await self._opened(kept.source)

    async def _opened(self, name: str) -> SqlSource:
        info = await self._catalogue.source_info(name)
        opened = self._places.open_source(info)
        if not getattr(opened, "sql_dialect", ""):
            sentence = f'sources of type "{info.kind}" take no SQL; PostgreSQL and MySQL do, and plug-ins that say so'
            raise MeshError(MeshErrorCode.INVALID, sentence, GrpcStatusName.UNIMPLEMENTED)
        return cast(SqlSource, opened)

    async def _data(self, caller: EngineCaller, source: str, table: str) -> DomainData:
        """The entry under which the caller may know of the table."""
        refused: MeshError | None = None
        for each in sorted(await self._catalogue.all_data(), key=lambda data: data.metadata.name):
            spec = each.spec
            if (spec.data_source or DEFAULT_SOURCE, spec.relative_uri) != (source, table):
                continue
            if spec.author != self._catalogue.domain or spec.type != "table":
                continue
            try:
                await self._permits.permit_metadata(caller, each, MeshErrorCode.QUERY_DATA)
            except NotPermitted as problem:
                refused = problem
            else:
                return each
        raise refused or NotPermitted(
            MeshErrorCode.QUERY_DATA,
            f'{caller.describe} may not query the table "{table[:100]}": it is no DomainData of {source}',
        )
