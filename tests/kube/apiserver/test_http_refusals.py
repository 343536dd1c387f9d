"""Who is turned away at a door leaves a line in the log, and does not choose how many."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coterie.base import pki
from coterie.base.clock import VirtualClock
from coterie.http import refusal_log
from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer

_PATIENCE = 30.0


def _answer(request: Request) -> Response:
    return Response(200 if request.path == "/open" else 401, b"x", "text/plain")


@pytest.fixture
async def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, int]]:
    """It asks for certificates of an authority that nobody here has. Time stands still."""
    monkeypatch.setattr(refusal_log, "SYSTEM_CLOCK", VirtualClock())
    now, key = datetime.now(UTC), pki.new_key("ec")
    authority = pki.self_signed_ca("ours", key, now=now)
    pki.save_key(tmp_path / "key", key)
    pki.save_certificate(tmp_path / "crt", authority.certificate)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    tls.load_verify_locations(tmp_path / "crt")
    tls.verify_mode = ssl.CERT_OPTIONAL
    other = pki.self_signed_ca("mallory", pki.new_key("ec"), now=now)
    pki.save_key(tmp_path / "other.key", other.key)
    pki.save_certificate(tmp_path / "other.crt", other.certificate)
    server = HttpServer(_answer)
    yield await server.listen("127.0.0.1", 0, tls)
    await server.stop(0)


def _tls(folder: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if folder is not None:
        made.load_cert_chain(folder / "other.crt", folder / "other.key")
    return made


async def _ask(door: tuple[str, int], path: str, tls: ssl.SSLContext | None) -> bytes:
    """The first line of the answer; nothing when there is none."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(*door, ssl=tls)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            return await reader.readline()
    except (OSError, asyncio.IncompleteReadError):
        return b""
    finally:
        if writer is not None:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name.endswith("http")]


async def test_lines(door: tuple[str, int], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert b"200" in await _ask(door, "/open", _tls())
    assert _lines(caplog) == []
    assert b"401" in await _ask(door, "/closed", _tls())
    assert await _ask(door, "/open", _tls(tmp_path)) == b""
    assert await _ask(door, "/open", None) == b""
    request, certificate, plain = _lines(caplog)
    assert request.startswith("Request refused") and certificate == plain == "TLS handshake failed"


async def test_who_only_looks_whether_the_port_is_open_leaves_none(
    door: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(door):
        pass
    assert b"200" in await _ask(door, "/open", _tls())
    assert _lines(caplog) == []


async def test_strangers_do_not_choose_how_long_the_log_is(
    door: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(60):
        await _ask(door, "/open", None)
    assert len(_lines(caplog)) == 20
