"""KusciaAPI and ConfManager, put together: from a client of the API and the domain's keys to open listeners.

async with KusciaApiServer(settings, here, OPERATIONS, run=directory) as server:      # server.http_port, server.grpc_port
    ...
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.base import listener_handover
from coterie.base.log import logger
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.control import running_engines
from coterie.kuscia.identity import domain_identity as identities
from coterie.kuscia.kusciaapi import health, server_certificates
from coterie.kuscia.kusciaapi.conf_manager_callers import OwnEngines
from coterie.kuscia.kusciaapi.dispatcher import Dispatcher
from coterie.kuscia.kusciaapi.grpc_frontend import GrpcFrontend
from coterie.kuscia.kusciaapi.http_frontend import HttpFrontend, anybody, lites_of, with_token
from coterie.kuscia.kusciaapi.master_forwarding import MasterForwarder
from coterie.kuscia.kusciaapi.operations import ApiOperation, OperationContext
from coterie.kuscia.kusciaapi.server_certificates import KusciaApiServerKeys
from coterie.kuscia.kusciaapi.settings import CONF_GRPC, CONF_HTTP, GRPC, HTTP, INNER, KusciaApiSettings, Protection

log = logger("kusciaapi")

_GRACE = 5.0
_GRPC_SOCKET, _CONF_GRPC_SOCKET = "kapi-grpc.sock", "kapi-conf.sock"


class KusciaApiServer:
    def __init__(
        self,
        settings: KusciaApiSettings,
        here: OperationContext,
        operations: Sequence[ApiOperation],
        conf_operations: Sequence[ApiOperation] = (),
        *,
        run: Path,
        listeners: Mapping[str, socket.socket] | None = None,
    ) -> None:
        """`conf_operations`: those of ConfManager. `run`: a private directory with a short path. `listeners`: None: as
        the settings say."""
        self._settings = settings
        self._run = run
        self._listeners = listeners
        self._forwarder = MasterForwarder(settings.gateway) if settings.gateway else None
        self.dispatcher = dispatcher = Dispatcher(here, self._forwarder)
        paths, protected = settings.paths, settings.protection is not Protection.NOTLS
        token = identities.ensure_api_token(paths, here.identity) if protected else None
        mutual = settings.protection is Protection.MTLS
        self._keys = KusciaApiServerKeys.of(paths, server_certificates.SERVER, mutual=mutual) if protected else None
        self._conf_keys = KusciaApiServerKeys.for_engines(paths)
        self._http = HttpFrontend(
            dispatcher, operations, with_token(token) if token is not None else anybody, settings.timeouts
        )
        self._inner = HttpFrontend(dispatcher, operations, lites_of(here.client, here.domain))
        engines = OwnEngines(here.client, here.domain)
        self._conf_http = HttpFrontend(
            dispatcher,
            (*conf_operations, *health.OPERATIONS),
            engines.recognise,
            settings.conf_timeouts,
            user_of=running_engines.user_of_certificate,
        )
        self._grpc = GrpcFrontend(dispatcher, operations, token)
        self._conf_grpc = GrpcFrontend(dispatcher, conf_operations, None, engines.refusal)
        self.http_port = self.grpc_port = self.conf_http_port = self.conf_grpc_port = 0

    async def __aenter__(self) -> KusciaApiServer:
        asked, keys, conf_keys = self._settings, self._keys, self._conf_keys
        found = self._listeners if self._listeners is not None else open_listeners(asked)
        self.http_port, self.grpc_port = _port(found[HTTP]), _port(found[GRPC])
        self.conf_http_port, self.conf_grpc_port = _port(found[CONF_HTTP]), _port(found[CONF_GRPC])
        try:
            await self._grpc.start(found[GRPC], self._run / _GRPC_SOCKET, keys)
            await self._http.server.serve(found[HTTP], keys.context() if keys is not None else None)
            await self._conf_grpc.start(found[CONF_GRPC], self._run / _CONF_GRPC_SOCKET, conf_keys)
            await self._conf_http.server.serve(found[CONF_HTTP], conf_keys.context())
            if INNER in found:
                await self._inner.server.serve(found[INNER])
        except BaseException:
            await self.__aexit__()
            listener_handover.close(*found.values())
            raise
        log.info("KusciaAPI is served", address=asked.address, http=self.http_port, grpc=self.grpc_port)
        return self

    async def __aexit__(self, *problem: object) -> None:
        https = (self._http, self._conf_http, self._inner)
        await asyncio.gather(
            *(each.server.stop(_GRACE) for each in https),
            self._grpc.stop(_GRACE),
            self._conf_grpc.stop(_GRACE),
        )
        await self.dispatcher.here.known_jobs.close()
        if self._forwarder is not None:
            await self._forwarder.close()


def open_listeners(asked: KusciaApiSettings) -> dict[str, socket.socket]:
    made: dict[str, socket.socket] = {}
    try:
        for name, address, port in asked.ports:
            made[name] = listener_handover.listen(address, port)
        if asked.inner is not None:
            made[INNER] = private_socket(asked.inner)
    except OSError:
        listener_handover.close(*made.values())
        raise
    return made


def _port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])
