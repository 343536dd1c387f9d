"""The console of a control plane: its port is held here, a child serves it while somebody looks."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.base import listener_handover
from coterie.base.files import private_directory
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.console.process import ConsoleProcess
from coterie.console.settings import ConsoleSettings
from coterie.kube.control.manager import Runnable
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import ConfigError
from coterie.node.parts.context import NodeContext

if TYPE_CHECKING:
    from coterie.base import pki, pki_files
else:
    pki = lazy_import("coterie.base.pki")
    pki_files = lazy_import("coterie.base.pki_files")

log = logger("node")
_PAIR = "console"
_PREDECESSOR_SECONDS = 0.3
"""For which the usual port may still be held by the process of a node that was killed."""


def build(node: NodeContext) -> list[list[Runnable]]:
    settings, chosen = node.settings, node.settings.console
    # Beside the gateway's sockets, whose directory is short enough for a socket's name.
    run = private_directory(GatewayPaths.of(settings.paths).run)
    open_port = listener_handover.listen if chosen.required else usual_or_any_port
    try:
        process = ConsoleProcess(
            console_settings(node), settings.paths, run, node.client, node.clock, open_port=open_port
        )
    except OSError as problem:
        where = f"{chosen.address}:{chosen.port}"
        if chosen.required:
            raise ConfigError(f"console.port: {where} cannot be opened ({problem.strerror})") from problem
        log.warning(
            "There is no console: its port cannot be opened; set console.host, or console.enabled: false",
            address=where,
            error=problem,
        )
        return []
    return [[process]]


def usual_or_any_port(address: str, port: int) -> socket.socket:
    """Another port where somebody has the usual one, such as another node: `coterie console` prints the right address
    in any case. Raises OSError."""
    try:
        return listener_handover.listen(address, port, wait=_PREDECESSOR_SECONDS)
    except OSError as problem:
        if problem.errno != errno.EADDRINUSE:
            raise
    made = listener_handover.listen(address, 0)
    log.info(
        "The usual port of the console is in use; it has another one (console.port)",
        usual=port,
        port=made.getsockname()[1],
    )
    return made


def console_settings(node: NodeContext) -> ConsoleSettings:
    """Plain HTTP on loopback, where nobody listens; HTTPS everywhere else."""
    settings, chosen = node.settings, node.settings.console
    made = ConsoleSettings(
        settings.domain,
        settings.mode,
        chosen.address,
        chosen.port,
        settings.paths.kubeconfig,
        read_only=chosen.read_only,
        exec=chosen.exec,
        names=chosen.names,
        log_rotation=settings.logrotate.of_node,
    )
    if ipaddress.ip_address(chosen.address).is_loopback:
        return made
    return _with_certificate(node, made)


def _with_certificate(node: NodeContext, made: ConsoleSettings) -> ConsoleSettings:
    paths = node.settings.paths
    authority = pki.Authority(
        pki.load_certificate(paths.ca_certificate.read_bytes()),
        pki.load_key(paths.ca_key.read_bytes(), thorough=False),
    )
    own = () if ipaddress.ip_address(made.address).is_unspecified else (made.address,)
    names = tuple(dict.fromkeys((*own, *made.names)))
    pair = pki_files.ensure_server(paths.certs, _PAIR, authority, names=names, now=node.clock.now())
    return replace(made, certificate=pair.certificate_path, key=pair.key_path)
