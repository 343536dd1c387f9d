"""Arrow Flight: what may be read or written is asked for first, then fetched or brought by ticket.

    GetFlightInfo(command) ──permit──> ticket ──DoGet──> use counted ──> source ──> rows, while the permit holds
                                              ──DoPut──> rows ──> source, visible all at once at the end

Streams are read ahead by a few messages: while one is on its way, the next is put together in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError

from coterie.base import memory, trace
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.trace import RING, TraceRing
from coterie.kuscia.api.types.data import FILE, NORMAL, DomainData
from coterie.kuscia.datamesh import columns, flight_messages, messages
from coterie.kuscia.datamesh.authentication import EngineCaller
from coterie.kuscia.datamesh.authorization import DataAuthorizer, Permit
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError, MeshErrorCode, NotPermitted, mesh_error
from coterie.kuscia.datamesh.locations import DataLocations
from coterie.kuscia.datamesh.metrics import READ, WRITE, MeshMetrics, StreamCounts
from coterie.kuscia.datamesh.provenance import DataProvenance
from coterie.kuscia.datamesh.services import MeshOperation
from coterie.kuscia.datamesh.sql_reads import PreparedQuery, SqlReads
from coterie.kuscia.datamesh.tickets import Tickets
from coterie.kuscia.sources.catalogue_entries import file_format
from coterie.kuscia.sources.paths import partition_of
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataSource,
    SourceError,
    TableReadOptions,
    TableWriteOptions,
)

log = logger("datamesh.flight")

LOCATION = "kuscia://datamesh"
_AHEAD = 3
T = TypeVar("T")
_ACTIONS = (
    "CreateDomainData",
    "QueryDomainData",
    "UpdateDomainData",
    "DeleteDomainData",
    "QueryDomainDataSource",
)


@dataclass(frozen=True, slots=True)
class PreparedRead:
    permit: Permit
    place: DataLocation
    schema: pa.Schema
    options: TableReadOptions

    @property
    def permits(self) -> tuple[Permit, ...]:
        return (self.permit,)

    @property
    def shown(self) -> str:
        return self.permit.use.data

    @property
    def read_schema(self) -> pa.Schema:
        if self.options.raw:
            return columns.RAW_SCHEMA
        return pa.schema([self.schema.field(name) for name in self.options.columns], metadata=self.schema.metadata)

    def rows(self, source: DataSource) -> AbstractAsyncContextManager[AsyncIterator[pa.RecordBatch]]:
        return source.read(self.place, None if self.options.raw else self.schema, self.options)


@dataclass(frozen=True, slots=True)
class PreparedWrite:
    data: str
    place: DataLocation
    options: TableWriteOptions


class Flight:
    def __init__(
        self,
        catalogue: DataCatalogue,
        provenance: DataProvenance,
        permits: DataAuthorizer,
        places: DataLocations,
        operations: Sequence[MeshOperation],
        clock: Clock,
        traces: TraceRing = RING,
        metrics: MeshMetrics | None = None,
    ) -> None:
        self._metrics = metrics or MeshMetrics()
        self._catalogue = catalogue
        self._provenance = provenance
        self._permits = permits
        self._places = places
        self._traces = traces
        self._actions = {f"Action{each.method}Request": each for each in operations if each.method in _ACTIONS}
        self._sql = SqlReads(catalogue, permits, places)
        self.tickets: Tickets[PreparedRead | PreparedQuery | PreparedWrite] = Tickets(clock)

    # Asking.

    async def schema(self, caller: EngineCaller, descriptor: Any) -> Any:
        """SchemaResult."""
        name, data = _command(descriptor)
        if name != "CommandGetDomainDataSchema":
            raise MeshError(MeshErrorCode.INVALID, f"GetSchema takes CommandGetDomainDataSchema, not {name}")
        found = await self._catalogue.data(_parsed(name, data).domaindata_id)
        permit = await self._permits.permit_metadata(caller, found, MeshErrorCode.QUERY_DATA)
        chosen = [each for each in found.spec.columns or () if permit.columns is None or each.name in permit.columns]
        schema = columns.schema_of(chosen, found.spec.type)
        return messages.flight("SchemaResult")(schema=schema.serialize().to_pybytes())

    async def info(self, caller: EngineCaller, descriptor: Any) -> Any:
        """FlightInfo."""
        name, data = _command(descriptor)
        kept: PreparedRead | PreparedQuery | PreparedWrite
        match name:
            case "CommandDomainDataQuery":
                kept, schema = await self._query(caller, _parsed(name, data))
            case "CommandDomainDataUpdate":
                kept, schema = await self._update(caller, _parsed(name, data))
            case "CommandDataSourceSqlQuery":
                kept = await self._sql.prepare(caller, _parsed(name, data))
                schema = kept.schema
            case _:
                raise MeshError(MeshErrorCode.INVALID, f"GetFlightInfo does not take {name}")
        ticket = self.tickets.issue(caller, kept)
        return messages.flight("FlightInfo")(
            schema=schema.serialize().to_pybytes(),
            flight_descriptor=descriptor,
            endpoint=[{"ticket": {"ticket": ticket}, "location": [{"uri": LOCATION}]}],
            total_records=-1,
            total_bytes=-1,
        )

    async def _query(self, caller: EngineCaller, query: Any) -> tuple[PreparedRead, pa.Schema]:
        found = await self._catalogue.data(query.domaindata_id)
        declared = found.spec.columns or ()
        raw = query.content_type == messages.RAW
        chosen = columns.selected(declared, query.columns)
        names = tuple(each.name for each in (declared if raw else chosen))
        # Rows that are chosen by a column tell what is in it.
        keys = _partition_keys(query.partition_spec)
        touched = tuple(dict.fromkeys((*names, *keys)))
        permit = await self._permits.read(caller, found, touched, FILE if raw else NORMAL)
        if (permit.grant is not None or caller.tables is not None) and not raw:
            _check_declared(found, keys)
        if not raw and not declared:
            sentence = f"{found.metadata.name} has no columns here: its rows are at another party, or it is no table"
            raise MeshError(MeshErrorCode.INVALID, sentence, GrpcStatusName.FAILED_PRECONDITION)
        schema = columns.schema_of(declared, found.spec.type)
        options = TableReadOptions(columns=() if raw else names, raw=raw)
        shown = columns.RAW_SCHEMA if raw else columns.schema_of(chosen, found.spec.type)
        return PreparedRead(permit, place_of(found, query.partition_spec), schema, options), shown

    async def _update(self, caller: EngineCaller, update: Any) -> tuple[PreparedWrite, pa.Schema]:
        wanted = update.domaindata_id or update.domaindata_request.domaindata_id
        if update.HasField("domaindata_request") and (not wanted or await self._catalogue.find_data(wanted) is None):
            answer = await self._actions["ActionCreateDomainDataRequest"].run(caller, update.domaindata_request)
            if answer.status.code:
                raise MeshError(MeshErrorCode(answer.status.code), answer.status.message)
            wanted = answer.data.domaindata_id
        found = await self._catalogue.data(wanted)
        await self._may_write(caller, found)
        raw = update.content_type == messages.RAW
        delimiter = update.file_write_options.csv_options.field_delimiter or ","
        schema = columns.RAW_SCHEMA if raw else columns.schema_of(found.spec.columns or (), found.spec.type)
        options = TableWriteOptions(delimiter=delimiter, raw=raw)
        return PreparedWrite(wanted, place_of(found, update.partition_spec), options), schema

    async def _may_write(self, caller: EngineCaller, data: DomainData) -> None:
        await self._permits.write(caller, data, MeshErrorCode.PATCH_DATA)
        if not caller.at_home:
            await self._places.check_writable(caller, data, MeshErrorCode.PATCH_DATA)

    # Fetching.

    def get(self, caller: EngineCaller, ticket: bytes) -> AsyncIterator[bytes]:
        """Messages, the schema first."""
        return self._traced_get(caller, ticket) if self._traces.on else self._get(caller, ticket, {})

    async def _traced_get(self, caller: EngineCaller, ticket: bytes) -> AsyncIterator[bytes]:
        sent = 0
        with self._traced(caller, "data read") as about:
            async with aclosing(self._get(caller, ticket, about)) as messages_of_read:
                async for message in messages_of_read:
                    sent += len(message)
                    about["coterie.bytes"] = sent
                    yield message

    @contextmanager
    def _traced(self, caller: EngineCaller, name: str) -> Iterator[dict[str, trace.Value]]:
        """Attributes may be added while it lasts."""
        about: dict[str, trace.Value] = {
            "coterie.job": caller.job,
            "coterie.task": caller.task,
            "coterie.domain": caller.domain,
            "k8s.pod.name": caller.pod,
        }
        with trace.recorded(caller.span, name, about, self._traces):
            yield about

    async def _get(
        self, caller: EngineCaller, ticket: bytes, about: dict[str, trace.Value]
    ) -> AsyncGenerator[bytes, None]:
        """`about`: gets the attributes of the read."""
        kept = self.tickets.redeem(caller, ticket)
        if isinstance(kept, PreparedWrite):
            raise MeshError(
                MeshErrorCode.INVALID, "the ticket is for writing; call GetFlightInfo with CommandDomainDataQuery"
            )
        about["coterie.data"] = kept.shown
        for each in kept.permits:
            now = await self._catalogue.data(each.use.data)
            if (now.metadata.uid, now.spec) != (each.data.metadata.uid, each.data.spec):
                raise MeshError(
                    MeshErrorCode.INVALID, f"{now.metadata.name} changed since GetFlightInfo; call it again"
                )
        if isinstance(kept, PreparedQuery):
            opened: DataSource = await self._sql.source(kept)
        else:
            opened = await self._places.source(kept.permit.data)
        permits = [await self._permits.begin(each) for each in kept.permits]
        counts = self._metrics.stream(READ, caller.initiator)
        async with AsyncExitStack() as held:
            ended = first_done([await held.enter_async_context(self._permits.held(each)) for each in permits])
            found = await held.enter_async_context(aclosing(self._messages(opened, kept, counts)))
            while True:
                message = await _unless(ended, found)
                if ended.done():
                    log.warning("A read was stopped", data=kept.shown, task=caller.task, why=ended.result())
                    raise NotPermitted(MeshErrorCode.QUERY_DATA, f"the read was stopped: {ended.result()}")
                if message is None:
                    return
                counts.bytes += len(message)
                yield message

    async def _messages(
        self, source: DataSource, kept: PreparedRead | PreparedQuery, counts: StreamCounts
    ) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(_prefetched(_encoded(source, kept, counts), "datamesh/read")) as coming:
                async for message in coming:
                    yield message
        except SourceError as problem:
            raise mesh_error(problem) from problem
        finally:
            await asyncio.to_thread(memory.trim)

    # Bringing.

    async def put(self, caller: EngineCaller, incoming: AsyncIterator[bytes]) -> None:
        if not self._traces.on:
            return await self._put(caller, incoming)
        with self._traced(caller, "data write"):
            return await self._put(caller, incoming)

    async def _put(self, caller: EngineCaller, incoming: AsyncIterator[bytes]) -> None:
        first = await anext(incoming, None)
        if first is None:
            raise MeshError(MeshErrorCode.INVALID, "DoPut brought nothing")
        try:
            parts = flight_messages.parse(first)
            descriptor = messages.flight("FlightDescriptor").FromString(bytes(parts.descriptor))
            kept = self.tickets.redeem(caller, descriptor.cmd)
            if not isinstance(kept, PreparedWrite):
                raise MeshError(
                    MeshErrorCode.INVALID, "the ticket is for reading; call GetFlightInfo with CommandDomainDataUpdate"
                )
            schema = flight_messages.schema_in(flight_messages.ipc_message(parts))
            # Things may have changed since the ticket was given.
            data = await self._catalogue.data(kept.data)
            await self._may_write(caller, data)
            wanted = _written_schema(data, schema, raw=kept.options.raw)
            if caller.at_home:
                await self._take_over(caller, data)
            counts = self._metrics.stream(WRITE, caller.initiator)
            async with (
                await self._places.source(data) as source,
                source.write(kept.place, wanted, kept.options) as sink,
                aclosing(_prefetched(_decoded(incoming, schema, wanted), "datamesh/write")) as coming,
            ):
                async for batch in coming:
                    await sink.put(batch)
                    counts.rows += batch.num_rows
                    counts.bytes += batch.nbytes
        except (flight_messages.MalformedFlightData, DecodeError) as problem:
            raise MeshError(MeshErrorCode.INVALID, str(problem)) from problem
        except SourceError as problem:
            raise mesh_error(problem) from problem
        finally:
            await asyncio.to_thread(memory.trim)
        await self._provenance.written(caller, data)
        log.info("Data written", data=kept.data, task=caller.task)

    async def _take_over(self, caller: EngineCaller, data: DomainData) -> None:
        """What the domain writes over a partner's result is the domain's before its first row is there."""
        before = await self._provenance.of(data)
        if before is not None and before.initiator != caller.initiator:
            info = await self._catalogue.source_info(data.spec.data_source)
            await self._provenance.registered(caller, data.metadata.name, info, data.spec.relative_uri)

    # Everything else.

    async def action(self, caller: EngineCaller, action: Any) -> Any:
        """Result."""
        operation = self._actions.get(action.type)
        if operation is None:
            raise MeshError(MeshErrorCode.INVALID, f'there is no action "{action.type}"', GrpcStatusName.UNIMPLEMENTED)
        try:
            request = operation.request.FromString(action.body)
        except DecodeError as problem:
            raise MeshError(
                MeshErrorCode.INVALID, f"the body of {action.type} is no {operation.method}Request"
            ) from problem
        return messages.flight("Result")(body=(await operation.run(caller, request)).SerializeToString())


def _command(descriptor: Any) -> tuple[str, bytes]:
    try:
        return messages.unpacked(descriptor.cmd)
    except ValueError as problem:
        raise MeshError(MeshErrorCode.INVALID, f"the descriptor's command: {problem}") from problem


def _parsed(name: str, data: bytes) -> Any:
    try:
        return messages.mesh(name).FromString(data)
    except DecodeError as problem:
        raise MeshError(MeshErrorCode.INVALID, f"not a {name}") from problem


def _partition_keys(text: str) -> tuple[str, ...]:
    try:
        return tuple(partition_of(text))
    except SourceError as problem:
        raise MeshError(MeshErrorCode.INVALID, str(problem)) from problem


def _check_declared(data: DomainData, keys: Sequence[str]) -> None:
    """What is granted is the entry. A column of the table that it does not declare chooses no rows either."""
    partitions = data.spec.partitions.fields if data.spec.partitions else None
    declared = {each.name for each in (*(data.spec.columns or ()), *(partitions or ()))}
    if unknown := [each for each in keys if each not in declared]:
        raise NotPermitted(
            MeshErrorCode.QUERY_DATA,
            f"{data.metadata.name} declares no column or partition {', '.join(unknown)[:100]}; its owner can add it",
        )


def place_of(data: DomainData, partition: str = "") -> DataLocation:
    return DataLocation(
        data.spec.relative_uri, file_format(data.spec.file_format), partition, data.spec.attributes or {}
    )


async def _prefetched(made: AsyncGenerator[T, None], name: str) -> AsyncGenerator[T, None]:
    """The same; the next are made while one is used."""
    ready: asyncio.Queue[T | None] = asyncio.Queue(_AHEAD)

    async def fill() -> None:
        """Until the end, which is None, also when it is an early one: whoever reads asks this task how it went."""
        try:
            async with aclosing(made):
                async for each in made:
                    await ready.put(each)
        finally:
            if (current := asyncio.current_task()) is None or not current.cancelling():
                await ready.put(None)

    filling = asyncio.create_task(fill(), name=name)
    try:
        while (each := await ready.get()) is not None:
            yield each
        await filling
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)


async def _encoded(
    source: DataSource, kept: PreparedRead | PreparedQuery, counts: StreamCounts
) -> AsyncGenerator[bytes, None]:
    async with source, kept.rows(source) as batches:
        announced = False
        async for batch in batches:
            if not announced:
                yield flight_messages.of_schema(batch.schema)
                announced = True
            for piece in flight_messages.pieces(batch):
                counts.rows += piece.num_rows
                yield await asyncio.to_thread(flight_messages.of_batch, piece)
        if not announced:
            yield flight_messages.of_schema(kept.read_schema)


async def _decoded(
    incoming: AsyncIterator[bytes], schema: pa.Schema, wanted: pa.Schema
) -> AsyncGenerator[pa.RecordBatch, None]:
    async for message in incoming:
        parts = flight_messages.parse(message)
        if parts.is_rows:
            yield await asyncio.to_thread(_rows, parts, schema, wanted)


def first_done(waiting: Sequence[asyncio.Future[str]]) -> asyncio.Future[str]:
    """Gets the result of the first that has one."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def done(which: asyncio.Future[str]) -> None:
        if not found.done() and not which.cancelled():
            found.set_result(which.result())

    for each in waiting:
        each.add_done_callback(done)
    return found


