"""One request and its response as they pass a gateway on an encrypted route: what Envoy tells and what it is answered.

    Side.CALL    at the caller's gateway     request is sealed, response is opened
    Side.SERVE   at the service's gateway    request is opened, response is sealed

No input or output here: `react(event)` answers the messages for Envoy. Whatever cannot be verified ends the exchange
with a refusal; there is no way through in clear.

A response that comes without encryption was not written by the partner's service but by some gateway on the way that has
no key (or was refused before the key mattered). A success is not believed. Of an error status and headers pass, since the
caller wants to know what went wrong and they are no more than hints anyway; its body is replaced by a sentence of ours.

A route may ask for Kuscia's format (kuscia_format.py): then we send that, and take both. There a response that has no body is
not encrypted, so its status and headers are believed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.crypt.announcement import HEADERS, Announcement, Headers, is_number, one
from coterie.kuscia.gateway.crypt.frames import SALT_BYTES, TAG_BYTES, Direction, FrameError, Opener, Sealer, derive
from coterie.kuscia.gateway.crypt.keys import RouteKeys
from coterie.kuscia.gateway.crypt.kuscia_format import (
    NONCE_BYTES,
    KusciaOpener,
    KusciaSealer,
    TooMuchHeld,
    encoded_nonce,
    key_of,
    read_headers,
)
from coterie.kuscia.gateway.crypt.messages import (
    MessagePart,
    ProcessingEvent,
    body_reply,
    headers_reply,
    immediate_reply,
    trailers_reply,
)
from coterie.kuscia.gateway.names import ENCRYPT_IV, ENCRYPT_LENGTH, ENCRYPT_SCHEME, ENCRYPT_VERSION, ERROR, ORIGIN

_STATUS, _GRPC_STATUS, _METHOD, _LENGTH = ":status", "grpc-status", ":method", "content-length"
LOOKED_AT = (*HEADERS, _STATUS, _GRPC_STATUS, _METHOD, _LENGTH)
"""The headers that are needed to decide; Envoy need not send others."""
_LEFT_OUT = "A gateway on the way answered without encryption; its text is not passed on.\n"
_ROUTE_PREFIX = "crypt"
# What nobody but us may say to what comes after us.
_NEVER_PASSED = (*HEADERS, ENCRYPT_LENGTH)
KeySource = Callable[[str, str], RouteKeys | None]


class RouteSide(StrEnum):
    CALL = "call"
    SERVE = "serve"


class ExchangeRefused(Exception):
    """The exchange ends here; the message is for whoever called."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RouteEnd:
    """Which route, and at which of its ends. Travels as the name of Envoy's route."""

    side: RouteSide
    source: str
    destination: str

    @property
    def name(self) -> str:
        return "/".join((_ROUTE_PREFIX, self.side, self.source, self.destination))

    @classmethod
    def parse(cls, name: str) -> RouteEnd:
        """Refused when Envoy sends something here that was never meant for us."""
        parts = name.split("/")
        if len(parts) != 4 or parts[0] != _ROUTE_PREFIX or parts[1] not in tuple(RouteSide):
            raise ExchangeRefused(503, f"body encryption does not know the route {name!r}")
        return cls(RouteSide(parts[1]), parts[2], parts[3])


@dataclass(frozen=True, slots=True)
class _Session:
    """What both directions of one exchange share."""

    place: RouteEnd
    revision: int
    token: SecretValue
    request_salt: bytes
    head: bool = False
    """A HEAD request: its response tells a length and has no body."""
    kuscia_format: bool = False
    """`request_salt` is then the nonce of both directions."""

    @property
    def kuscia_key(self) -> tuple[bytes, bytes]:
        return key_of(self.token), self.request_salt

    def key(self, direction: Direction, salt: bytes, length: str) -> bytes:
        place = self.place
        whole = salt if direction is Direction.REQUEST else self.request_salt + salt
        return derive(self.token, direction, place.source, place.destination, self.revision, whole, length=length)


@dataclass(slots=True)
class _Opening:
    """A message that is being decrypted; the length that was announced is held to, since others rely on it."""

    opener: Opener | KusciaOpener
    left: int | None = None

    def open(self, event: ProcessingEvent) -> list[bytes]:
        pieces = self.opener.open(event.body)
        if event.end:
            pieces += self.opener.finish() or ()
        if self.left is not None:
            self.left -= sum(map(len, pieces))
            if self.left < 0:
                raise FrameError("the body is longer than its sender said")
        if event.end and self.left:
            raise FrameError("the body is shorter than its sender said")
        return pieces


_Cipher = Sealer | KusciaSealer | _Opening


