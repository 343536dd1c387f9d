"""Objects in short, and a small client for the server's two ways of asking."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Sequence
from typing import Any

from coterie.kube.api.types.network import ENDPOINTS, SERVICES, Endpoints, Service
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.network.dns import wire
from coterie.kube.network.dns.model import DnsAnswer, DnsQuestion, RecordType, ResourceRecord, name_of, text_of

PATIENCE = 30.0


def service(name: str, namespace: str = "alice", *, labels: dict[str, str] | None = None, **spec: Any) -> Service:
    body = {"metadata": {"name": name, "namespace": namespace, "labels": labels or {}}, "spec": spec}
    return SERVICES.decode(SERVICES.as_dynamic.encode(body))


def endpoints(
    name: str,
    *ips: str,
    ports: Sequence[Any] = (),
    hostname: str = "",
    waiting: Sequence[str] = (),
    namespace: str = "alice",
) -> Endpoints:
    subset = {
        "addresses": [{"ip": ip} | ({"hostname": hostname} if hostname else {}) for ip in ips],
        "notReadyAddresses": [{"ip": ip} for ip in waiting],
        "ports": list(ports),
    }
    return ENDPOINTS.decode(
        ENDPOINTS.as_dynamic.encode({"metadata": {"name": name, "namespace": namespace}, "subsets": [subset]})
    )


def pod(
    name: str, ip: str, *, phase: str = "Running", deleting: bool = False, namespace: str = "alice", **spec: Any
) -> Pod:
    meta = {"name": name, "namespace": namespace} | ({"deletionTimestamp": "2026-01-02T03:04:05Z"} if deleting else {})
    return PODS.decode(
        PODS.as_dynamic.encode({"metadata": meta, "spec": spec, "status": {"phase": phase, "podIP": ip}})
    )


def packet(
    name: str, type_: int = RecordType.A, *, id_: int = 7, edns: int = 0, klass: int = 1, flags: int = 0x0100
) -> bytes:
    question = b"".join(bytes((len(label),)) + label.encode() for label in name.rstrip(".").split(".") if label)
    opt = b"\0" + struct.pack("!HHIH", RecordType.OPT, edns, 0, 0) if edns else b""
    return (
        struct.pack("!6H", id_, flags, 1, 0, 0, 1 if edns else 0)
        + question
        + b"\0"
        + struct.pack("!HH", type_, klass)
        + opt
    )


def shown(record: ResourceRecord) -> str:
    """`A 10.0.0.1`, `CNAME db.example`, `SRV 8080 web-0.web.alice.svc`, `SOA svc`."""
    kind = RecordType(record.type).name
    if record.type in (RecordType.A, RecordType.AAAA):
        return f"{kind} {ipaddress.ip_address(record.data)}"
    if record.type in (RecordType.CNAME, RecordType.PTR):
        return f"{kind} {_name(record.data)}"
    if record.type == RecordType.TXT:
        return f"TXT {record.data[1:].decode()}"
    if record.type == RecordType.SRV:
        return f"SRV {int.from_bytes(record.data[4:6], 'big')} {_name(record.data[6:])}"
    return f"{kind} {text_of(record.name)}"


def _name(data: bytes) -> str:
    labels, at = [], 0
    while data[at]:
        labels.append(data[at + 1 : at + 1 + data[at]].decode())
        at += 1 + data[at]
    return ".".join(labels)


def question(name: str, type_: int = RecordType.A) -> DnsQuestion:
    return DnsQuestion(name_of(name), type_)


async def ask_udp(port: int, data: bytes, *, host: str = "127.0.0.1", source: str = "127.0.0.1") -> bytes:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind((source, 0))
        await loop.sock_sendto(sock, data, (host, port))
        async with asyncio.timeout(PATIENCE):
            return await loop.sock_recv(sock, 65535)


async def ask_tcp(port: int, *queries: bytes) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            for data in queries:
                writer.write(len(data).to_bytes(2, "big") + data)
            return [await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big")) for _ in queries]
    finally:
        writer.close()
        await writer.wait_closed()


def listed(data: bytes) -> list[str]:
    return [shown(record) for record in wire.read_reply(data).answers]


class Upstream(asyncio.DatagramProtocol):
    """Another name server, as a function from a question to what it says; None: silence."""

    def __init__(self, says: Any) -> None:
        self.says = says
        self.asked: list[str] = []
        self.port = 0
        self._transport: Any = None
        self._server: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        out = self._answer(data, wire.UDP_SIZE)
        for each in out:
            self._transport.sendto(each, addr)

    def _answer(self, data: bytes, limit: int) -> list[bytes]:
        query = wire.read_query(data)
        self.asked.append(text_of(query.question.name))
        said = self.says(query)
        if said is None:
            return []
        if isinstance(said, list):
            return said
        assert isinstance(said, DnsAnswer)
        return [wire.write_answer(query, said, limit)]

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        for out in self._answer(data, wire.TCP_SIZE):
            writer.write(len(out).to_bytes(2, "big") + out)
        writer.close()

    async def __aenter__(self) -> Upstream:
        loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", self.port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()
        self._server.close()
        await self._server.wait_closed()
