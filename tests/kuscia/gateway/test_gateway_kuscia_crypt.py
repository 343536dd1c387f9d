"""Bodies in Kuscia's own format, on routes that ask for it: against an implementation of its own (kuscia_peer.py)."""

from __future__ import annotations

import base64
import contextlib
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from crypt_kit import ENCRYPTED, encrypting, mirror, with_crypt
from gateway_kit import HOSTS, make_inputs, route, running
from kuscia_peer import announced, damaged, gcm_open, gcm_seal, open_body, seal_body
from test_gateway_crypt_exchange import KEYS, OURS, End, Headers

from coterie.base.secret import SecretValue
from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.crypt import kuscia_format
from coterie.kuscia.gateway.crypt.exchange import RouteSide
from coterie.kuscia.gateway.crypt.keys import KeyTable, RouteKeys, read_keys, write_keys
from coterie.kuscia.gateway.crypt.messages import MessagePart
from coterie.kuscia.gateway.model import DomainService, RoutePort

TOKEN = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.b64encode(bytes(32)).decode()
WEAK = RouteKeys("alice", "bob", ((3, SecretValue(OTHER)), (4, SecretValue(TOKEN))), kuscia_format=True)
NONCE = b"twelve bytes"
REQUEST, RESPONSE = MessagePart.REQUEST_HEADERS, MessagePart.RESPONSE_HEADERS
PLAIN = b"a body of more than two blocks, for certain"


def headers(revision: int = 4, nonce: bytes = NONCE, **more: str) -> Headers:
    return {key: (value,) for key, value in (announced(revision, nonce) | more).items()}


def serving(given: Headers | None = None, *, end: bool = False, keys: RouteKeys = WEAK) -> tuple[End, Headers]:
    """Our end, after a request of Kuscia's began there."""
    bob = End(RouteSide.SERVE, keys)
    return bob, bob.headers(REQUEST, headers=headers() if given is None else given, end=end)


def calling(*, end: bool = False, nonce: bytes = b"") -> tuple[End, bytes]:
    """Our end, and the nonce of its request."""
    alice = End(RouteSide.CALL, WEAK)
    if nonce:
        alice.exchange._random = lambda size: nonce
    sent = alice.headers(REQUEST, headers={"accept": ("*/*",)}, end=end)
    assert sent["kuscia-encrypt-version"] == ("4",) and "x-coterie-encrypt" not in sent
    nonce = base64.b64decode(sent["kuscia-encrypt-iv"][0])
    assert len(nonce) == 12
    return alice, nonce


def test_the_other_implementation_is_aes_gcm() -> None:
    """Test case 3 of the GCM specification."""
    key, nonce = bytes.fromhex("feffe9928665731c6d6a8f9467308308"), bytes.fromhex("cafebabefacedbaddecaf888")
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
    )
    sealed = gcm_seal(key, nonce, plain)
    assert sealed.hex().endswith("1ba30b396a0aac973d58e091473f59854d5c2af327cd64a62cf35abd2ba6fab4")
    assert gcm_open(key, nonce, sealed) == plain


# ---- what passes ----


@pytest.mark.parametrize("step", [1, 7, 16, 1000])
@pytest.mark.parametrize("plain", [b"", b"x", PLAIN], ids=["nothing", "a byte", "blocks"])
def test_a_request_of_kuscias_is_opened_and_answered(plain: bytes, step: int) -> None:
    bob, seen = serving()
    assert not OURS & set(seen)
    wire = seal_body(TOKEN, NONCE, plain)
    pieces = [wire[at : at + step] for at in range(0, len(wire), step)]
    got = [bob.body(MessagePart.REQUEST_BODY, each, end=at == len(pieces) - 1) for at, each in enumerate(pieces)]
    assert b"".join(got) == plain
    assert not any(got[:-1]), "nothing is released before it was verified"
    back = bob.headers(RESPONSE, headers={":status": ("200",)})
    assert (back["kuscia-encrypt-version"], back["kuscia-origin-source"]) == (("4",), ("alice",))
    assert "kuscia-encrypt-iv" not in back
    cut = [plain[at : at + step] for at in range(0, len(plain), step)] or [b""]
    sealed = b"".join(bob.body(MessagePart.RESPONSE_BODY, each, end=at == len(cut) - 1) for at, each in enumerate(cut))
    assert open_body(TOKEN, NONCE, sealed) == plain
    assert not bob.refused


def test_the_older_token_still_opens() -> None:
    bob, _ = serving(headers(3))
    assert bob.body(MessagePart.REQUEST_BODY, seal_body(OTHER, NONCE, PLAIN), end=True) == PLAIN


