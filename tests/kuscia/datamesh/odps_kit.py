"""An ODPS project, as its REST and tunnel protocols are documented: enough for the unmodified PyODPS. Shares no code with it nor with our source.

It checks every signature, keeps what it is sent, and can be told to fail.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree

import pyarrow as pa

ID, KEY = "id-of-mesh", "key-that-nobody-sees"
_CHUNK = 65536
_TYPES = {
    "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(), "STRING": pa.string(), "BINARY": pa.binary(), "DATE": pa.date32(), "DATETIME": pa.timestamp("ms"),
    "TIMESTAMP": pa.timestamp("ns"), "TIMESTAMP_NTZ": pa.timestamp("ns"), "ARRAY<STRING>": pa.list_(pa.string()),
}  # fmt: skip
_CRC = []
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = (_value >> 1) ^ (0x82F63B78 if _value & 1 else 0)
    _CRC.append(_value)


def crc32c(data: bytes, before: int = 0) -> int:
    value = before ^ 0xFFFFFFFF
    for each in data:
        value = _CRC[(value ^ each) & 255] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def framed(data: bytes, chunk: int = _CHUNK) -> bytes:
    """The size of a chunk; chunks with their checksums; the last one with that of everything."""
    out, at = bytearray(struct.pack("!I", chunk)), 0
    while at + chunk <= len(data):
        piece, at = data[at : at + chunk], at + chunk
        out += piece + struct.pack("!I", crc32c(piece))
    return bytes(out + data[at:] + struct.pack("!I", crc32c(data)))


def unframed(raw: bytes) -> bytes:
    if not raw:
        return b""
    (chunk,), rest, out, whole = struct.unpack("!I", raw[:4]), raw[4:], b"", 0
    while len(rest) >= chunk + 4:
        piece, (check,) = rest[:chunk], struct.unpack("!I", rest[chunk : chunk + 4])
        assert crc32c(piece) == check
        out, rest, whole = out + piece, rest[chunk + 4 :], crc32c(piece, whole)
    assert struct.unpack("!I", rest[-4:]) == (crc32c(rest[:-4], whole),)
    return out + rest[:-4]


@dataclass
class Column:
    name: str
    kind: str
    required: bool = False

    @property
    def arrow(self) -> pa.DataType:
        found = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", self.kind)
        return pa.decimal128(int(found[1]), int(found[2])) if found else _TYPES[self.kind]

    @property
    def described(self) -> dict[str, Any]:
        return {"name": self.name, "type": self.kind.lower(), "isNullable": not self.required, "comment": ""}


@dataclass
class Table:
    columns: list[Column]
    keys: list[str] = field(default_factory=list)
    rows: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    """By partition; that of a table without any is empty."""
    view: bool = False

    @property
    def wire(self) -> pa.Schema:
        return pa.schema([(each.name, each.arrow) for each in self.columns])

    @property
    def described(self) -> dict[str, Any]:
        keys = [{"name": each, "type": "string", "isNullable": True, "comment": ""} for each in self.keys]
        return {"columns": [each.described for each in self.columns], "partitionKeys": keys, "isVirtualView": self.view}


class Project:
    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.statements: list[str] = []
        self.requests: list[str] = []
        self.downloads: dict[str, tuple[Table, list[pa.RecordBatch]]] = {}
        self.uploads: dict[str, tuple[Table, str, dict[int, bytes]]] = {}
        self.columns_read: list[str] = []
        self.trouble: Callable[[str, str, dict[str, str]], tuple[int, bytes, dict[str, str]] | None] = lambda *_: None
        self.cut = False
        """A download ends in its middle."""
        self.gate: threading.Event | None = None
        """A download waits for it after its first chunk."""
        self.port = 0

    def put(
        self, name: str, *batches: pa.RecordBatch, kinds: Sequence[tuple[str, str]], keys: Sequence[str] = ()
    ) -> Table:
        table = Table([Column(*each) for each in kinds], list(keys))
        table.rows[""] = [each.cast(table.wire) for each in batches]
        self.tables[name] = table
        return table

    def execute(self, statement: str) -> None:
        self.statements.append(statement)
        if found := re.fullmatch(r"CREATE TABLE `(\w+)` \((.*?)\)(?: PARTITIONED BY \((.*)\))?;?", statement):
            columns = [
                Column(each[1].lower(), each[2], bool(each[3]))
                for each in re.finditer(r"`([^`]+)` ([A-Z_]+(?:\(\d+,\d+\))?)( NOT NULL)?", found[2])
            ]
            assert columns and found[1] not in self.tables
            keys = re.findall(r"`(\w+)` STRING", found[3] or "")
            self.tables[found[1].lower()] = Table(columns, keys, {} if keys else {"": []})
        elif found := re.fullmatch(r"ALTER TABLE `(\w+)` RENAME TO `(\w+)`;?", statement):
            assert found[2].lower() not in self.tables
            self.tables[found[2].lower()] = self.tables.pop(found[1].lower())
        elif found := re.fullmatch(r"DROP TABLE (IF EXISTS )?`(\w+)`;?", statement):
            if self.tables.pop(found[2].lower(), None) is None and not found[1]:
                raise KeyError(found[2])
        elif found := re.fullmatch(r"ALTER TABLE `(\w+)` DROP IF EXISTS PARTITION \(`(\w+)`='([^']*)'\);?", statement):
            self.tables[found[1].lower()].rows.pop(f"{found[2]}={found[3]}", None)
        else:
            raise KeyError(statement)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    project: Project

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, status: int, body: bytes | str = b"", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"x-odps-request-id": "r1", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        words = f"<Error><Code>{code}</Code><Message>rows of alice: 4711</Message><RequestId>r</RequestId><HostId>h</HostId></Error>"
        self._answer(status, words)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        out = b""
        while size := int(self.rfile.readline(), 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def _signed(self, path: str, query: dict[str, str]) -> bool:
        """The documented string to sign: method, signed headers in order, resource with its parameters in order."""
        given = {name.lower(): value for name, value in self.headers.items()}
        signed = {"content-md5": "", "content-type": "", **{n: v for n, v in given.items() if n.startswith("x-odps-")}}
        signed |= {name: given[name] for name in ("content-md5", "content-type", "date") if name in given}
        lines = [self.command, *(f"{n}:{v}" if n.startswith("x-odps-") else v for n, v in sorted(signed.items()))]
        parameters = "&".join(f"{name}={value}" if value else name for name, value in sorted(query.items()))
        text = "\n".join([*lines, f"{path}?{parameters}" if parameters else path])
        right = base64.b64encode(hmac.new(KEY.encode(), text.encode(), hashlib.sha1).digest()).decode()
        return given.get("authorization") == f"ODPS {ID}:{right}"

    def _serve(self) -> None:
        url, project = urlsplit(self.path), self.project
        path, query = unquote(url.path), dict(parse_qsl(url.query, True))
        body = self._body()
        project.requests.append(f"{self.command} {self.path}")
        if trouble := project.trouble(self.command, path, query):
            self._answer(trouble[0], trouble[1], **trouble[2])
        elif not self._signed(path.removeprefix("/api"), query):
            self._refuse(401, "Unauthorized")
        elif path.startswith("/api/projects/shop/instances"):
            self._instances(path, query, body)
        elif path == "/api/projects/shop/tunnel":
            self._answer(200, f"127.0.0.1:{project.port}")
        elif found := re.fullmatch(r"(/api)?/projects/shop/tables/(\w+)", path):
            table = project.tables.get(found[2].lower())
            if table is None:
                self._refuse(404, "NoSuchTable" if not found[1] else "NoSuchObject")
            elif found[1]:
                self._metadata(found[2], table, query)
            else:
                self._tunnel(table, query, body)
        else:
            self._refuse(404, "NoSuchObject")

    do_GET = do_POST = do_PUT = _serve

    def _metadata(self, name: str, table: Table, query: dict[str, str]) -> None:
        if "partitions" in query:
            parts = (
                f'<Partition><Column Name="{k}" Value="{v}"/></Partition>'
                for k, v in (p.split("=") for p in table.rows if p)
            )
            self._answer(200, f"<Partitions>{''.join(parts)}</Partitions>")
        else:
            self._answer(
                200, f"<Table><Name>{name}</Name><Schema><![CDATA[{json.dumps(table.described)}]]></Schema></Table>"
            )

    def _instances(self, path: str, query: dict[str, str], body: bytes) -> None:
        if self.command == "POST":
            statement = ElementTree.fromstring(body).findtext(".//Query") or ""
            try:
                self.project.execute(statement)
            except KeyError:
                return self._refuse(400, "ODPS-0130161")
            return self._answer(201, Location=f"http://127.0.0.1:{self.project.port}{path}/i1")
        tasks = '<Tasks><Task Type="SQL"><Name>AnonymousSQLTask</Name><Status>Success</Status></Task></Tasks>'
        return self._answer(200, f"<Instance><Status>Terminated</Status>{tasks}</Instance>")

    def _tunnel(self, table: Table, query: dict[str, str], body: bytes) -> None:
        project, partition = self.project, query.get("partition", "")
        if "downloads" in query:
            if table.keys and partition not in table.rows:
                return self._refuse(404, "NoSuchPartition")
            name = f"d{len(project.downloads)}"
            project.downloads[name] = (table, list(table.rows.get(partition, [])))
            return self._download_session(name)
        if "downloadid" in query and "data" not in query:
            return self._download_session(query["downloadid"])
        if "downloadid" in query:
            return self._download(query)
        if "uploads" in query:
            assert query["overwrite"] == "true" and bool(table.keys) == bool(partition)
            name = f"u{len(project.uploads)}"
            project.uploads[name] = (table, partition, {})
            return self._upload_session(name)
        _, where, blocks = project.uploads[query["uploadid"]]
        if self.command == "PUT":
            blocks[int(query["blockid"])] = unframed(body)
        elif self.command == "POST":
            table.rows[where] = [batch for _, data in sorted(blocks.items()) for batch in _batches(data, table.wire)]
        return self._upload_session(query["uploadid"])

    def _download_session(self, name: str) -> None:
        table, batches = self.project.downloads[name]
        count = sum(each.num_rows for each in batches)
        said = {"DownloadID": name, "Status": "normal", "RecordCount": count, "Schema": table.described}
        self._answer(200, json.dumps(said))

    def _upload_session(self, name: str) -> None:
        table, _, blocks = self.project.uploads[name]
        listed = [{"BlockID": each} for each in blocks]
        said = {"UploadID": name, "Status": "normal", "UploadedBlockList": listed, "Schema": table.described}
        self._answer(200, json.dumps(said))

    def _download(self, query: dict[str, str]) -> None:
        table, batches = self.project.downloads[query["downloadid"]]
        assert "arrow" in query
        start, count = (int(each) for each in query["rowrange"].strip("()").split(","))
        self.project.columns_read.append(query["columns"])
        asked = query["columns"].lower().split(",")
        names = [each.name for each in table.columns if each.name in asked]
        whole = pa.Table.from_batches(batches, schema=table.wire).slice(start, count).select(names)
        data = framed(b"".join(each.serialize().to_pybytes() for each in whole.to_batches(max_chunksize=1000)), 4096)
        if self.project.cut:
            data = data[: 4 + (len(data) // 2) // 4100 * 4100]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(data), 4096):
            self.wfile.write(f"{len(data[at : at + 4096]):x}\r\n".encode() + data[at : at + 4096] + b"\r\n")
            if at == 0 and self.project.gate is not None:
                self.wfile.flush()
                self.project.gate.wait(20)
        self.wfile.write(b"0\r\n\r\n")


def _batches(data: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Messages one after the other, without the schema that would begin a stream."""
    stream = pa.BufferReader(schema.serialize().to_pybytes() + data)
    return list(pa.ipc.open_stream(stream)) if data else []


@contextmanager
def odps_server(context: ssl.SSLContext | None = None) -> Iterator[Project]:
    project = Project()
    handler = type("Handler", (_Handler,), {"project": project})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients leave
    project.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield project
    finally:
        if project.gate is not None:
            project.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
