"""Some rows of a table as JSON, over HTTP: for callers without Arrow, such as the actors of functions.

    POST /api/v1/datamesh/domaindata/rows   {"domaindata_id": "customers", "columns": ["id", "segment"], "where": {"id": "C7"}, "limit": 10}
    200                                     {"rows": [{"id": "C7", "segment": "gold"}]}

The rules are those of Flight: grants, columns (also those of `where`), one use for each read, on the grant before the first row is read.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from coterie.base import memory
from coterie.base.log import logger
from coterie.kuscia.api.types.data import NORMAL
from coterie.kuscia.datamesh import columns
from coterie.kuscia.datamesh.authentication import EngineCaller
from coterie.kuscia.datamesh.authorization import DataAuthorizer
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError, MeshErrorCode, NotPermitted, mesh_error
from coterie.kuscia.datamesh.flight import place_of
from coterie.kuscia.datamesh.locations import DataLocations
from coterie.kuscia.datamesh.metrics import READ, MeshMetrics
from coterie.kuscia.sources.protocol import SourceError, TableReadOptions

ROWS_PATH = "/api/v1/datamesh/domaindata/rows"
MAX_ROWS = 100_000
MAX_BYTES = 16 << 20
"""Of the columns in memory. Whoever needs more has Flight."""

log = logger("datamesh.rows")


class RowsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    domaindata_id: str
    columns: tuple[str, ...] = ()
    """Empty: all that the caller may read."""
    where: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    """Rows whose columns have these values."""
    limit: int = MAX_ROWS


def rows_query(body: bytes) -> RowsQuery:
    """Raises MeshError."""
    try:
        query = msgspec.json.decode(body, type=RowsQuery)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise MeshError(MeshErrorCode.INVALID, f"the body is no query for rows: {problem}") from problem
    if not 1 <= query.limit <= MAX_ROWS:
        raise MeshError(MeshErrorCode.INVALID, f"limit is between 1 and {MAX_ROWS}")
    return query


class RowReader:
    def __init__(
        self, catalogue: DataCatalogue, permits: DataAuthorizer, places: DataLocations, metrics: MeshMetrics
    ) -> None:
        self._catalogue = catalogue
        self._permits = permits
        self._places = places
        self._metrics = metrics

    async def read(self, caller: EngineCaller, query: RowsQuery) -> list[dict[str, Any]]:
        data = await self._catalogue.data(query.domaindata_id)
        declared = data.spec.columns or ()
        if not query.columns:
            known = await self._permits.permit_metadata(caller, data, MeshErrorCode.QUERY_DATA)
            declared = tuple(each for each in declared if known.columns is None or each.name in known.columns)
        chosen = [each.name for each in columns.selected(declared, query.columns)]
        # Rows that are chosen by a column tell what is in it.
        touched = tuple(dict.fromkeys((*chosen, *query.where)))
        permit = await self._permits.read(caller, data, touched, NORMAL)
        columns.selected(data.spec.columns or (), touched)
        if not chosen:
            sentence = f"{data.metadata.name} has no columns here: its rows are at another party, or it is no table"
            raise MeshError(MeshErrorCode.INVALID, sentence, GrpcStatusName.FAILED_PRECONDITION)
        schema = columns.schema_of(data.spec.columns or (), data.spec.type)
        opened = await self._places.source(data)
        permit = await self._permits.begin(permit)
        counts = self._metrics.stream(READ, caller.initiator)
        found: list[dict[str, Any]] = []
        size = 0
        try:
            async with (
                self._permits.held(permit) as ended,
                opened as source,
                source.read(place_of(data), schema, TableReadOptions(columns=touched)) as batches,
            ):
                async for batch in batches:
                    if ended.done():
                        raise NotPermitted(MeshErrorCode.QUERY_DATA, f"the read was stopped: {ended.result()}")
                    kept = await asyncio.to_thread(_matching, batch, query.where)
                    size += kept.nbytes
                    if size > MAX_BYTES:
                        sentence = (
                            f"these are more than {MAX_BYTES >> 20} MiB; ask for fewer rows or columns, or use Flight"
                        )
                        raise MeshError(MeshErrorCode.INVALID, sentence, GrpcStatusName.FAILED_PRECONDITION)
                    counts.rows += kept.num_rows
                    counts.bytes += kept.nbytes
                    found += kept.select(chosen).slice(0, query.limit - len(found)).to_pylist()
                    if len(found) >= query.limit:
                        break
        except SourceError as problem:
            raise mesh_error(problem) from problem
        finally:
            await asyncio.to_thread(memory.trim)
        return found


def _matching(batch: pa.RecordBatch, where: dict[str, Any]) -> pa.RecordBatch:
    """A value is compared as the type of its column; one that is none of that type is in no row."""
    for name, value in where.items():
        column = batch.column(name)
        try:
            wanted = pa.scalar(str(value) if pa.types.is_string(column.type) else value).cast(column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return batch.slice(0, 0)
        batch = batch.filter(pc.equal(column, wanted))
    return batch
