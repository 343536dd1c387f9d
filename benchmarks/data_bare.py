"""A Flight server of a few lines, with mutual TLS: what a data mesh that checks nothing would take.

python -m benchmarks.data_bare FOLDER PORT CERTIFICATE KEY AUTHORITY
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from benchmarks import data_tables


class Bare(flight.FlightServerBase):
    def __init__(self, folder: Path, location: str, certificate: bytes, key: bytes, authority: bytes) -> None:
        super().__init__(
            location, tls_certificates=[(certificate, key)], verify_client=True, root_certificates=authority
        )
        self._folder = folder

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        rows = data_tables.read(self._folder / ticket.ticket.decode())
        return flight.GeneratorStream(data_tables.SCHEMA, rows)

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        data_tables.write(self._folder / descriptor.path[0].decode(), (chunk.data for chunk in reader))


def main(folder: str, port: str, *files: str) -> None:
    certificate, key, authority = (Path(each).read_bytes() for each in files)
    Bare(Path(folder), f"grpc+tls://127.0.0.1:{port}", certificate, key, authority).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
