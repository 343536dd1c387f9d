"""What a partner, somebody with a partner's secrets, or a stranger may try at a whole node: refused, and logged.

One node, bob. Alice and carol are partners of his, played by the tests themselves: keys, certificates and tokens are theirs,
and they send what they like. Zed has a tunnel to bob and never calls.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import h2.config
import h2.connection
import h2.events
import psutil
import pytest
import pytest_asyncio
from gateway_kit import call, echo
from mesh_nodes import (
    CDR,
    DOMAIN,
    DR,
    Node,
    a_partner,
    a_route,
    deploy_token,
    key_of,
    network,
    put,
    serve,
    tokens,
    until,
)
from registration_kit import an_application

from coterie.base import pki
from coterie.kuscia.gateway.handshake import crypto
from coterie.kuscia.gateway.handshake.messages import RSA, HandshakeRequest, HandshakeTokenConfig, encode
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.tunnel import server_name

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("mesh"),
]
HANDSHAKE = "kuscia-handshake.bob.svc"


@dataclass
class Partner:
    """Somebody with a key, a certificate that bob knows, and perhaps a token."""

    name: str
    pair: tuple[Path, Path]
    token: str = field(default="", repr=False)

    @property
    def certificate(self) -> str:
        return base64.b64encode(self.pair[0].read_bytes()).decode()

    @property
    def tls(self) -> ssl.SSLContext:
        return tls(self.pair)

    @property
    def headers(self) -> dict[str, str]:
        return {"Kuscia-Source": self.name, "Kuscia-Token": self.token, "Kuscia-Host": "echo.bob.svc"}


def tls(pair: tuple[Path, Path] | None, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def certified(
    directory: Path, name: str, owner: str, *, now: datetime | None = None, life: timedelta = timedelta(days=1)
) -> tuple[Path, Path]:
    """A self-signed certificate of `owner`'s key that carries `name`."""
    key = pki.load_key(key_of(owner).encode())
    at = now or datetime.now(UTC)
    made = (directory / f"{name}-{owner}-{at:%Y%m%d}.crt", directory / f"{owner}.key")
    pki.save_certificate(made[0], pki.self_signed_ca(name, key, now=at, life=life).certificate)
    if not made[1].exists():
        pki.save_key(made[1], key)
    return made


@dataclass
class Scene:
    bob: Node
    alice: Partner
    carol: Partner
    directory: Path
    http: aiohttp.ClientSession
    slow: dict[str, asyncio.Task[bytes]]
    refused: list[tuple[str, ...]] = field(default_factory=list)
    """Words of lines that must be in the access log when all is over: each costs up to a second of waiting now."""
    malformed: int = 0
    """Requests that were none."""

    async def ask(self, who: Any, path: str, headers: dict[str, str], **more: Any) -> tuple[int, Any, dict[str, str]]:
        """At the public port, with these headers and a certificate."""
        chosen = who.tls if isinstance(who, Partner) else tls(who)
        return await call(self.http, f"{self.bob.outside}{path}", headers=headers, ssl=chosen, **more)

    async def logged(self, *words: str, where: str = "access") -> str:
        """The first line of bob's log with all these words."""

        async def found() -> str:
            text = self.bob.access_log() if where == "access" else self.bob.output_tail()
            return next((line for line in text.splitlines() if all(word in line for word in words)), "")

        return str(await until(f"a line with {words}", found))

    async def raw(self, data: bytes, *, secure: bool = True) -> bytes:
        """Bytes from alice to the public port; the first line of the answer, empty when the connection just ends."""
        where = self.bob.external
        chosen = tls(self.alice.pair, "http/1.1") if secure else None
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=chosen)
        try:
            writer.write(data)
            line = b""
            with contextlib.suppress(ConnectionError):
                line = await asyncio.wait_for(reader.readline(), 90)
            return line
        finally:
            writer.transport.abort()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    directory = tmp_path_factory.mktemp("attack")
    async with contextlib.AsyncExitStack() as stack:
        net = await stack.enter_async_context(network(directory, third=74))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=90), connector=aiohttp.TCPConnector(force_close=True)
            )
        )
        (bob,) = await net.start(net.autonomy("bob"))
        plain = await stack.enter_async_context(echo(bob.host))
        await serve(bob, "bob", "echo", plain)
        await serve(bob, "bob", "for-carol", plain, access_domain="carol")
        await serve(bob, "bob", "for-nobody", plain, access_domain="")
        await serve(bob, "bob", "never-opened", plain, access_domain=None)
        alice, carol, zed = (Partner(name, certified(directory, name, name)) for name in ("alice", "carol", "zed"))
        for each in (alice, carol, zed):
            await put(bob, DOMAIN, a_partner(each.name, each.certificate))
            await put(bob, CDR, a_route(each.name, "bob", bob))
        await put(bob, CDR, a_route("bob", "zed", None, transit={"transitMethod": "REVERSE-TUNNEL"}))
        made = Scene(bob, alice, carol, directory, http, {})
        for each in (alice, carol):
            each.token = await agree(made, each)

        async def arrives() -> bool:
            return (await made.ask(alice, "/", alice.headers))[0] == 200

        await until("alice's calls arrive", arrives)
        # They need the time until they are given up, so they begin now.
        made.slow = {
            "headers": asyncio.create_task(made.raw(b"GET /slow-loris HTTP/1.1\r\nHost: x\r\nX-A: b\r\n")),
            "greeting": asyncio.create_task(made.raw(b"\x16\x03\x01", secure=False)),
        }
        yield made
        for task in made.slow.values():
            task.cancel()
        await asyncio.gather(*made.slow.values(), return_exceptions=True)
        assert bob.complaints() == []
        for each in (alice, carol):
            assert each.token not in bob.output_tail() + bob.access_log()


