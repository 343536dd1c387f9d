"""Two domains with real Envoys: what passes, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from gateway_kit import Http2Stream, Pair, call, client_tls, pair, token

from coterie.base.trace import parse_traceparent
from coterie.kuscia.gateway.access_log_spans import parse_line
from coterie.kuscia.gateway.addresses import Protocol

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIB = 1 << 20
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Protocol), ids=str)
async def domains(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with pair(tmp_path_factory.mktemp("gw"), request.param) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mtls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with pair(tmp_path_factory.mktemp("gw")) as made:
        yield made


# ---- what passes ----


async def test_http1_passes_with_identity_and_without_secrets(domains: Pair) -> None:
    forged = {
        "Kuscia-Source": "carol",
        "Kuscia-Origin-Source": "carol",
        "Kuscia-Token": "x",
        "Kuscia-Host": "own.bob.svc",
    }
    status, said, reply = await domains.call("echo.bob.svc", "/a%20b?c=d", headers=forged, data=BytesIO(bytes(3 * MIB)))
    assert (status, said["path"], said["size"]) == (200, "/a%20b?c=d", 3 * MIB)
    headers = dict(said["headers"])
    assert headers["kuscia-source"] == headers["kuscia-origin-source"] == "alice"
    assert headers["kuscia-host"] == "echo.bob.svc"
    assert headers["x-added"] == "100%"
    assert not {"kuscia-token", "x-coterie-peer-key", "x-coterie-peer-fingerprint"} & headers.keys()
    assert str(said).find(token("alice", "bob").reveal()) < 0
    assert reply["x-accel-buffering"] == "no"
    assert "kuscia-error-message" not in reply


async def test_a_trace_passes_and_what_else_tracing_adds_stays_at_home(domains: Pair) -> None:
    sent = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "customer=secret"}
    status, said, _ = await domains.call("echo.bob.svc", headers=sent)
    headers = dict(said["headers"])
    assert (status, headers["traceparent"]) == (200, PARENT)
    assert not {"tracestate", "baggage"} & headers.keys()
    # Inside a domain they are the domain's own.
    _, said, _ = await call(domains.http, f"{domains.bob.inside}/", "own.bob.svc", headers=sent)
    assert dict(said["headers"])["baggage"] == "customer=secret"


async def test_a_partners_tracing_library_does_not_reach_our_engines(mtls: Pair) -> None:
    """A gateway that strips nothing: another implementation's."""
    sent = {**GOOD, "traceparent": PARENT, "tracestate": "ot=th:0", "baggage": "a=b"}
    status, said, _ = await call(mtls.http, f"{mtls.bob.outside}/", headers=sent, ssl=client_tls("alice"))
    headers = dict(said["headers"])
    assert (status, headers["traceparent"]) == (200, PARENT)
    assert not {"tracestate", "baggage"} & headers.keys()


async def test_http2_passes(domains: Pair) -> None:
    stream = await Http2Stream.open(domains.alice.inputs.internal, "echo.bob.svc:80", "/x", method="GET")
    body = await stream.until()
    stream.close()
    assert stream.headers[":status"] == "200"
    assert b'"/x"' in body