async def _unless(ended: asyncio.Future[str], found: AsyncIterator[bytes]) -> bytes | None:
    """The next message; None at the end, or when the permit ends first."""
    if ended.done():
        return None

    async def following() -> bytes | None:
        return await anext(found, None)

    task = asyncio.ensure_future(following())
    try:
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _written_schema(data: DomainData, brought: pa.Schema, *, raw: bool) -> pa.Schema:
    """The declared types for what was brought under the declared names."""
    if raw:
        # Whatever its name: Kuscia reads it as "data", and its own client writes it as "binary_data".
        if len(brought.names) != 1 or not _is_binary(brought.field(0).type):
            raise MeshError(MeshErrorCode.INVALID, "raw content comes in one binary column")
        return columns.RAW_SCHEMA
    if any(pa.types.is_dictionary(each.type) for each in brought):
        raise MeshError(MeshErrorCode.INVALID, "dictionary-encoded columns are not taken; decode them first")
    declared = columns.schema_of(data.spec.columns or ())
    if not declared.names:
        return brought.remove_metadata()
    if sorted(declared.names) != sorted(brought.names):
        raise MeshError(
            MeshErrorCode.INVALID,
            f"columns {', '.join(brought.names)} were brought, "
            f"but {data.metadata.name} has {', '.join(declared.names)}",
        )
    return declared


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _rows(parts: flight_messages.Parts, schema: pa.Schema, wanted: pa.Schema) -> pa.RecordBatch:
    batch = flight_messages.batch_in(flight_messages.ipc_message(parts), schema)
    if batch.schema.equals(wanted):
        return batch
    if wanted is columns.RAW_SCHEMA:
        batch = batch.rename_columns(wanted.names)
    try:
        return batch.select(wanted.names).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as problem:
        raise flight_messages.MalformedFlightData(f"a value does not fit its declared type: {problem}") from problem
