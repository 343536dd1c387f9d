"""What a data mesh is told: read by the node, and handed to the process that serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.paths import DomainPaths

HTTP_PORT, GRPC_PORT = 8070, 8071
HTTP, GRPC = "http", "grpc"
"""Names of the listeners."""


@dataclass(frozen=True, slots=True)
class DataProxy:
    """A Flight server that opens sources of some types."""

    endpoint: str
    """host:port"""
    types: tuple[str, ...]
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    secure: bool = False
    """TLS; False: settings of sources go to it in clear text."""
    direct: bool = False
    """`mode: direct`, which is said to change nothing: rows pass through the data mesh."""


@dataclass(frozen=True, slots=True)
class MeshSettings:
    domain: str
    paths: DomainPaths
    address: str = "127.0.0.1"
    http_port: int = HTTP_PORT
    grpc_port: int = GRPC_PORT
    recheck_seconds: float = 1.0
    """Seconds between two looks at a grant while rows flow."""
    log_rotation: Rotation = STANDARD
    names: tuple[str, ...] = ()
    """Further names and addresses under which it is reached, for its certificate."""
    direct_grpc: bool = False
    """gRPC opens its port itself, beside the listener that it is given: rows then pass without a copy in between. Only in
    a network namespace in which no other program is."""
    only_data_directory: bool = False
    """Local sources outside of the data directory need the operator's consent: of a lite, at its control plane."""
    node: str = ""
    """The node on which it runs, where the files of local sources are; empty: all engines are here."""
    netns: Path | None = None
    """The network namespace in which gRPC opens its port; None: our own."""
    evidence: Path | None = None
    """The socket of the evidence log; None: there is none."""
    traces: Path | None = None
    """The socket to which spans are sent; None: there are none."""
    proxies: tuple[DataProxy, ...] = ()


def proxies_text(proxies: Sequence[DataProxy]) -> str:
    """For the command line of the child; only names of files, no secrets."""
    return msgspec.json.encode(tuple(proxies)).decode()


def proxies_of(text: str) -> tuple[DataProxy, ...]:
    return msgspec.json.decode(text, type=tuple[DataProxy, ...])