async def test_grpc_streams_in_both_directions_at_once(domains: Pair) -> None:
    where = domains.alice.inputs.internal
    stream = await Http2Stream.open(where, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc")
    for number in range(1, 6):
        stream.send(b"ping%d" % number)
        # The answer comes while the request is still open.
        assert (await stream.until(5 * number)).endswith(b"ping%d" % number)
    stream.send(b"", end=True)
    await stream.until()
    stream.close()
    assert stream.trailers == {"grpc-status": "0"}
    assert stream.headers["x-source"] == "alice"


async def test_web_sockets_pass(domains: Pair) -> None:
    url = f"{domains.alice.inside}/ws"
    async with domains.http.ws_connect(url, headers={"Host": "echo.bob.svc"}, max_msg_size=0) as link:
        for size in (1, 2 * MIB):
            await link.send_bytes(bytes(size))
            assert len(await link.receive_bytes(timeout=5)) == size


async def test_own_services_are_reached_inside(domains: Pair) -> None:
    for host in ("own.bob.svc", "own"):
        status, said, _ = await call(domains.http, f"{domains.bob.inside}/", host)
        assert status == 200
        assert dict(said["headers"])["kuscia-source"] == "bob"


async def test_stalled_readers_do_not_hold_up_others(mtls: Pair) -> None:
    stalled = [
        await mtls.http.get(f"{mtls.alice.inside}/big?mib=64", headers={"Host": "echo.bob.svc"}) for _ in range(8)
    ]
    try:
        status, _, _ = await mtls.call("echo.bob.svc", timeout=aiohttp.ClientTimeout(total=3))
        assert status == 200
    finally:
        for each in stalled:
            each.close()


# ---- who does not ----

ROWS = {
    "closed to alice": ("closed.bob.svc", 403),
    "for bob's pods only": ("own.bob.svc", 403),
    "no such service": ("nothing.bob.svc", 403),
    "opened to alice": ("opened.bob.svc", 200),
    "no endpoints": ("empty.bob.svc", 503),
    "no such domain": ("echo.zed.svc", 404),
    "alice has none": ("echo.alice.svc", 404),
}


@pytest.mark.parametrize(("host", "expected"), ROWS.values(), ids=list(ROWS))
async def test_services(domains: Pair, host: str, expected: int) -> None:
    status, _, reply = await domains.call(host)
    assert status == expected
    assert ("kuscia-error-message" in reply) == (expected != 200)


GOOD = {"Kuscia-Source": "alice", "Kuscia-Token": token("alice", "bob").reveal(), "Kuscia-Host": "echo.bob.svc"}
ATTACKS = {
    "as it should be": (GOOD, 200),
    "nothing at all": ({}, 401),
    "no token": ({**GOOD, "Kuscia-Token": ""}, 401),
    "wrong token": ({**GOOD, "Kuscia-Token": "wrong"}, 401),
    "noop": ({**GOOD, "Kuscia-Token": "noop"}, 401),
    "no source": ({**GOOD, "Kuscia-Source": ""}, 401),
    "somebody else's token": ({**GOOD, "Kuscia-Token": token("bob", "alice").reveal()}, 401),
    "another source": ({**GOOD, "Kuscia-Source": "carol"}, 401),
    "key by hand": ({**GOOD, "Kuscia-Token": "", "X-Coterie-Peer-Key": f"|alice|{GOOD['Kuscia-Token']}"}, 401),
    "separator in the source": ({**GOOD, "Kuscia-Source": f"alice|{GOOD['Kuscia-Token']}", "Kuscia-Token": ""}, 401),
    "origin of another": ({**GOOD, "Kuscia-Origin-Source": "zed"}, 403),
    "origin of another, for a service of theirs": (
        {**GOOD, "Kuscia-Origin-Source": "zed", "Kuscia-Host": "closed.bob.svc"}, 403,
    ),
    "two hosts": ({**GOOD, "Kuscia-Host": "own.bob.svc"}, 403),
    "another path of the handshake": ({"Kuscia-Host": "kuscia-handshake.bob.svc"}, 401),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "expected"), ATTACKS.values(), ids=list(ATTACKS))
async def test_requests_from_outside(domains: Pair, headers: dict[str, str], expected: int) -> None:
    tls = client_tls("alice")
    status, body, reply = await call(domains.http, f"{domains.bob.outside}/x", headers=headers, ssl=tls)
    assert status == expected
    if expected == 401:
        assert body == {"domain": "bob", "instance": "0", "kuscia": "test", "reason": "unauthorized."}
        assert reply["kuscia-error-message"] == "<bob/0/external $cause$ unauthorized.>"