class Exchange:
    def __init__(self, keys: KeySource, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._keys = keys
        self._random = random
        self._session: _Session | None = None
        self._request: _Cipher | None = None
        self._response: _Cipher | None = None
        self._response_left_out = False
        self.over = False
        """A refusal was sent; Envoy will not listen any more."""

    def react(self, event: ProcessingEvent) -> list[bytes]:
        if self.over:
            return []
        try:
            match event.part:
                case MessagePart.REQUEST_HEADERS:
                    return [self._request_headers(event)]
                case MessagePart.RESPONSE_HEADERS:
                    return [self._response_headers(event)]
                case MessagePart.REQUEST_BODY | MessagePart.REQUEST_TRAILERS:
                    return _body(event, MessagePart.REQUEST_BODY, self._request)
                case _:
                    if self._response_left_out:
                        return self._left_out(event)
                    return _body(event, MessagePart.RESPONSE_BODY, self._response)
        except ExchangeRefused as refusal:
            return [self._refusal(refusal.status, str(refusal))]
        except TooMuchHeld:
            return [self._refusal(503, "body encryption: too many bodies in Kuscia's format at a time; try again")]
        except FrameError as error:
            ours = event.part in (MessagePart.REQUEST_HEADERS, MessagePart.REQUEST_BODY, MessagePart.REQUEST_TRAILERS)
            return [self._refusal(400 if ours else 502, f"body encryption: {error}")]

    def _refusal(self, status: int, message: str) -> bytes:
        self.over = True
        self._request = self._response = None  # and what they hold
        return immediate_reply(status, {ERROR: message}, message + "\n", "body_encryption_refused")

    # ---- request ----

    def _request_headers(self, event: ProcessingEvent) -> bytes:
        place = RouteEnd.parse(event.route)
        keys = self._keys(place.source, place.destination)
        if keys is None or keys.newest is None:
            raise ExchangeRefused(
                503, f"route {place.source}-{place.destination}: no token to encrypt with has been agreed on"
            )
        if place.side is RouteSide.CALL:
            revision, token = keys.newest
            head = one(event.headers or {}, _METHOD) == "HEAD"
            salt = self._random(NONCE_BYTES if keys.kuscia_format else SALT_BYTES)
            self._session = _Session(place, revision, token, salt, head, keys.kuscia_format)
            if keys.kuscia_format:
                return self._seal_for_kuscia(event)
            return self._seal_from(event, Direction.REQUEST, self._session.request_salt)
        self._session = _session_of(place, keys, event.headers or {})
        open_ = _open_from_kuscia if self._session.kuscia_format else _open_from
        self._request, reply = open_(self._session, event, Direction.REQUEST)
        return reply

    # ---- response ----

    def _response_headers(self, event: ProcessingEvent) -> bytes:
        session, headers = self._session, event.headers or {}
        if session is None:
            # Envoy itself answers before the request came as far as us: there is nothing of a service in it.
            return headers_reply(event.part, removed=_NEVER_PASSED)
        if session.place.side is RouteSide.SERVE:
            if session.kuscia_format:
                return self._seal_for_kuscia(event)
            return self._seal_from(event, Direction.RESPONSE, self._random(SALT_BYTES))
        if session.kuscia_format and (event.end or ENCRYPT_VERSION in headers):
            self._response, reply = _open_from_kuscia(session, event, Direction.RESPONSE)
            return reply
        if session.kuscia_format or ENCRYPT_SCHEME not in headers:
            return self._without_encryption(event, headers)
        self._response, reply = _open_from(session, event, Direction.RESPONSE)
        return reply

    def _without_encryption(self, event: ProcessingEvent, headers: Headers) -> bytes:
        failed_call = event.end and one(headers, _GRPC_STATUS) not in ("", "0")
        status = one(headers, _STATUS)
        if not failed_call and not (status.isdigit() and int(status) >= 400):
            raise ExchangeRefused(502, "body encryption: the response came in clear, so it is not the partner's")
        self._response_left_out = not event.end
        return headers_reply(event.part, removed=_NEVER_PASSED)

    def _left_out(self, event: ProcessingEvent) -> list[bytes]:
        if event.part is MessagePart.RESPONSE_TRAILERS:
            return [body_reply(MessagePart.RESPONSE_BODY, _LEFT_OUT.encode(), end=False), trailers_reply(event.part)]
        return [body_reply(event.part, _LEFT_OUT.encode(), end=True)] if event.end else []

    # ---- both ----

    def _seal_for_kuscia(self, event: ProcessingEvent) -> bytes:
        """A request says which key and nonce it has, with or without a body; a response only if it has one."""
        assert self._session is not None
        session = self._session
        request = event.part is MessagePart.REQUEST_HEADERS
        if not event.end:
            sealer = KusciaSealer(*session.kuscia_key)
            if request:
                self._request = sealer
            else:
                self._response = sealer
        announced = {ENCRYPT_VERSION: str(session.revision)} if request or not event.end else {}
        if request:
            announced[ENCRYPT_IV] = encoded_nonce(session.request_salt)
        elif not event.end:
            announced[ORIGIN] = session.place.source
        return headers_reply(event.part, announced, removed=[each for each in _NEVER_PASSED if each not in announced])

    def _seal_from(self, event: ProcessingEvent, direction: Direction, salt: bytes) -> bytes:
        assert self._session is not None
        session = self._session
        length = one(event.headers or {}, _LENGTH)
        if not is_number(length) or (event.end and not session.head):
            length = ""
        sealer = Sealer(session.key(direction, salt, length))
        proof = sealer.proof_of_empty() if event.end else None
        if direction is Direction.REQUEST:
            self._request = sealer
        else:
            self._response = sealer
        announcement = Announcement(session.revision, salt, length, proof)
        return headers_reply(event.part, announcement.headers, removed=(ENCRYPT_LENGTH,))


def _body(event: ProcessingEvent, part: MessagePart, cipher: _Cipher | None) -> list[bytes]:
    """Body or trailers. Trailers pass as they are, after the end of the body."""
    trailers = event.part is not part
    if isinstance(cipher, Sealer | KusciaSealer):
        pieces = [cipher.seal(event.body, last=event.end)]
    elif isinstance(cipher, _Opening):
        pieces = cipher.open(event)
    else:
        pieces = [bytes(event.body)]  # an answer of our own Envoy, see _response_headers
    made = [body_reply(part, piece, end=False) for piece in pieces if piece]
    if trailers:
        return [*made, trailers_reply(event.part)]
    if event.end:
        made = made[:-1]
        made.append(body_reply(part, pieces[-1] if pieces else b"", end=True))
    return made


def _open_from(session: _Session, event: ProcessingEvent, direction: Direction) -> tuple[_Opening, bytes]:
    """A message that ends with its headers must bring the proof that it was meant to; so may one whose body, empty from
    the start, was made a body of no bytes by somebody on the way."""
    announcement = Announcement.read(event.headers or {})
    if announcement.revision != session.revision:
        raise FrameError("the response is encrypted with another token than the request")
    opener = Opener(session.key(direction, announcement.salt, announcement.length))
    empty = announcement.proof is not None
    if announcement.proof is not None:
        opener.accept_empty(announcement.proof)
    elif event.end:
        raise FrameError("the encrypted body was cut off")
    # A response to HEAD tells a length without having it. Of anybody else who did so the next message on the same
    # connection would be taken for this one's body.
    to_head = direction is Direction.RESPONSE and session.head
    length_header = {ENCRYPT_LENGTH: announcement.length} if announcement.length and (to_head or not empty) else {}
    left = int(announcement.length) if announcement.length and not empty else None
    return _Opening(opener, left), headers_reply(
        event.part, length_header, [each for each in _NEVER_PASSED if each not in length_header]
    )


def _open_from_kuscia(session: _Session, event: ProcessingEvent, direction: Direction) -> tuple[_Opening | None, bytes]:
    """What ends with its headers is not encrypted: there is nothing to verify."""
    headers = event.headers or {}
    length = one(headers, _LENGTH)
    to_head = direction is Direction.RESPONSE and session.head
    if direction is Direction.RESPONSE and not event.end and one(headers, ENCRYPT_VERSION) != str(session.revision):
        raise FrameError("the response is encrypted with another token than the request")
    left = int(length) - TAG_BYTES if is_number(length) and not event.end else None
    if left is not None and left < 0:
        raise FrameError("the encrypted body was cut off")
    known = {ENCRYPT_LENGTH: str(left)} if left is not None else {}
    if event.end and to_head and is_number(length):
        known = {ENCRYPT_LENGTH: length}
    removed = [
        each for each in (*_NEVER_PASSED, *((ORIGIN,) if direction is Direction.RESPONSE else ())) if each not in known
    ]
    opening = None if event.end else _Opening(KusciaOpener(*session.kuscia_key, session.place.name), left)
    return opening, headers_reply(event.part, known, removed)


def _session_of(place: RouteEnd, keys: RouteKeys, headers: Headers) -> _Session:
    if ENCRYPT_SCHEME not in headers:
        if keys.kuscia_format and ENCRYPT_VERSION in headers:
            revision, nonce = read_headers(headers)
            head = one(headers, _METHOD) == "HEAD"
            return _Session(place, revision, _token(keys, revision), nonce, head, kuscia_format=True)
        if ENCRYPT_IV in headers or ENCRYPT_VERSION in headers:
            raise ExchangeRefused(
                400,
                "body encryption: Kuscia's own format is not accepted, since its response has to be encrypted with key and "
                "nonce of the request; let both domains run Coterie, leave bodyEncryption away and use TLS, or accept the "
                "weakness (annotation coterie.io/kuscia-wire: body-encryption)",
            )
        raise ExchangeRefused(403, f"body encryption: {place.source} must encrypt what it sends here and did not")
    announcement = Announcement.read(headers)
    token = _token(keys, announcement.revision)
    return _Session(place, announcement.revision, token, announcement.salt, head=one(headers, _METHOD) == "HEAD")


def _token(keys: RouteKeys, revision: int) -> SecretValue:
    token = keys.of_revision(revision)
    if token is None:
        raise ExchangeRefused(400, f"body encryption: no token of revision {revision} is in force")
    return token