def test_a_call_of_ours_is_understood_by_kuscia() -> None:
    alice, nonce = calling()
    wire = alice.body(MessagePart.REQUEST_BODY, PLAIN[:9]) + alice.body(MessagePart.REQUEST_BODY, PLAIN[9:], end=True)
    assert open_body(TOKEN, nonce, wire) == PLAIN
    sealed = seal_body(TOKEN, nonce, PLAIN * 2)
    given = {":status": ("200",), "kuscia-encrypt-version": ("4",), "kuscia-origin-source": ("alice",)}
    seen = alice.headers(RESPONSE, headers=given | {"content-length": (str(len(sealed)),)})
    assert seen["x-coterie-length"] == (str(len(PLAIN) * 2),)
    assert not {"kuscia-encrypt-version", "kuscia-origin-source"} & set(seen)
    assert alice.body(MessagePart.RESPONSE_BODY, sealed, end=True) == PLAIN * 2
    assert calling()[1] != nonce


def test_messages_without_body_have_no_tag() -> None:
    alice, _ = calling(end=True)
    assert alice.headers(RESPONSE, headers={":status": ("204",)}, end=True) == {":status": ("204",)}
    bob, _ = serving(end=True)
    assert bob.headers(RESPONSE, headers={":status": ("204",)}, end=True) == {":status": ("204",)}
    assert (alice.refused, bob.refused) == (0, 0)


def test_a_request_in_our_own_format_is_taken_too() -> None:
    """A partner that changes from Kuscia to Coterie needs no hour agreed on."""
    alice, bob = End(RouteSide.CALL, KEYS), End(RouteSide.SERVE, replace(KEYS, kuscia_format=True))
    bob.headers(REQUEST, headers=alice.headers(REQUEST, headers={}))
    wire = alice.body(MessagePart.REQUEST_BODY, PLAIN, end=True)
    assert bob.body(MessagePart.REQUEST_BODY, wire, end=True) == PLAIN


# ---- what does not ----


@pytest.mark.parametrize("word", ["request", "response"])
def test_every_damage_is_refused_and_nothing_released(word: str) -> None:
    plain = PLAIN[:20]
    for what, wire in damaged(seal_body(TOKEN, NONCE, plain)):
        if word == "request":
            end, _ = serving()
            part, status = MessagePart.REQUEST_BODY, 400
        else:
            end, _ = calling(nonce=NONCE)
            end.headers(RESPONSE, headers={":status": ("200",), "kuscia-encrypt-version": ("4",)})
            part, status = MessagePart.RESPONSE_BODY, 502
        assert end.body(part, wire, end=True) == b"", what
        assert end.refused == status, what


HEADERS = {
    "no number": {"kuscia-encrypt-version": "x"},
    "no version in force": {"kuscia-encrypt-version": "9"},
    "no nonce": {"kuscia-encrypt-iv": ""},
    "nonce is no base64": {"kuscia-encrypt-iv": "?" * 16},
    "nonce of 11 bytes": {"kuscia-encrypt-iv": base64.b64encode(NONCE[:11]).decode()},
    "nonce of 16 bytes": {"kuscia-encrypt-iv": base64.b64encode(bytes(16)).decode()},
    "shorter than a tag": {"content-length": "15"},
}


@pytest.mark.parametrize("change", HEADERS.values(), ids=list(HEADERS))
def test_headers_that_say_nonsense(change: dict[str, str]) -> None:
    bob = End(RouteSide.SERVE, WEAK)
    bob.headers(REQUEST, headers=headers(**change))
    assert bob.refused == 400


def test_headers_sent_twice() -> None:
    bob = End(RouteSide.SERVE, WEAK)
    bob.headers(REQUEST, headers={key: value * 2 for key, value in headers().items()})
    assert bob.refused == 400


def test_a_body_of_another_length_than_was_said() -> None:
    wire = seal_body(TOKEN, NONCE, PLAIN)
    for length in (len(wire) - 1, len(wire) + 1):
        bob, _ = serving(headers(**{"content-length": str(length)}))
        assert bob.body(MessagePart.REQUEST_BODY, wire, end=True) == b""
        assert bob.refused == 400


def test_what_comes_in_clear_is_refused() -> None:
    bob = End(RouteSide.SERVE, WEAK)
    bob.headers(REQUEST, headers={})
    assert bob.refused == 403
    alice, _ = calling()
    alice.headers(RESPONSE, headers={":status": ("200",)})
    assert alice.refused == 502


def test_a_response_with_another_token() -> None:
    alice, _ = calling()
    alice.headers(RESPONSE, headers={":status": ("200",), "kuscia-encrypt-version": ("3",)})
    assert alice.refused == 502


