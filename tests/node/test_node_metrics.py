"""The page of metrics as a part of a node: its port, its token, what stands on it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

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
