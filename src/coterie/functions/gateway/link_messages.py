"""What goes over a link, one JSON message in each frame of a WebSocket.

functions process                     gateway
  RouteTable            ──────>
                        <──────       CallSent          a call, until it is accepted; again after the link broke
  CallAccepted          ──────>                         it is on the bus
  CallNotAccepted           ──────>
  AnswerArrived         ──────>                         from the return topic, by offset; unknown ones are dropped
                        <──────       AnswerReceived    up to this offset
                        <──────       PartTaken         the client has taken this part of a streamed answer
                        <──────       CallQuery         of `GET /calls/ID`
  CallState             ──────>
                        <──────       RecordSent        for a topic that a Trigger reads
  RecordWritten         ──────>                         it is on the bus, or why not
  LinkAlive             <─────>
"""

from __future__ import annotations

import msgspec

from coterie.functions.messages import FunctionResponse, Invoke

LINK_PATH = "/link"
MAX_MESSAGE = 32 << 20
"""More than a value of the bus may have: a message that were too large would break the link again and again."""
ALIVE_SECONDS = 5.0
SILENT_SECONDS = 20.0
"""Without a message for so long a link counts as broken."""
DONE, PENDING, UNKNOWN = "done", "pending", "unknown"
NO_OFFSET = -1


class TriggerRoute(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    action: str
    methods: tuple[str, ...] = ()
    """Empty: all."""
    key: str = ""
    """The query parameter whose value orders calls."""


class GatewayLinkMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class RouteTable(GatewayLinkMessage, frozen=True, kw_only=True, tag="routes"):
    routes: list[TriggerRoute]


class CallAccepted(GatewayLinkMessage, frozen=True, kw_only=True, tag="accepted"):
    uid: str
    repeated: bool = False
    """It was accepted before, perhaps from another gateway: its answer comes over this link only as long as this link lives."""


class CallNotAccepted(GatewayLinkMessage, frozen=True, kw_only=True, tag="refused"):
    uid: str
    status: int
    message: str


class AnswerArrived(GatewayLinkMessage, frozen=True, kw_only=True, tag="answer"):
    response: FunctionResponse
    offset: int = NO_OFFSET


class RawAnswer(GatewayLinkMessage, frozen=True, kw_only=True, tag="answer"):
    """An AnswerArrived whose response is passed on as it is on the bus."""

    response: msgspec.Raw
    offset: int = NO_OFFSET


class CallState(GatewayLinkMessage, frozen=True, kw_only=True, tag="state"):
    query: int
    state: str
    response: FunctionResponse | None = None


class RecordWritten(GatewayLinkMessage, frozen=True, kw_only=True, tag="written"):
    query: int
    status: int = 200
    message: str = ""
    partition: int = 0
    offset: int = 0


class LinkAlive(GatewayLinkMessage, frozen=True, kw_only=True, tag="alive"):
    pass


class CallSent(GatewayLinkMessage, frozen=True, kw_only=True, tag="call"):
    invoke: Invoke
    wait: bool = True
    """Somebody waits for the answer; else it is kept as a result only."""
    repeated: bool = False
    """It may have been sent before."""


class AnswerReceived(GatewayLinkMessage, frozen=True, kw_only=True, tag="received"):
    offset: int


class PartTaken(GatewayLinkMessage, frozen=True, kw_only=True, tag="taken"):
    uid: str
    part: int


class CallQuery(GatewayLinkMessage, frozen=True, kw_only=True, tag="query"):
    query: int
    uid: str


class RecordSent(GatewayLinkMessage, frozen=True, kw_only=True, tag="record"):
    query: int
    topic: str
    key: str
    value: bytes


ToGateway = RouteTable | CallAccepted | CallNotAccepted | AnswerArrived | CallState | RecordWritten | LinkAlive
FromGateway = CallSent | AnswerReceived | PartTaken | CallQuery | RecordSent | LinkAlive

encode_message = msgspec.json.Encoder().encode
decode_to_gateway = msgspec.json.Decoder(ToGateway).decode
decode_from_gateway = msgspec.json.Decoder(FromGateway).decode
