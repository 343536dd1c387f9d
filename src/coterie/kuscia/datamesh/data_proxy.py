"""External data proxies: Flight servers that open sources of some types in the data mesh's place (`dataMesh.dataProxyList`).

    engine ──Flight──> data mesh: permits, uses ──CommandDataMeshQuery with the source's settings──> data proxy ──> source
           <──rows───  while the permit holds   <──rows──────────────────────────────────────────

In Kuscia engines then talk to the proxy themselves. Here rows pass through the data mesh: otherwise nothing would hold a partner's engine to
the columns of its grant, and a grant that ends would stop nothing. Only the configured address is ever called, whatever location a proxy names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from coterie.kube.api.meta import Object
from coterie.kuscia.api.types.data import DomainData
from coterie.kuscia.datamesh import columns, flight_messages, messages
from coterie.kuscia.datamesh.settings import DataProxy
from coterie.kuscia.sources import catalogue_entries
from coterie.kuscia.sources.convert import fit
from coterie.kuscia.sources.files import selected
from coterie.kuscia.sources.paths import partition_of
from coterie.kuscia.sources.protocol import (
    READ_ALL,
    WRITE_PLAIN,
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceForbidden,
    SourceReadOnly,
    SourceUnreachable,
    TableReadOptions,
    TableSink,
    TableWriteOptions,
)

_SERVICE = f"/{messages.FLIGHT}.FlightService"
_ASKING = 10.0
"""Seconds that a proxy has to say where rows are, as in Kuscia."""
_LARGEST_MESSAGE = 256 << 20
_MOST_PARTS = 10_000
_LARGEST_INFO = 16 << 20
_OPTIONS = [
    ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_PLAIN_VALUE = re.compile(r"[^\s'\"`;=<>()\\\x00-\x1f]+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class DataProxies:
    def __init__(self, proxies: Sequence[DataProxy]) -> None:
        self._of_type = {kind: each for each in proxies for kind in each.types}

    def find(self, kind: str) -> DataProxy | None:
        return self._of_type.get(kind)


class ProxySource:
    """A DataSource for one entry of the catalogue, or for SQL."""

    def __init__(self, proxy: DataProxy, source: Object, data: DomainData | None = None) -> None:
        """`source`: the message DomainDataSource with its settings, secrets included."""
        self._proxy = proxy
        self._source = source
        self._data = data
        self._channel: grpc.aio.Channel | None = None
        self._label = f"the data proxy at {proxy.endpoint}"

    async def __aenter__(self) -> DataSource:
        credentials = await asyncio.to_thread(_credentials, self._proxy, self._label)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(self._proxy.endpoint, options=_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(self._proxy.endpoint, credentials, options=_OPTIONS)
        return self

    async def __aexit__(self, *problem: object) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def schema(self, place: DataLocation) -> pa.Schema:
        if self._data is None:
            raise SourceForbidden("what lies in a source behind a data proxy is not looked for; choose another source")
        info = await self._asked(self._query(place, READ_ALL))
        return _schema_of(info) or columns.schema_of(self._data.spec.columns or ())

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        wanted = selected(schema, options.columns) if schema is not None and not options.raw else None
        info = await self._asked(self._query(place, options))
        yield self._batches(info, columns.RAW_SCHEMA if options.raw else wanted)

    @asynccontextmanager
    async def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AsyncIterator[TableSink]:
        update = {
            "domaindata_id": self._named.metadata.name,
            "content_type": messages.RAW if options.raw else messages.TABLE,
            "file_write_options": {"csv_options": {"field_delimiter": options.delimiter}},
            "partition_spec": _partition(place),
        }
        info = await self._asked(("CommandDataMeshUpdate", {"update": update, **self._about(place)}))
        assert self._channel is not None
        call: Any = self._channel.stream_stream(f"{_SERVICE}/DoPut")()
        try:
            with self._errors():
                descriptor = messages.flight("FlightDescriptor")(type=2, cmd=_ticket(info))
                await call.write(
                    flight_messages.described(flight_messages.of_schema(schema), descriptor.SerializeToString())
                )
                yield _ProxySink(call, schema)
                await call.done_writing()
                while await call.read() is not grpc.aio.EOF:
                    pass
                if (code := await call.code()) is not grpc.StatusCode.OK:
                    raise self._refusal(code)
        finally:
            call.cancel()

    async def delete(self, place: DataLocation) -> None:
        raise SourceReadOnly("a data proxy deletes nothing")

    # SQL, as it is: the domain's own.

    async def query_schema(self, statement: str) -> pa.Schema:
        return _schema_of(await self._asked(self._sql(statement))) or pa.schema([])

    @asynccontextmanager
    async def query(
        self, statement: str, schema: pa.Schema, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        info = await self._asked(self._sql(statement))
        yield self._batches(info, schema if schema.names else None)

    # What is said.

    @property
    def _named(self) -> DomainData:
        if self._data is None:
            raise SourceForbidden("nothing is written or read behind a data proxy without an entry of the catalogue")
        return self._data

    def _query(self, place: DataLocation, options: TableReadOptions) -> tuple[str, Object]:
        query = {
            "domaindata_id": self._named.metadata.name,
            "columns": list(options.columns),
            "content_type": messages.RAW if options.raw else messages.TABLE,
            "partition_spec": _partition(place),
        }
        return "CommandDataMeshQuery", {"query": query, **self._about(place)}

    def _about(self, place: DataLocation) -> Object:
        data = catalogue_entries.data_response(self._named)
        if place.partition:
            data["attributes"] = {**data["attributes"], "partition_spec": _partition(place)}
        return {"domaindata": data, "datasource": self._source}

    def _sql(self, statement: str) -> tuple[str, Object]:
        query = {"datasource_id": self._source["datasource_id"], "sql": statement}
        return "CommandDataMeshSqlQuery", {"query": query, "datasource": self._source}

    async def _asked(self, command: tuple[str, Object]) -> Any:
        """The FlightInfo."""
        name, fields = command
        try:
            body = ParseDict(fields, messages.mesh(name)(), ignore_unknown_fields=True)
        except ParseError:
            # Without the cause, which quotes settings.
            raise SourceError("the settings of the source are none that a data proxy takes; set them again") from None
        box = messages.Any_(type_url=f"type.googleapis.com/{messages.DATAMESH}.{name}", value=body.SerializeToString())
        descriptor = messages.flight("FlightDescriptor")(type=2, cmd=box.SerializeToString())
        assert self._channel is not None
        with self._errors():
            found: bytes = await self._channel.unary_unary(f"{_SERVICE}/GetFlightInfo")(
                descriptor.SerializeToString(), timeout=_ASKING
            )
            if len(found) > _LARGEST_INFO:
                raise SourceError(f"{self._label} answers with far too much")
            info = messages.flight("FlightInfo").FromString(found)
        if len(info.endpoint) > _MOST_PARTS:
            raise SourceError(f"{self._label} answers with too many parts")
        return info

    async def _batches(self, info: Any, wanted: pa.Schema | None) -> AsyncIterator[pa.RecordBatch]:
        """`wanted`: the only columns that go on, in these types."""
        assert self._channel is not None
        row = 0
        for endpoint in info.endpoint:
            call: Any = self._channel.unary_stream(f"{_SERVICE}/DoGet")(endpoint.ticket.SerializeToString())
            schema: pa.Schema | None = None
            try:
                with self._errors():
                    async for message in call:
                        parts = flight_messages.parse(message)
                        if not parts.is_rows:
                            continue
                        if schema is None:
                            schema = flight_messages.schema_in(flight_messages.ipc_message(parts))
                            _check_plain(schema, self._label)
                            continue
                        batch = await asyncio.to_thread(_batch, parts, schema, wanted, row)
                        row += batch.num_rows
                        yield batch
            finally:
                call.cancel()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What a proxy says may quote settings or rows, so only the status goes on."""
        try:
            yield
        except grpc.aio.AioRpcError as problem:
            raise self._refusal(problem.code()) from None
        except (flight_messages.MalformedFlightData, DecodeError) as problem:
            raise SourceError(f"{self._label} sends something that is not Flight: {problem}") from problem

    def _refusal(self, code: grpc.StatusCode) -> SourceError:
        if code in _AWAY:
            return SourceUnreachable(f"{self._label} does not answer ({code.name}); check dataMesh.dataProxyList")
        if code in _DENIED:
            return SourceUnreachable(
                f"{self._label} does not let the data mesh in ({code.name}); check clientTLSConfig"
            )
        if code is grpc.StatusCode.NOT_FOUND:
            return DataNotFound(f"{self._label} finds no such table")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return SourceError(f"{self._label} does not know this request or type of source")
        return SourceError(f"{self._label} refused ({code.name}); its log says why")