def a_handshake(scene: Scene, who: str, half: bytes, *, at: datetime | None = None, owner: str = "") -> bytes:
    theirs = pki.load_certificate(scene.bob.paths.domain_certificate.read_bytes()).public_key()
    own = pki.load_key(key_of(owner or who).encode()).public_key()
    offered = HandshakeTokenConfig(token=crypto.encrypt(theirs, half), pubhash=crypto.pubhash(own))  # type: ignore[arg-type]
    moment = int((at or datetime.now(UTC)).timestamp() * 1e9)
    return encode(HandshakeRequest(domain_id=who, type=RSA, token_config=offered, request_time=moment))


async def shake(scene: Scene, body: bytes, shown: tuple[Path, Path] | None) -> dict[str, Any]:
    host = {"Kuscia-Host": HANDSHAKE, "Host": HANDSHAKE}
    status, said, _ = await scene.ask(shown, "/handshake", host, data=body)
    assert status == 200, said
    return said if isinstance(said, dict) else json.loads(said)


async def agree(scene: Scene, who: Partner, at: datetime | None = None) -> str:
    """A token, as a partner's gateway gets it."""
    half = crypto.half()

    async def answered() -> dict[str, Any] | None:
        said = await shake(scene, a_handshake(scene, who.name, half, at=at), who.pair)
        return said if said.get("token") else None

    said = await until(f"a token for {who.name}", answered)
    key = pki.load_key(key_of(who.name).encode())
    return crypto.header_value(half + crypto.decrypt(key, said["token"]["token"], crypto.HALF)).reveal()  # type: ignore[arg-type]


# ---- tokens and names ----

CLAIMS: dict[str, tuple[str, dict[str, str | None], int]] = {
    "as it should be": ("alice", {}, 200),
    "no token": ("alice", {"Kuscia-Token": None}, 401),
    "an empty token": ("alice", {"Kuscia-Token": ""}, 401),
    "a guessed token": ("alice", {"Kuscia-Token": "QUJD"}, 401),
    "no name": ("alice", {"Kuscia-Source": None}, 401),
    "carol's name": ("alice", {"Kuscia-Source": "carol"}, 401),
    "carol's token": ("alice", {"Kuscia-Token": "<carol's>"}, 401),
    "carol's name and token, own certificate": ("alice", {"Kuscia-Source": "carol", "Kuscia-Token": "<carol's>"}, 401),
    "bob's own name": ("alice", {"Kuscia-Source": "bob"}, 401),
    "carol as origin": ("alice", {"Kuscia-Origin-Source": "carol"}, 403),
    "bob as origin": ("alice", {"Kuscia-Origin-Source": "bob"}, 403),
    "opened to carol": ("alice", {"Kuscia-Host": "for-carol.bob.svc"}, 403),
    "opened to nobody": ("alice", {"Kuscia-Host": "for-nobody.bob.svc"}, 403),
    "never opened": ("alice", {"Kuscia-Host": "never-opened.bob.svc"}, 403),
    "no such service": ("alice", {"Kuscia-Host": "nothing.bob.svc"}, 403),
    "another domain's service": ("alice", {"Kuscia-Host": "echo.zed.svc"}, 403),
    "carol may": ("carol", {"Kuscia-Host": "for-carol.bob.svc"}, 200),
    "a made-up key": ("alice", {"Kuscia-Token": None, "X-Coterie-Peer-Key": "<key>"}, 401),
}


