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
from coterie.kuscia.kusciaapi.dispatcher import Desk
from coterie.kuscia.kusciaapi.grpc_frontend import GrpcDoor
from coterie.kuscia.kusciaapi.http_frontend import HttpDoor, anybody, lites_of, with_token
from coterie.kuscia.kusciaapi.master_forwarding import Forwarder
from coterie.kuscia.kusciaapi.operations import Here, Operation
from coterie.kuscia.kusciaapi.server_certificates import ServerKeys
from coterie.kuscia.kusciaapi.settings import KusciaApiSettings, Protection

log = logger("kusciaapi")

_GRACE = 5.0


class Doors:
    def __init__(
        self,
        settings: KusciaApiSettings,
        here: Here,
        operations: Sequence[Operation],
        conf_operations: Sequence[Operation] = (),
    ) -> None:
        """`conf_operations`: those of ConfManager."""
        self._settings = settings
        self._forwarder = Forwarder(settings.gateway) if settings.gateway else None
        self.desk = desk = Desk(here, self._forwarder)
        paths, protected = settings.paths, settings.protection is not Protection.NOTLS
        token = identities.ensure_api_token(paths, here.identity) if protected else None
        mutual = settings.protection is Protection.MTLS
        self._keys = ServerKeys.of(paths, server_certificates.SERVER, mutual=mutual) if protected else None
        self._conf_keys = ServerKeys.of(paths, server_certificates.CONF_MANAGER, mutual=True)
        self._http = HttpDoor(desk, operations, with_token(token) if token is not None else anybody, settings.timeouts)
        self._inner = HttpDoor(desk, operations, lites_of(here.client, here.domain))
        self._conf_http = HttpDoor(desk, (*conf_operations, *health.OPERATIONS), anybody, settings.conf_timeouts)
        self._grpc = GrpcDoor(desk, operations, token)
        self._conf_grpc = GrpcDoor(desk, conf_operations, None)
        self.http_port = self.grpc_port = self.conf_http_port = self.conf_grpc_port = 0

    async def __aenter__(self) -> Doors:
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


async def _open(door: HttpDoor, address: str, port: int, shown: ServerKeys | None) -> int:
    bound = listener_handover.shared(address, port)
    number = int(bound.getsockname()[1])
    await door.server.serve(bound, shown.context() if shown is not None else None)
    return number