class _ProxySink:
    def __init__(self, call: Any, schema: pa.Schema) -> None:
        self._call, self._schema = call, schema

    async def put(self, batch: pa.RecordBatch) -> None:
        for piece in flight_messages.pieces(fit(batch, self._schema)):
            await self._call.write(await asyncio.to_thread(flight_messages.of_batch, piece))


def _partition(place: DataLocation) -> str:
    """As we understood it and no otherwise: whoever asks chose it, and a proxy may put it into a condition."""
    found = partition_of(place.partition)
    if not all(_PLAIN_VALUE.fullmatch(each) for each in found.values()):
        raise SourceForbidden("a value of the partition has characters that are not sent to a data proxy")
    return ",".join(f"{key}={value}" for key, value in found.items())


def _batch(parts: flight_messages.Parts, schema: pa.Schema, wanted: pa.Schema | None, row: int) -> pa.RecordBatch:
    batch = flight_messages.batch_in(flight_messages.ipc_message(parts), schema)
    if wanted is columns.RAW_SCHEMA and batch.num_columns == 1:
        batch = batch.rename_columns(wanted.names)
    return fit(batch, wanted, row) if wanted is not None else batch


def _check_plain(schema: pa.Schema, label: str) -> None:
    if any(pa.types.is_dictionary(each.type) for each in schema):
        raise SourceError(f"{label} sends dictionary-encoded columns, which are not taken")


def _schema_of(info: Any) -> pa.Schema | None:
    """As FlightInfo has it: an IPC message, or nothing."""
    if not info.schema:
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(info.schema))
    except (pa.ArrowException, OSError):
        return None


def _ticket(info: Any) -> bytes:
    if not info.endpoint:
        raise SourceError("the data proxy gave no ticket for writing")
    return bytes(info.endpoint[0].ticket.ticket)


def _credentials(proxy: DataProxy, label: str) -> grpc.ChannelCredentials | None:
    """Read anew for each use: certificates are replaced in place."""
    if not proxy.secure:
        return None
    try:
        authority, key, certificate = (
            Path(each).read_bytes() if each else None for each in (proxy.ca_file, proxy.key_file, proxy.cert_file)
        )
    except OSError as problem:
        raise SourceUnreachable(
            f"the files of clientTLSConfig for {label} cannot be read: {problem.strerror}"
        ) from problem
    return grpc.ssl_channel_credentials(authority, key, certificate)