def test_without_asking_for_it_it_is_refused() -> None:
    bob = End(RouteSide.SERVE, KEYS)
    bob.headers(REQUEST, headers=headers())
    assert bob.refused == 400
    alice = End(RouteSide.CALL, KEYS)
    assert "x-coterie-encrypt" in alice.headers(REQUEST, headers={})


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kuscia_format, "LONGEST_BODY", 1000)
    monkeypatch.setattr(kuscia_format, "LONGEST_TOGETHER", 5000)
    one, _ = serving()
    one.body(MessagePart.REQUEST_BODY, bytes(1017))
    assert one.refused == 400
    some = [serving()[0] for _ in range(3)]
    for each in some:
        each.body(MessagePart.REQUEST_BODY, bytes(1000))
    assert [each.refused for each in some] == [0, 0, 503]
    other = kuscia_format.KusciaOpener(bytes(16), NONCE, "serve/carol/bob")
    other.open(bytes(1000))  # another route is not held up
    other.open(b"")
    del some, each, other
    gc.collect()
    again, _ = serving()
    again.body(MessagePart.REQUEST_BODY, bytes(1000))
    assert not again.refused


def test_the_key_file_says_which_format(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", KeyTable((KEYS, WEAK)))
    assert [each.kuscia_format for each in read_keys(tmp_path / "keys").routes] == [False, True]


# ---- with Envoy ----


@contextlib.asynccontextmanager
async def kuscia_gateway(secret: str, host: str) -> AsyncIterator[RoutePort]:
    """As a partner's Kuscia answers: the body reversed, encrypted as its filter does it."""

    async def handle(request: web.Request) -> web.Response:
        if "kuscia-encrypt-iv" not in request.headers:
            return web.Response(status=200, text="a probe")
        nonce = base64.b64decode(request.headers["kuscia-encrypt-iv"])
        data = await request.read()
        plain = open_body(secret, nonce, data) if data else b""
        said = {"kuscia-encrypt-version": "1", "kuscia-origin-source": request.headers["kuscia-origin-source"]}
        return web.Response(body=seal_body(secret, nonce, plain[::-1] or b"none"), headers=said)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    try:
        yield RoutePort("http", runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def test_gateways_speak_with_kuscias_both_ways(tmp_path: Path) -> None:
    wire: dict[str, Any] = ENCRYPTED | {"tokens": (SecretValue(TOKEN),)}
    wire["kuscia_wire"] = frozenset((KusciaWireForm.BODY_ENCRYPTION,))
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(mirror(HOSTS["bob"]))
        alice, bob = (make_inputs(name, tmp_path, Protocol.NOTLS) for name in ("alice", "bob"))
        port = await stack.enter_async_context(kuscia_gateway(TOKEN, HOSTS["bob"]))
        away = {"host": HOSTS["bob"], "ports": (port,)}
        alice = with_crypt(alice, tmp_path, routes=(route("alice", "bob", bob, "alice", **wire, **away),))
        bob = with_crypt(
            bob,
            tmp_path,
            services=(DomainService("mirror", (service,)),),
            routes=(route("alice", "bob", bob, "bob", **wire),),
        )
        await stack.enter_async_context(encrypting(alice, bob, root=tmp_path))
        ours, _ = await stack.enter_async_context(running(alice, bob, root=tmp_path))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        for size in (0, 1, 4096):
            body = bytes(range(256)) * (size // 256) + b"end"
            async with http.post(f"{ours.inside}/x", data=body, headers={"Host": "mirror.bob.svc"}) as reply:
                assert (reply.status, await reply.read()) == (200, body[::-1])
                assert "kuscia-encrypt-version" not in reply.headers
        async with http.get(f"{ours.inside}/x", headers={"Host": "mirror.bob.svc"}) as reply:
            assert (reply.status, await reply.read()) == (200, b"none")
        caller = {"kuscia-source": "alice", "kuscia-token": TOKEN, "kuscia-host": "mirror.bob.svc"} | announced(
            1, NONCE
        )
        assert bob.external is not None
        where = f"http://{bob.external}/?whole"
        sealed = seal_body(TOKEN, NONCE, PLAIN)
        async with http.post(where, data=sealed, headers=caller) as reply:
            assert (reply.status, open_body(TOKEN, NONCE, await reply.read())) == (200, PLAIN)
            assert (reply.headers["kuscia-encrypt-version"], reply.headers["kuscia-origin-source"]) == ("1", "alice")
        async with http.post(where, data=sealed[:-1], headers=caller) as reply:
            assert reply.status == 400
            assert "cut off" in reply.headers["Kuscia-Error-Message"]