@pytest.mark.parametrize(("who", "changed", "expected"), CLAIMS.values(), ids=list(CLAIMS))
async def test_claims(scene: Scene, who: str, changed: dict[str, str | None], expected: int) -> None:
    partner: Partner = getattr(scene, who)
    headers = {key: value for key, value in {**partner.headers, **changed}.items() if value is not None}
    fingerprint = pki.fingerprint(pki.load_certificate(partner.pair[0].read_bytes()))
    known = {"<carol's>": scene.carol.token, "<key>": f"{fingerprint}|alice|{scene.alice.token}"}
    headers = {key: known.get(value, value) for key, value in headers.items()}
    mark = f"/claim-{list(CLAIMS.values()).index((who, changed, expected))}"
    status, said, _ = await scene.ask(partner, mark, headers)
    assert status == expected, said
    scene.refused.append((f"{mark} ", f" {expected} "))


async def test_what_reaches_a_service_is_what_the_gateway_says(scene: Scene) -> None:
    forged = {
        "X-Coterie-Peer-Fingerprint": "forged",
        "X-Forwarded-For": "6.6.6.6",
        "Kuscia-Origin-Source": "alice",
        "X-Envoy-Internal": "true",
        "X-Envoy-External-Address": "6.6.6.6",
    }
    status, said, _ = await scene.ask(scene.alice, "/seen", scene.alice.headers | forged)
    assert status == 200
    seen = dict(said["headers"])
    assert (seen["kuscia-source"], seen["kuscia-origin-source"]) == ("alice", "alice")
    assert seen["x-envoy-external-address"] == "127.0.0.1"
    assert not {"kuscia-token", "x-coterie-peer-key", "x-coterie-peer-fingerprint", "x-envoy-internal"} & seen.keys()
    assert "forged" not in str(said) and scene.alice.token not in str(said)


async def test_a_revoked_token_is_worth_nothing(scene: Scene) -> None:
    old = Partner("carol", scene.carol.pair, scene.carol.token)
    await scene.bob.client.delete(CDR, "carol-bob")

    async def refused() -> bool:
        return (await scene.ask(old, "/revoked", old.headers))[0] == 401

    await until("carol's token is refused", refused)
    await scene.logged("/revoked", " 401 ")

    async def gone() -> bool:
        return not [
            each for each in (await scene.bob.client.list(DR, "bob")).items if each["metadata"]["name"] == "carol-bob"
        ]

    await until("the copy is gone", gone)
    await put(scene.bob, CDR, a_route("carol", "bob", scene.bob))
    scene.carol.token = await agree(scene, scene.carol)
    assert (await scene.ask(old, "/revoked", old.headers))[0] == 401

    async def arrives() -> bool:
        return (await scene.ask(scene.carol, "/", scene.carol.headers))[0] == 200

    await until("carol's calls arrive again", arrives)


# ---- certificates ----

ALERT = b"\x15\x03\x01\x00\x02\x02\x46"
"""TLS: there is no version that we both speak."""


@pytest.mark.parametrize(
    ("name", "owner", "age"),
    [("alice", "mallory", 0), ("alice", "carol", 0), ("alice", "alice", 10), ("mallory", "mallory", 0), ("", "", 0)],
    ids=["of another key", "of a partner's key", "expired, of her own key", "a stranger's", "none"],
)
async def test_certificates(scene: Scene, name: str, owner: str, age: int) -> None:
    """With alice's name and token, which somebody stole."""
    shown = certified(scene.directory, name, owner, now=datetime.now(UTC) - age * timedelta(days=365)) if name else None
    mark = f"/certificate-{name}-{owner}-{age}"
    status, _, _ = await scene.ask(shown, mark, scene.alice.headers)
    assert status == 401
    scene.refused.append((mark, " 401 "))


