"""KusciaAPI and ConfManager, put together: from a client of the API and the domain's keys to open doors.

async with Doors(settings, here, OPERATIONS) as doors:      # doors.http_port, doors.grpc_port
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coterie.base import listener_handover
from coterie.base.log import logger
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.identity import domain_identity as identities
from coterie.kuscia.kusciaapi import health, server_certificates
from coterie.kuscia.kusciaapi.dispatcher import Dispatcher
from coterie.kuscia.kusciaapi.grpc_frontend import GrpcFrontend
from coterie.kuscia.kusciaapi.http_frontend import HttpFrontend, anybody, lites_of, with_token
from coterie.kuscia.kusciaapi.master_forwarding import MasterForwarder
from coterie.kuscia.kusciaapi.operations import ApiOperation, OperationContext
from coterie.kuscia.kusciaapi.server_certificates import KusciaApiServerKeys
from coterie.kuscia.kusciaapi.settings import KusciaApiSettings, Protection

log = logger("kusciaapi")

_GRACE = 5.0


class KusciaApiServer:
    def __init__(
        self,
        settings: KusciaApiSettings,
        here: OperationContext,
        operations: Sequence[ApiOperation],
        conf_operations: Sequence[ApiOperation] = (),
    ) -> None:
        """`conf_operations`: those of ConfManager."""
        self._settings = settings
        self._forwarder = MasterForwarder(settings.gateway) if settings.gateway else None
        self.dispatcher = dispatcher = Dispatcher(here, self._forwarder)
        paths, protected = settings.paths, settings.protection is not Protection.NOTLS
        token = identities.ensure_api_token(paths, here.identity) if protected else None
        mutual = settings.protection is Protection.MTLS
        self._keys = KusciaApiServerKeys.of(paths, server_certificates.SERVER, mutual=mutual) if protected else None
        self._conf_keys = KusciaApiServerKeys.of(paths, server_certificates.CONF_MANAGER, mutual=True)
        self._http = HttpFrontend(
            dispatcher, operations, with_token(token) if token is not None else anybody, settings.timeouts
        )
        self._inner = HttpFrontend(dispatcher, operations, lites_of(here.client, here.domain))
        self._conf_http = HttpFrontend(
            dispatcher, (*conf_operations, *health.OPERATIONS), anybody, settings.conf_timeouts
        )
        self._grpc = GrpcFrontend(dispatcher, operations, token)
        self._conf_grpc = GrpcFrontend(dispatcher, conf_operations, None)
        self.http_port = self.grpc_port = self.conf_http_port = self.conf_grpc_port = 0

    async def __aenter__(self) -> KusciaApiServer:
        asked = self._settings
        try:
            self.grpc_port = await self._grpc.start(asked.address, asked.grpc_port, self._keys)
            self.http_port = await _open(self._http, asked.address, asked.http_port, self._keys)
            self.conf_grpc_port = await self._conf_grpc.start(asked.conf_address, asked.conf_grpc_port, self._conf_keys)
            self.conf_http_port = await _open(
                self._conf_http, asked.conf_address, asked.conf_http_port, self._conf_keys
            )
            if asked.inner is not None:
                await self._inner.server.serve(private_socket(asked.inner))
        except BaseException:
            await self.__aexit__()
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
        if self._forwarder is not None:
            await self._forwarder.close()


async def _open(frontend: HttpFrontend, address: str, port: int, shown: KusciaApiServerKeys | None) -> int:
    bound = listener_handover.listen_shared(address, port)
    number = int(bound.getsockname()[1])
    await frontend.server.serve(bound, shown.context() if shown is not None else None)
    return number
