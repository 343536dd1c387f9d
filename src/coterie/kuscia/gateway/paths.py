"""Where the gateway's files and sockets lie."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.base.paths import DomainPaths
from coterie.kuscia.gateway.addresses import SocketAddress

if TYPE_CHECKING:
    import tempfile
else:
    tempfile = lazy_import("tempfile")

_LONGEST_RUN = 90
"""Bytes: 107 for a socket's path, less the longest name in there."""


@dataclass(frozen=True, slots=True)
class GatewayPaths:
    """Where the gateway's files lie."""

    directory: Path
    """Envoy's configuration."""
    run: Path
    """Sockets, the process id, client keys that routes brought. Only this user gets in."""
    logs: Path

    @classmethod
    def of(cls, paths: DomainPaths) -> GatewayPaths:
        return cls(paths.var / "gateway", _short(paths.run / "gateway", paths.home), paths.logs / "envoy")

    @property
    def node_socket(self) -> SocketAddress:
        """Where the node itself calls its gateway."""
        return self._socket("gw.sock")

    @property
    def handshake_socket(self) -> SocketAddress:
        """Where the handshake server listens; only our own Envoy comes here. So with the next two."""
        return self._socket("handshake.sock")

    @property
    def traces_socket(self) -> Path:
        """Where child processes of the node send their spans."""
        return self.run / "traces.sock"

    @property
    def reporter_socket(self) -> SocketAddress:
        return self._socket("reporter.sock")

    @property
    def api_socket(self) -> SocketAddress:
        return self._socket("api.sock")

    @property
    def diagnose_socket(self) -> SocketAddress:
        return self._socket("diagnose.sock")

    @property
    def diagnose_grpc_socket(self) -> SocketAddress:
        return self._socket("diagnose-g.sock")

    @property
    def hops_socket(self) -> SocketAddress:
        """Where partners' calls and replies to functions arrive."""
        return self._socket("hops.sock")

    @property
    def witness_socket(self) -> SocketAddress:
        """Where checkpoints of partners' evidence logs arrive."""
        return self._socket("witness.sock")

    @property
    def transport_socket(self) -> SocketAddress:
        """Where messages of partners' engines arrive."""
        return self._socket("ptp.sock")

    @property
    def transport_engines_socket(self) -> SocketAddress:
        """Where our own engines take their messages."""
        return self._socket("ptp-own.sock")

    @property
    def poll_socket(self) -> SocketAddress:
        """Where partners fetch calls in Kuscia's frames."""
        return self._socket("poll.sock")

    @property
    def poll_calls_socket(self) -> SocketAddress:
        """Where calls to such partners become frames."""
        return self._socket("poll-own.sock")

    @property
    def poll_entrance_socket(self) -> SocketAddress:
        """Where Envoy takes calls that we fetched."""
        return self._socket("poll-in.sock")

    @property
    def bfia_socket(self) -> SocketAddress:
        """Where scheduling requests of partners that speak BFIA arrive."""
        return self._socket("bfia.sock")

    def _socket(self, name: str) -> SocketAddress:
        return SocketAddress(str(self.run / name), 0)


def _short(wanted: Path, home: Path) -> Path:
    """The path of a socket has a limit; below a deep root the sockets lie among the machine's temporary files."""
    if len(str(wanted).encode()) <= _LONGEST_RUN:
        return wanted
    name = f"coterie-{sha256(str(home).encode()).hexdigest()[:16]}"
    found = Path(tempfile.gettempdir()) / name
    return found if len(str(found).encode()) <= _LONGEST_RUN else Path("/tmp") / name