@pytest.mark.parametrize(
    "sent", [b"GET /plain HTTP/1.1\r\nHost: echo.bob.svc\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
async def test_plain_text_is_no_way_in(scene: Scene, sent: bytes) -> None:
    assert await scene.raw(sent, secure=False) in (b"", ALERT)
    await scene.logged("connection_refused{TLS_error")
    assert "/plain" not in scene.bob.access_log()


async def test_a_tunnel_is_opened_in_nobody_elses_name(scene: Scene) -> None:
    """Bob waits for zed to dial; alice dials instead."""
    where = scene.bob.external
    with pytest.raises((ssl.SSLError, ConnectionError)):
        reader, writer = await asyncio.open_connection(
            where.host, where.port, ssl=scene.alice.tls, server_hostname=server_name("bob")
        )
        try:
            # With TLS 1.3 the refusal comes after the client's part is done.
            writer.write(b"x")
            if await asyncio.wait_for(reader.read(100), 60) == b"":
                raise ConnectionError("closed")
        finally:
            writer.transport.abort()
    await scene.logged("connection_refused", server_name("bob"))


async def test_a_pinned_certificate_counts_within_its_dates(scene: Scene) -> None:
    """Dora's certificates are all of one key, and each in turn is the very one that bob knows."""
    bob, dora = scene.bob, Partner("dora", certified(scene.directory, "dora", "dora"))
    # As Kuscia's masters issue them to lites: they ended decades before they were made.
    lite = certified(
        scene.directory, "dora", "dora", now=datetime(1970, 1, 1, 0, 6, tzinfo=UTC), life=timedelta(days=3652)
    )
    await put(bob, DOMAIN, a_partner("dora", dora.certificate))
    await put(bob, CDR, a_route("dora", "bob", bob))
    dora.token = await agree(scene, dora)

    async def known_by(pair: tuple[Path, Path], expected: int, mark: str) -> None:
        dora.pair = pair
        await bob.client.patch(DOMAIN, "dora", "", {"spec": {"cert": dora.certificate}})

        async def answered_so() -> bool:
            return (await scene.ask(dora, mark, dora.headers))[0] == expected

        await until(f"{mark} is answered with {expected}", answered_so)
        scene.refused.append((f"{mark} ", f" {expected} "))

    await known_by(dora.pair, 200, "/dora-in-time")
    wrong = {
        "ended": certified(scene.directory, "dora", "dora", now=datetime.now(UTC) - timedelta(days=400)),
        "not-yet": certified(scene.directory, "dora", "dora", now=datetime.now(UTC) + timedelta(days=2)),
    }
    for what, pair in wrong.items():
        await known_by(pair, 401, f"/dora-{what}")
        said = await shake(scene, a_handshake(scene, "dora", crypto.half()), pair)
        assert (said["status"]["code"], "is not valid today" in said["status"]["message"]) == (500, True)
    await scene.logged("Requested configuration rejected", "certificate of dora ended at", where="node")
    await scene.logged("Requested configuration rejected", "certificate of dora is not valid before", where="node")
    await scene.logged("Refused a handshake", "the certificate of dora is not valid today", where="node")
    await known_by(lite, 200, "/dora-of-kuscia")


# ---- handshakes and registrations ----


async def test_a_handshake_that_comes_again_makes_no_token(scene: Scene) -> None:
    body = a_handshake(scene, "alice", crypto.half())
    first = await shake(scene, body, scene.alice.pair)
    before = len(await tokens(scene.bob, "alice-bob"))
    again = await shake(scene, body, scene.alice.pair)
    assert again["token"]["revision"] == first["token"]["revision"]
    assert len(await tokens(scene.bob, "alice-bob")) == before
    # Nobody is shut out by it, and only alice's key can read it.
    assert (await scene.ask(scene.alice, "/still", scene.alice.headers))[0] == 200
    with pytest.raises(crypto.NotDecrypted):
        crypto.decrypt(pki.load_key(key_of("carol").encode()), again["token"]["token"], crypto.HALF)  # type: ignore[arg-type]


@pytest.mark.parametrize("minutes", [-14, 14])
async def test_clocks_may_differ_by_a_quarter_of_an_hour(scene: Scene, minutes: int) -> None:
    """One minute within; HANDSHAKES has those that are one minute beyond."""
    scene.alice.token = await agree(scene, scene.alice, datetime.now(UTC) + timedelta(minutes=minutes))
    assert (await scene.ask(scene.alice, "/in-time", scene.alice.headers))[0] == 200


HANDSHAKES = {
    "accepted a quarter of an hour ago": ({"at": -16 * 60}, "alice", "request_time differs"),
    "a quarter of an hour early": ({"at": 16 * 60}, "alice", "request_time differs"),
    "recorded long ago": ({"at": -3600}, "alice", "request_time differs"),
    "from the future": ({"at": 3600}, "alice", "request_time differs"),
    "with another's certificate": ({}, "carol", "the certificate shown is none"),
    "with another key": ({"owner": "carol"}, "alice", "public key hash"),
}


@pytest.mark.parametrize(("lie", "shown", "why"), HANDSHAKES.values(), ids=list(HANDSHAKES))
async def test_handshakes(scene: Scene, lie: dict[str, Any], shown: str, why: str) -> None:
    given = dict(lie)
    if "at" in given:
        given["at"] = datetime.now(UTC) + timedelta(seconds=given["at"])
    partner: Partner = getattr(scene, shown)
    said = await shake(scene, a_handshake(scene, "alice", crypto.half(), **given), partner.pair)
    assert (said["status"]["code"], why in said["status"]["message"]) == (500, True)
    await scene.logged("Refused a handshake", why, where="node")


async def test_a_registration_is_taken_once(scene: Scene) -> None:
    token = await deploy_token(scene.bob, "dave")
    headers = {"Kuscia-Host": HANDSHAKE, "Host": HANDSHAKE}

    async def send(body: bytes, jwt: str) -> tuple[int, str]:
        status, said, _ = await scene.ask(None, "/register", headers | {"jwt-token": jwt}, data=body)
        return status, str(said)

    guessed, guessed_jwt = an_application("dave", "x" * 32, datetime.now(UTC), signer="mallory")
    assert (await send(guessed.encode(), guessed_jwt))[0] == 500
    request, jwt = an_application("dave", token, datetime.now(UTC))
    assert (await send(request.encode(), jwt))[0] == 200
    status, told = await send(request.encode(), jwt)
    assert (status, "made before" in told) == (400, True)
    stolen, stolen_jwt = an_application("dave", token, datetime.now(UTC), signer="mallory")
    status, told = await send(stolen.encode(), stolen_jwt)
    assert (status, "was used" in told) == (500, True)
    await scene.logged("Registration refused", "reason=replay", where="node")
    await scene.logged("Registration refused", "reason=used-token", where="node")
    assert token not in scene.bob.output_tail()


# ---- shapes ----

SHAPES = {
    "a length and chunks": (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
    "chunks and a length": (
        b"Transfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n",
        b"400",
    ),
    "chunks twice": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", b"400 501"),
    "chunks spelt oddly": (b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", b"400 501"),
    "chunks after a tab": (b"Transfer-Encoding:\tchunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", b"400"),
    "two lengths": (b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", b"400"),
    "two lengths in one": (b"Content-Length: 1, 2\r\n\r\nxx", b"400"),
    "a length below zero": (b"Content-Length: -1\r\n\r\n", b"400"),
    "a space before the colon": (b"Kuscia-Host : for-carol.bob.svc\r\n\r\n", b"400"),
    "a zero byte": (b"X: a\x00b\r\n\r\n", b"400"),
    "endless headers": (b"X: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
    "many headers": (b"X: a\r\n" * 200 + b"\r\n", b"431"),
    "an endless chunk size": (b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\n", b"400"),
}


@pytest.mark.parametrize(("rest", "expected"), SHAPES.values(), ids=list(SHAPES))
async def test_requests_of_two_meanings(scene: Scene, rest: bytes, expected: bytes) -> None:
    mark = b"/shape-%d" % list(SHAPES.values()).index((rest, expected))
    head = b"".join(b"%s: %s\r\n" % (key.encode(), value.encode()) for key, value in scene.alice.headers.items())
    line = await scene.raw(b"POST " + mark + b" HTTP/1.1\r\nHost: echo.bob.svc\r\n" + head + rest)
    assert line.split()[1:2] and line.split()[1] in expected.split(), line
    scene.malformed += 1


@pytest.mark.parametrize("end", [b"\r\n ", b"\r\n\t", b"\r"], ids=["folded", "folded by a tab", "no line feed"])
async def test_half_a_line_end_opens_nothing(scene: Scene, end: bytes) -> None:
    """Some take it for the end of a header. Here it is one value, whatever it looks like, also for the service."""
    head = b"".join(b"%s: %s\r\n" % (key.encode(), value.encode()) for key, value in scene.alice.headers.items())
    mark = f"/half-{end.hex()}"
    odd = b"X: a" + end + b"Kuscia-Host: for-carol.bob.svc\r\n\r\n"
    line = await scene.raw(b"GET " + mark.encode() + b" HTTP/1.1\r\nHost: echo.bob.svc\r\n" + head + odd)
    assert line.split()[1] in (b"200", b"400")
    scene.refused.append((mark, " echo.bob.svc "))


PSEUDO = {
    "two paths": [(":path", "/h2"), (":path", "/other")],
    "a path of two": [(":path", "/h2 HTTP/1.1\r\nKuscia-Host: for-carol.bob.svc\r\n\r\n")],
    "no path": [],
    "a method of two": [(":method", "GET /x HTTP/1.1\r\nX: y"), (":path", "/h2")],
    "an unknown one": [(":path", "/h2"), (":kuscia", "x")],
    "a header with a line end": [(":path", "/h2"), ("x", "a\r\nKuscia-Host: for-carol.bob.svc")],
    "one among the others": [(":path", "/h2"), ("x", "y"), (":authority", "for-carol.bob.svc")],
    "hop by hop": [(":path", "/h2"), ("transfer-encoding", "chunked")],
    "a name in capitals": [(":path", "/h2"), ("Kuscia-Host", "for-carol.bob.svc")],
}


@pytest.mark.parametrize("fields", PSEUDO.values(), ids=list(PSEUDO))
async def test_http2_that_means_two_things(scene: Scene, fields: list[tuple[str, str]]) -> None:
    where = scene.bob.external
    reader, writer = await asyncio.open_connection(where.host, where.port, ssl=tls(scene.alice.pair, "h2"))
    config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    link = h2.connection.H2Connection(config)
    link.initiate_connection()
    known = [(":scheme", "https"), (":authority", "echo.bob.svc")]
    known += [] if any(key == ":method" for key, _ in fields) else [(":method", "GET")]
    named = [(key.lower(), value) for key, value in scene.alice.headers.items()]
    link.send_headers(1, [*known, *fields, *named], end_stream=True)
    writer.write(link.data_to_send())
    status = await h2_answer(link, reader)
    writer.transport.abort()
    assert status in ("", "400", "403", "404"), status
    scene.malformed += 1


async def h2_answer(link: h2.connection.H2Connection, reader: asyncio.StreamReader) -> str:
    """The status; empty when the stream or the connection was ended instead."""
    with contextlib.suppress(ConnectionError):
        while data := await asyncio.wait_for(reader.read(65536), 60):
            for event in link.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    return dict(event.headers)[b":status"].decode()
                if isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                    return ""
    return ""


# ---- other doors ----


async def test_envoy_has_its_public_port_and_no_other(scene: Scene) -> None:
    """Envoy's admin and its configuration are files and a socket of the node's own user, and pods have a network of their
    own: the machine has no port for them."""
    bob = scene.bob
    family = psutil.Process(bob.process.pid if bob.process else 0)
    found = {each.pid: listening(each) for each in (family, *family.children(recursive=True))}
    assert found.pop(bob.envoy) == {(bob.host, bob.external.port)}
    assert {host for each in found.values() for host, _ in each} == {bob.host}, "nothing listens on all addresses"
    places = GatewayPaths.of(bob.paths)
    assert (places.run / "envoy.sock").stat().st_mode & 0o777 == 0o600
    assert places.run.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in places.directory.iterdir() if each.stat().st_mode & 0o077] == []


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    found = process.net_connections(kind="tcp")
    # gRPC's servers write an address of version 4 as one of version 6.
    return {
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN
    }


DOORS: dict[str, tuple[int, str, str]] = {
    "API": (0, "/api/v1/namespaces/bob/secrets", "node"),
    "agent": (1, "/containerLogs/bob/x/y", "node"),
    "KusciaAPI": (8082, "/api/v1/job/query", "kusciaapi"),
    "KusciaAPI, gRPC": (8083, "/kuscia.proto.api.v1alpha1.kusciaapi.JobService/QueryJob", "kusciaapi"),
}


@pytest.mark.parametrize(("port", "path", "log"), DOORS.values(), ids=list(DOORS))
@pytest.mark.parametrize("how", ["a stranger", "a partner", "in plain text"])
async def test_ports_of_the_node_are_for_its_own(scene: Scene, port: int, path: str, log: str, how: str) -> None:
    """Where somebody can reach them at all. What turns the caller away writes so: the server, or gRPC's own library."""
    bob = scene.bob
    port = {0: bob.settings["apiServer"]["port"], 1: bob.agent_port}.get(port, port)
    ours = f"port={port} "

    def told() -> int:
        file = bob.log if log == "node" else bob.paths.logs / f"{log}.log"
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        words = ("Request refused", "TLS handshake failed")
        return sum(
            "Handshake failed" in line or (ours in line and any(each in line for each in words)) for line in lines
        )

    before = told()
    scheme = "http" if how == "in plain text" else "https"
    shown = scene.alice.tls if how == "a partner" else tls(None)
    try:
        status, said, _ = await call(scene.http, f"{scheme}://{bob.host}:{port}{path}", data=b"{}", ssl=shown)
        assert status == 401, said
    except aiohttp.ClientError:
        pass  # not even a connection

    async def written() -> bool:
        return told() > before

    await until("the refusal is in the log", written)


@pytest.mark.parametrize("port", [53, 80, 8070, 8071, 8060, 8061])
async def test_services_for_pods_have_no_port_on_the_machine(scene: Scene, port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(scene.bob.host, port)


PATHS = {
    "admin": ("envoy", "/config_dump"),
    "the API without a token": ("apiserver.bob.svc", "/api/v1/namespaces"),
    "the handshake's server, elsewhere": (HANDSHAKE, "/metrics"),
    "a path that climbs": (HANDSHAKE, "/handshake/../register/../config_dump"),
}


@pytest.mark.parametrize(("host", "path"), PATHS.values(), ids=list(PATHS))
async def test_the_public_port_leads_nowhere_else(scene: Scene, host: str, path: str) -> None:
    status, _, _ = await scene.ask(None, path, {"Kuscia-Host": host, "Host": host})
    assert status in (400, 401, 404)
    scene.refused.append((f" {status} ", f'"GET {path.partition("?")[0]}' if "/../" not in path else host))


@pytest.mark.parametrize("host", ["datamesh", "kusciaapi", "confmanager", "reporter", "envoy", "admin", "dns"])
async def test_services_of_the_node_itself_are_not_a_partners(scene: Scene, host: str) -> None:
    """Alice's token and certificate are good, and none of these is opened to her."""
    mark = f"/own-service-of-{host}"
    headers = scene.alice.headers | {"Kuscia-Host": f"{host}.bob.svc"}
    assert (await scene.ask(scene.alice, mark, headers))[0] == 403
    scene.refused.append((mark, " 403 "))


async def test_the_api_takes_a_partner_for_itself(scene: Scene) -> None:
    """Alice is let in, as alice: with the rights of her own account, whatever she brings."""
    forged = {"Kuscia-Host": "apiserver.bob.svc", "Authorization": "Bearer x", "Impersonate-User": "system:admin"}
    status, said, _ = await scene.ask(scene.alice, "/api/v1/namespaces/bob/secrets", scene.alice.headers | forged)
    assert status == 403, said
    assert "system:serviceaccount:alice:alice" in str(said)
    scene.refused.append(("/api/v1/namespaces/bob/secrets", " 403 "))


# ---- and last, what takes its time ----


@pytest.mark.parametrize(("what", "answer"), [("headers", b"408"), ("greeting", b"")])
async def test_who_never_ends_is_let_go(scene: Scene, what: str, answer: bytes) -> None:
    assert answer in await asyncio.wait_for(scene.slow[what], 120)
    if answer:
        await scene.logged(" 408 ")


async def test_every_refusal_was_logged(scene: Scene) -> None:
    for words in scene.refused:
        await scene.logged(*words)

    async def counted() -> bool:
        return scene.bob.access_log().count(" DPE ") >= scene.malformed

    await until("every malformed request is in the log", counted)
    assert "/smuggled" not in scene.bob.access_log()


async def test_after_all_this_the_node_is_well(scene: Scene) -> None:
    assert (await scene.ask(scene.alice, "/", scene.alice.headers))[0] == 200
