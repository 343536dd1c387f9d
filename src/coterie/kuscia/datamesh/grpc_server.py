"""The gRPC port: metadata services, Arrow Flight and reflection, with mutual TLS.

gRPC cannot listen on a descriptor, so its connections come by a private Unix socket (base/connection_pump.py), or to a port
that it opens itself. Its peer's address is not used: a certificate says who calls. Rows pass as the bytes they are (see `flightdata`); everything else is small. Whoever has no certificate of the domain's
authority does not get through the TLS handshake; who has one is looked up for each call.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection

from coterie.base import network_namespace, pki
from coterie.base.connection_pump import ConnectionPump, private_address
from coterie.base.log import logger
from coterie.base.pki import PkiError
from coterie.kuscia.datamesh import messages
from coterie.kuscia.datamesh.authentication import EngineAuthenticator, EngineCaller
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError, MeshErrorCode
from coterie.kuscia.datamesh.flight import Flight
from coterie.kuscia.datamesh.services import MeshOperation
from coterie.kuscia.identity import engine_certificates
from coterie.kuscia.identity.engine_certificates import EngineIdentity

log = logger("datamesh.grpc")

_LARGEST_MESSAGE = 256 << 20
_OPTIONS = [
    ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.so_reuseport", 1),
]
_FLIGHT = f"{messages.FLIGHT}.FlightService"

Context = grpc.aio.ServicerContext[Any, Any]


class GrpcServer:
    def __init__(self, callers: EngineAuthenticator, operations: Sequence[MeshOperation], flight: Flight) -> None:
        self._callers = callers
        self._operations = operations
        self._flight = flight
        self._server: grpc.aio.Server | None = None
        self._pump: ConnectionPump | None = None

    async def start(
        self,
        listener: socket.socket,
        inside: Path,
        credentials: grpc.ServerCredentials,
        *,
        direct: str = "",
        netns: Path | None = None,
    ) -> None:
        """`inside`: the Unix socket on which gRPC listens. `direct`: an address that it opens itself too, in the network
        namespace `netns`. Raises RuntimeError, OSError."""
        server = grpc.aio.server(options=_OPTIONS)
        handlers = [self._services(), self._flights()]
        server.add_generic_rpc_handlers([each for group in handlers for each in group])
        names = {f"{messages.DATAMESH}.{each.service}" for each in self._operations}
        reflection.enable_server_reflection(
            [*sorted(names), _FLIGHT, reflection.SERVICE_NAME], server, pool=messages.FILES.pool
        )
        if direct:
            with network_namespace.entered(netns) if netns is not None else nullcontext():
                server.add_secure_port(direct, credentials)
        with private_address(inside) as address:
            server.add_secure_port(address, credentials)
        await server.start()
        self._server = server
        self._pump = ConnectionPump(listener, inside)
        self._pump.start()

    async def stop(self, grace: float) -> None:
        if self._pump is not None:
            self._pump.stop_accepting()
        if self._server is not None:
            await self._server.stop(grace)
        if self._pump is not None:
            self._pump.close()

    # Handlers.

    def _services(self) -> list[grpc.GenericRpcHandler]:
        services: dict[str, dict[str, Any]] = {}
        for each in self._operations:
            services.setdefault(each.service, {})[each.method] = grpc.unary_unary_rpc_method_handler(
                functools.partial(self._unary, each)
            )
        return [
            grpc.method_handlers_generic_handler(f"{messages.DATAMESH}.{service}", methods)
            for service, methods in services.items()
        ]

    def _flights(self) -> list[grpc.GenericRpcHandler]:
        descriptor, flight = messages.flight("FlightDescriptor"), self._flight
        schema = functools.partial(self._handle, descriptor, flight.schema)
        info = functools.partial(self._handle, descriptor, flight.info)
        methods: dict[str, Any] = {
            "GetSchema": grpc.unary_unary_rpc_method_handler(schema),
            "GetFlightInfo": grpc.unary_unary_rpc_method_handler(info),
            "DoGet": grpc.unary_stream_rpc_method_handler(self._get),
            "DoPut": grpc.stream_stream_rpc_method_handler(self._put),
            "DoAction": grpc.unary_stream_rpc_method_handler(self._action),
        }
        return [grpc.method_handlers_generic_handler(_FLIGHT, methods)]

    async def _unary(self, operation: MeshOperation, data: bytes, context: Context) -> bytes:
        async def work(caller: EngineCaller) -> bytes:
            answer = await operation.run(caller, _parsed(operation.request, data))
            return bytes(answer.SerializeToString())

        return bytes(await self._called(context, work))

    async def _handle(
        self, request: Any, work: Callable[[EngineCaller, Any], Awaitable[Any]], data: bytes, context: Any
    ) -> bytes:
        async def asked(caller: EngineCaller) -> bytes:
            return bytes((await work(caller, _parsed(request, data))).SerializeToString())

        return bytes(await self._called(context, asked))

    async def _action(self, data: bytes, context: Context) -> AsyncIterator[bytes]:
        yield await self._handle(messages.flight("Action"), self._flight.action, data, context)

    async def _get(self, data: bytes, context: Context) -> None:
        """Writes into the context: a stream that is stopped must end with an error, not just end."""

        async def work(caller: EngineCaller) -> None:
            ticket = _parsed(messages.flight("Ticket"), data).ticket
            async for message in self._flight.get(caller, ticket):
                await context.write(message)

        await self._called(context, work)

    async def _put(self, incoming: AsyncIterator[bytes], context: Context) -> None:
        async def work(caller: EngineCaller) -> None:
            await self._flight.put(caller, incoming)

        await self._called(context, work)

    async def _called(self, context: Context, work: Callable[[EngineCaller], Awaitable[Any]]) -> Any:
        try:
            return await work(await self._callers.find(engine_of(context)))
        except MeshError as problem:
            failure = problem
        except Exception as error:  # noqa: BLE001 - gRPC would tell the caller its text, whatever stands in it
            log.error("A call failed", error=error, trace=True)
            failure = MeshError(
                MeshErrorCode.UNEXPECTED, "internal error of the data mesh; see its log", GrpcStatusName.INTERNAL
            )
        await context.abort(grpc.StatusCode[failure.kind], f"{int(failure.code)}: {failure}")


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as problem:
        raise MeshError(MeshErrorCode.INVALID, f"not a {kind.DESCRIPTOR.name}") from problem


def engine_of(context: Any) -> EngineIdentity | None:
    found = context.auth_context().get("x509_pem_cert") or ()
    return _engine(bytes(found[0])) if found else None


@functools.lru_cache(maxsize=1024)
def _engine(pem: bytes) -> EngineIdentity | None:
    try:
        return engine_certificates.engine_of(pki.load_certificate(pem))
    except (PkiError, ValueError):
        return None


def credentials(certificate: bytes, key: bytes, authority: bytes) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=authority, require_client_auth=True)


def quiet() -> None:
    """gRPC's own log goes to standard error in a form of its own; only what is wrong is wanted."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
