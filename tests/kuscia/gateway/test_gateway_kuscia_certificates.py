"""Partners with Kuscia: callers that show no certificate, and ports that show a new one at each start. Real Envoys."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from gateway_kit import HOSTS, Pair, call, client_tls, pair, pem, token

from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.gateway.model import Authentication, Route, RoutePort

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALLER = {"Kuscia-Source": "alice", "Kuscia-Host": "echo.bob.svc"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mtls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with pair(tmp_path_factory.mktemp("kc")) as made:
        await made.bob.change(newcomers=True)
        yield made


def with_form(routes: tuple[Route, ...], form: KusciaWireForm, **more: Any) -> tuple[Route, ...]:
    return tuple(
        replace(each, kuscia_wire=frozenset((form,)), **more) if each.source == "alice" else each for each in routes
    )


# ---- callers without certificate ----


async def called(domains: Pair, who: str | None, secret: str) -> int:
    sent = {**CALLER, "Kuscia-Token": secret}
    return (await call(domains.http, f"{domains.bob.outside}/", headers=sent, ssl=client_tls(who)))[0]


async def test_a_token_is_enough_where_the_route_says_so(mtls: Pair) -> None:
    good, before = token("alice", "bob").reveal(), mtls.bob.inputs.routes
    assert (await called(mtls, "alice", good), await called(mtls, None, good)) == (200, 401)
    weak = with_form(before, KusciaWireForm.NO_CLIENT_CERTIFICATE)
    await mtls.bob.change(routes=weak)
    assert (await called(mtls, "alice", good), await called(mtls, None, good)) == (200, 200)
    assert await called(mtls, None, "guessed") == 401
    assert await called(mtls, "carol", good) == 401, "who shows a certificate shows the right one"
    # Without a token too nothing would tell who calls: such a route does not get that far (wire_faults), nor further here.
    await mtls.bob.change(
        routes=with_form(before, KusciaWireForm.NO_CLIENT_CERTIFICATE, authentication=Authentication.MTLS)
    )
    assert await called(mtls, None, "noop") == 401
    await mtls.bob.change(routes=before)
    assert await called(mtls, None, good) == 401


# ---- ports with changing certificates ----


@cache
def key_of(name: str) -> rsa.RSAPrivateKey:
    """Kuscia's domains have RSA keys."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def domain_certificate(name: str) -> str:
    """What a partner sends us of a Kuscia domain: signed by itself, and no authority."""
    key, now = key_of(name), datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(name)).public_key(key.public_key())
    made = made.serial_number(7).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def made_at_a_start(
    folder: Path, signer: rsa.RSAPrivateKey, *, issuer: str = "bob", days: int = 3650
) -> ssl.SSLContext:
    """As Kuscia does it at each start: a new key, and a certificate by the authority that has the domain's name and key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(named("bob_ENVOY_EXTERNAL"))
        .issuer_name(named("bob"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=3650))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    file = folder / f"{certificate.serial_number}.pem"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(*form) + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context


@contextlib.asynccontextmanager
async def kuscia_port(context: ssl.SSLContext) -> AsyncIterator[tuple[RoutePort, ...]]:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response({"source": request.headers.get("kuscia-source")})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOSTS["bob"], 0, ssl_context=context).start()
    try:
        yield (RoutePort("http", runner.addresses[0][1], tls=True),)
    finally:
        await runner.cleanup()


async def answer(domains: Pair, ports: tuple[RoutePort, ...], *, weak: bool, known: str = "") -> int:
    before = domains.alice.inputs.routes
    now: dict[str, Any] = {"ports": ports, "certificates": (known or domain_certificate("bob"),)}
    changed = tuple(replace(each, **now) if each.source == "alice" else each for each in before)
    if weak:
        changed = with_form(changed, KusciaWireForm.CHANGING_CERTIFICATE)
    try:
        await domains.alice.change(routes=changed)
        return (await domains.call("echo.bob.svc"))[0]
    finally:
        await domains.alice.change(routes=before)


async def test_what_the_domains_key_signed_is_believed_where_the_route_says_so(mtls: Pair, tmp_path: Path) -> None:
    for _ in range(2):  # starts
        async with kuscia_port(made_at_a_start(tmp_path, key_of("bob"))) as ports:
            assert await answer(mtls, ports, weak=True) == 200
    async with kuscia_port(made_at_a_start(tmp_path, key_of("bob"))) as ports:
        assert await answer(mtls, ports, weak=False) == 503, "by default the whole certificate is pinned"
    async with kuscia_port(made_at_a_start(tmp_path, key_of("mallory"))) as ports:
        assert await answer(mtls, ports, weak=True) == 503, "the same names, another key"
    async with kuscia_port(made_at_a_start(tmp_path, key_of("bob"), days=-1)) as ports:
        assert await answer(mtls, ports, weak=True) == 503, "it has ended"


async def test_the_domains_own_certificate_is_still_believed(mtls: Pair) -> None:
    assert mtls.bob.inputs.external is not None
    own = (RoutePort("http", mtls.bob.inputs.external.port, tls=True),)
    assert await answer(mtls, own, weak=True, known=pem("bob")) == 200
