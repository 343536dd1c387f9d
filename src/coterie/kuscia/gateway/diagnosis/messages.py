"""What is said at the diagnostic endpoint `diagnose.<domain>.svc`: Kuscia's two calls, and ours. Pure.

Kuscia's   GET  /diagnose/v1/network/healthy     it answers
           POST /diagnose/v1/network/mock        answer so many bytes, so late, in so many chunks (protobuf)
ours       GET  /diagnose/v1/coterie/hello       version, clock, and how the call arrived here
           POST /diagnose/v1/coterie/upload      counts the body and drops it
           POST /diagnose/v1/coterie/facts       engines and capacity, of what is asked for by name
           POST /diagnose/v1/coterie/reverse     measures the link back to the caller
           POST /diagnose/v1/coterie/announce    the caller examines links between its partners under this number
           GET  /diagnose/v1/coterie/confirm     whether that number was announced here
           POST /diagnose/v1/coterie/pair        measures the link to a third domain that confirms the number
"""

from __future__ import annotations

import re

import msgspec

from coterie.base.protobuf_wire import LENGTH, ProtobufError, bytes_field, encode_varint, fields, tag, varint_field
from coterie.kuscia.gateway.names import DIAGNOSE_SERVICE

SERVICE = DIAGNOSE_SERVICE
PREFIX = "/diagnose/v1/"
_KUSCIA = f"{PREFIX}network"
HEALTHY, MOCK = f"{_KUSCIA}/healthy", f"{_KUSCIA}/mock"
_OWN = f"{PREFIX}coterie"
HELLO, UPLOAD, FACTS, REVERSE = f"{_OWN}/hello", f"{_OWN}/upload", f"{_OWN}/facts", f"{_OWN}/reverse"
ANNOUNCE, CONFIRM, PAIR = f"{_OWN}/announce", f"{_OWN}/confirm", f"{_OWN}/pair"
GRPC_METHOD = "/coterie.Diagnose/Echo"

CHUNK_BYTES = 512
CHUNK_SECONDS = 0.05
CHUNKS = 20
MOST_ARRIVALS = 64
"""Times of arrival of a body that are reported."""
MOST_NAMES = 16
_MILLION = 1_000_000
_NUMBER = re.compile(r"[0-9a-f]{32}")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


class MockRequest(msgspec.Struct, frozen=True):
    """Kuscia's. Times are in milliseconds."""

    size: int = 0
    duration: int = 0
    chunked: bool = False
    chunk_size: int = 0
    interval: int = 0

    def encode(self, data: bytes = b"") -> bytes:
        numbers = (self.size, self.duration, int(self.chunked), self.chunk_size, self.interval)
        head = b"".join(varint_field(number, value) for number, value in enumerate(numbers, 1) if value)
        return head + (bytes_field(6, data) if data else b"")


def decode_mock(begin: bytes) -> MockRequest:
    """From the first bytes of a request: the numbers stand before the data, which may be left out here."""
    found = [0] * 6
    try:
        for number, _, value in fields(memoryview(begin)):
            if 1 <= number <= 5 and isinstance(value, int):
                found[number] = min(value, _MILLION * _MILLION)
    except ProtobufError:
        pass  # the data reaches beyond what was kept; anything else is refused by nobody, as Kuscia does
    return MockRequest(found[1], found[2], bool(found[3]), found[4], found[5])


def mock_head(size: int) -> bytes:
    """A MockResponse (`status.code` 200) up to its data of so many bytes, which follow."""
    status = bytes_field(1, varint_field(1, 200))
    return status + (tag(2, LENGTH) + encode_varint(size) if size else b"")


class Hello(msgspec.Struct, frozen=True, rename="camel"):
    version: str = ""
    now: float = 0.0
    """Seconds since 1970."""
    source: str = ""
    """Whom the endpoint takes the caller for."""
    protocol: str = ""
    """In which the call arrived at the gateway of the endpoint: HTTP/1.1 or HTTP/2."""
    fingerprint: str = ""
    """Of the client certificate with which it arrived; empty without TLS."""


class Upload(msgspec.Struct, frozen=True, rename="camel"):
    bytes: int = 0
    seconds: float = 0.0
    """From the first piece of the body to the last."""


class ProbePlan(msgspec.Struct, frozen=True, rename="camel"):
    """What is measured; whoever measures for somebody else uses `bounded`."""

    grpc: bool = True
    buffering: bool = True
    body_bytes: int = 16 << 20
    """The largest request body that is tried; 0: none."""
    bandwidth_bytes: int = 8 << 20
    """How much is read to measure the rate; 0: nothing."""
    idle_seconds: float = 0.0
    """How long an answer is held back; 0: not tried."""

    def bounded(self) -> ProbePlan:
        return ProbePlan(
            self.grpc,
            self.buffering,
            max(0, min(self.body_bytes, 16 << 20)),
            max(0, min(self.bandwidth_bytes, 16 << 20)),
            max(0.0, min(self.idle_seconds, 600.0)),
        )


class LinkReport(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one side found out about its link to another."""

    reached: bool = False
    """A gateway of the destination let the call pass."""
    endpoint: str = ""
    """`coterie` or `kuscia`; empty: the destination has no diagnostic endpoint, or does not open it."""
    status: int = 0
    problem: str = ""
    """Why it was not reached, or what the destination answers instead."""
    version: str = ""
    protocol: str = ""
    fingerprint: str = ""
    rtt_ms: float | None = None
    clock_offset: float | None = None
    """Seconds by which the destination is ahead."""
    grpc: bool | None = None
    grpc_streams: bool | None = None
    """Whether a message is answered while the call is still open."""
    grpc_problem: str = ""
    body_passed: int = 0
    body_refused: int = 0
    """The smallest body that did not get through; 0: all did."""
    body_problem: str = ""
    sent_bits_per_second: float | None = None
    received_bits_per_second: float | None = None
    chunks_apart: float | None = None
    """Seconds between the first and the last of chunks that were sent `CHUNK_SECONDS` apart."""
    buffering_problem: str = ""
    idle_held: float | None = None
    """Seconds for which an answer was held back and still arrived."""
    idle_cut: float | None = None
    """Seconds after which the waiting call was ended by somebody else."""
    idle_problem: str = ""


class ReverseRequest(msgspec.Struct, frozen=True, rename="camel"):
    plan: ProbePlan = ProbePlan()


class PairRequest(msgspec.Struct, frozen=True, rename="camel"):
    destination: str
    number: str
    plan: ProbePlan = ProbePlan()

    @property
    def valid(self) -> bool:
        return is_domain(self.destination) and is_number(self.number)


class PairAnnouncement(msgspec.Struct, frozen=True, rename="camel"):
    number: str


class ReverseAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """`report` is missing where the link could not be examined or must not be talked about."""

    report: LinkReport | None = None


class FactsRequest(msgspec.Struct, frozen=True, rename="camel"):
    app_images: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory: int = 0

    def bounded(self) -> FactsRequest:
        names = tuple(each[:253] for each in self.app_images[:MOST_NAMES] if each)
        return FactsRequest(names, max(0, self.cpu_milli), max(0, self.memory))


class EngineFacts(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    present: bool = False
    image: str = ""
    """With its tag."""
    id: str = ""


class PartyFacts(msgspec.Struct, frozen=True, rename="camel"):
    version: str = ""
    engines: tuple[EngineFacts, ...] = ()
    fits: bool | None = None
    """Whether what was asked for is free on one node now; None: unknown."""


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def is_domain(text: str) -> bool:
    return _DOMAIN.fullmatch(text) is not None
