"""The domain's data mesh as the engine uses it: read a table by Flight, register a table, write it.

The certificates that every engine has in `kuscia/certs` say who asks; what it may read is decided there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from coterie.engines.psi import protobytes
from coterie.engines.psi.protobytes import command, message

ADDRESS = "datamesh:8071"
_CSV = 1
_FILES = {
    "tls_root_certs": ("TRUSTED_CA_FILE", "ca.crt"),
    "cert_chain": ("CLIENT_CERT_FILE", "client.crt"),
    "private_key": ("CLIENT_PRIVATE_KEY_FILE", "client.key"),
}
_NAMES = {pa.string(): "string", pa.large_string(): "large_string", pa.float64(): "float64", pa.float32(): "float32"}
_NAMES |= {pa.date32(): "date32", pa.date64(): "date64", pa.bool_(): "bool", pa.binary(): "binary"}
_NAMES |= {pa.time32("s"): "time32", pa.time64("us"): "time64", pa.timestamp("s"): "timestamp"}
_NAMES |= {pa.duration("s"): "duration"}
_NAMES |= {kind: str(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}
_NAMES |= {kind: str(kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())}


class MeshFailed(Exception):
    """The data mesh does not give or take it; the sentence goes to the log."""


class Mesh:
    def __init__(self, address: str = ADDRESS) -> None:
        given: dict[str, Any] = {}
        for option, (variable, name) in _FILES.items():
            given[option] = Path(os.environ.get(variable) or f"kuscia/certs/{name}").read_bytes()
        self._client = flight.connect(f"grpc+tls://{address}", **given)

    def close(self) -> None:
        self._client.close()

    def schema(self, data: str) -> pa.Schema:
        asked = flight.FlightDescriptor.for_command(command("CommandGetDomainDataSchema", (1, data)))
        with _flight_errors(f"the table {data} cannot be read"):
            return self._client.get_schema(asked).schema

    def read(self, data: str, columns: Sequence[str]) -> Rows:
        query = command("CommandDomainDataQuery", (1, data), *protobytes.each(2, columns))
        with _flight_errors(f"the table {data} cannot be read"):
            info = self._client.get_flight_info(flight.FlightDescriptor.for_command(query))
            return Rows(data, self._client.do_get(info.endpoints[0].ticket))

    def create(self, data: str, schema: pa.Schema) -> None:
        """Register a table; one that the same job made before is made anew."""
        columns = [message((1, each.name), (2, _NAMES[each.type])) for each in schema]
        request = message(
            (2, data),
            (3, data),
            (4, "table"),
            (5, f"{data}.csv"),
            *protobytes.each(9, columns),
            (10, "coterie"),
            (11, _CSV),
        )
        with _flight_errors(f"the table {data} cannot be made"):
            (result,) = self._client.do_action(flight.Action("ActionCreateDomainDataRequest", request))
            code, status = _status(result.body.to_pybytes())
        if code:
            raise MeshFailed(f"the table {data} cannot be made: {status}")

    def write(self, data: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        """How many rows. All of them are there at the end, or none."""
        asked = flight.FlightDescriptor.for_command(command("CommandDomainDataUpdate", (1, data)))
        rows = 0
        with _flight_errors(f"the table {data} cannot be written"):
            info = self._client.get_flight_info(asked)
            ticket = flight.FlightDescriptor.for_command(info.endpoints[0].ticket.ticket)
            writer, answers = self._client.do_put(ticket, schema)
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
                writer.done_writing()
                while answers.read() is not None:
                    pass
        return rows


class Rows:
    """Rows on their way."""

    def __init__(self, data: str, reader: Any) -> None:
        self._data = data
        self._reader = reader
        self.schema: pa.Schema = reader.schema.remove_metadata()

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> pa.RecordBatch:
        with _flight_errors(f"the table {self._data} cannot be read"):
            batch: pa.RecordBatch = self._reader.read_chunk().data
        return batch


class _flight_errors:
    """Errors of Flight as sentences; what gRPC adds about itself is left out."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        if isinstance(problem, flight.FlightError | pa.ArrowException | OSError):
            raise MeshFailed(f"{self._sentence}: {reason(str(problem))}") from problem


def reason(text: str) -> str:
    first = text.split(". gRPC client debug context")[0].split(". Detail:")[0].split("Client context")[0]
    head, _, rest = first.partition("message: ")
    first = (rest or head).strip().rstrip(".")
    code, _, sentence = first.partition(": ")
    return sentence if code.isdigit() else first


def _status(body: bytes) -> tuple[int, str]:
    code, status = 0, ""
    for number, value in protobytes.fields(body):
        if number == 1 and isinstance(value, bytes):
            for inner, part in protobytes.fields(value):
                if inner == 1 and isinstance(part, int):
                    code = part
                elif inner == 2 and isinstance(part, bytes):
                    status = part.decode(errors="replace")
    return code, status