async def test_a_header_sent_twice_is_one_header(domains: Pair) -> None:
    """Checked and used must be the same value, whichever of the two that is."""
    url, tls = f"{domains.bob.outside}/x", client_tls("alice")
    twice = [
        *GOOD.items(),
        ("Kuscia-Source", "zed"),
        ("Kuscia-Origin-Source", "alice"),
        ("Kuscia-Origin-Source", "zed"),
    ]
    status, said, _ = await call(domains.http, url, headers=twice, ssl=tls)
    assert status == 200
    values = [value for key, value in said["headers"] if key in ("kuscia-source", "kuscia-origin-source")]
    assert values == ["alice", "alice"]
    status, _, _ = await call(domains.http, url, headers=[("Kuscia-Source", "zed"), *GOOD.items()], ssl=tls)
    assert status == 401


async def test_the_handshake_needs_no_token(domains: Pair) -> None:
    headers = {"Kuscia-Host": "kuscia-handshake.bob.svc", "Kuscia-Token": "t", "X-Coterie-Peer-Fingerprint": "forged"}
    url = f"{domains.bob.outside}/handshake"
    status, said, _ = await call(domains.http, url, headers=headers, data=b"{}", ssl=client_tls("alice"))
    assert status == 200
    seen = dict(said["headers"])
    assert seen["kuscia-token"] == "t"  # the handshake probes tokens
    assert seen.get("x-coterie-peer-fingerprint", "") != "forged"
    assert "x-coterie-peer-key" not in seen


@pytest.mark.parametrize("who", [None, "joe", "forged"], ids=["no certificate", "not pinned", "signed by a partner"])
async def test_mtls_refuses_other_certificates(mtls: Pair, who: str | None) -> None:
    with pytest.raises(aiohttp.ClientError):
        await call(mtls.http, f"{mtls.bob.outside}/x", headers=GOOD, ssl=client_tls(who))


async def test_mtls_binds_the_token_to_the_certificate(mtls: Pair) -> None:
    status, _, _ = await call(mtls.http, f"{mtls.bob.outside}/x", headers=GOOD, ssl=client_tls("carol"))
    assert status == 401


async def test_plain_text_is_refused_where_tls_is_asked_for(mtls: Pair) -> None:
    with pytest.raises(aiohttp.ClientError):
        await call(mtls.http, f"http://{mtls.bob.inputs.external}/x", headers=GOOD)


async def test_refusals_are_logged(mtls: Pair) -> None:
    headers = {**GOOD, "Kuscia-Token": "bad", "traceparent": PARENT + " more columns"}
    await call(mtls.http, f"{mtls.bob.outside}/logged", headers=headers, ssl=client_tls("alice"))
    for _ in range(120):
        lines = [line for line in mtls.bob.log("external").splitlines() if "/logged" in line]
        if lines:
            break
        await asyncio.sleep(0.1)
    assert " alice echo.bob.svc " in lines[0]
    assert " 401 " in lines[0]
    assert "bad" not in lines[0]
    # The trace comes last, after Kuscia's columns and the reason; of what a caller puts there, as much as a trace is long.
    assert lines[0].endswith(f" - - rbac_access_denied_matched_policy[unauthorized] {PARENT}")
    found = parse_line(lines[0])
    assert found is not None and found.sender == parse_traceparent(PARENT)


async def test_newcomers_reach_only_the_handshake(tmp_path: Path) -> None:
    async with pair(tmp_path, newcomers=True) as domains:
        url, tls = domains.bob.outside, client_tls(None)
        host = {"Kuscia-Host": "kuscia-handshake.bob.svc"}
        assert (await call(domains.http, f"{url}/register", headers=host, data=b"{}", ssl=tls))[0] == 200
        assert (await call(domains.http, f"{url}/x", headers=GOOD, ssl=tls))[0] == 401
        forged = client_tls("forged")
        assert (await call(domains.http, f"{url}/x", headers=GOOD, ssl=forged))[0] == 401
        assert (await domains.call("echo.bob.svc"))[0] == 200
