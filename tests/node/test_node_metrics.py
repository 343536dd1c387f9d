"""The page of metrics as a part of a node: its port, its token, what stands on it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.node.config import ConfigError
from coterie.node.config.settings import MetricsConfig
from coterie.node.parts import metrics


def test_a_port_that_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    """Asked for: the node does not start. By default: it runs without the page."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert metrics.open_port(MetricsConfig(port=port)) is None
        with pytest.raises(ConfigError, match=r"metrics.port: 127.0.0.1:\d+ cannot be opened"):
            metrics.open_port(MetricsConfig(port=port, required=True))
    found = metrics.open_port(MetricsConfig(port=0))
    assert found is not None
    found.close()


def test_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    access = metrics.access(MetricsConfig(token_file=str(file), allow=("10.0.0.0/24",)))
    assert access.allows("192.0.2.1", "Bearer s3cret")
    assert access.allows("10.0.0.1", "")
    assert "s3cret" not in repr(access)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        metrics.access(MetricsConfig(token_file=str(file)))
    with pytest.raises(ConfigError, match="cannot be read"):
        metrics.access(MetricsConfig(token_file=str(tmp_path / "missing")))


def own_address() -> str:
    """An address of this machine that is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.mark.skipif(own_address() in ("", "127.0.0.1"), reason="this machine has no address but its loopback")
async def test_who_may_scrape_from_another_address(tmp_path: Path) -> None:
    """Over real sockets: a dashboard elsewhere without a token, with a wrong one, with the right one, and from a named address."""
    file = tmp_path / "token"
    file.write_text("s3cret")
    address = own_address()

    async def status(config: MetricsConfig, authorization: str = "") -> int:
        bound = metrics.open_port(config)
        assert bound is not None
        port = metrics.MetricsPort(bound, (), (), metrics.access(config), SYSTEM_CLOCK)
        running = asyncio.create_task(port.run())
        await port.ready.wait()
        headers = {"Authorization": authorization} if authorization else {}
        where = f"http://{address}:{bound.getsockname()[1]}/metrics"
        async with aiohttp.ClientSession() as session, session.get(where, headers=headers) as answer:
            found, text = answer.status, await answer.text()
        port.stop()
        await running
        assert ("coterie_source_up" in text) is (found == 200)
        return found

    plain = MetricsConfig(address="0.0.0.0", port=0)
    assert await status(plain) == 401
    assert await status(plain, "Bearer s3cret") == 401
    guarded = replace(plain, token_file=str(file))
    assert [await status(guarded, each) for each in ("", "Bearer wrong", "Bearer s3cret")] == [401, 401, 200]
    assert await status(replace(plain, allow=(f"{address}/32",))) == 200
    assert await status(replace(plain, allow=("198.51.100.0/24",))) == 401
