"""The gRPC listeners: the same operations, with reflection. Who has no token is UNAUTHENTICATED.

gRPC cannot listen on a descriptor, so its connections come by a private Unix socket (base/connection_pump.py). The peer's
address in gRPC is therefore that socket; nothing here uses it.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection

from coterie.base.connection_pump import ConnectionPump, private_address
from coterie.base.secret import SecretValue
from coterie.kuscia.kusciaapi import messages
from coterie.kuscia.kusciaapi.authorization import OPERATOR
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused
from coterie.kuscia.kusciaapi.dispatcher import Dispatcher
from coterie.kuscia.kusciaapi.operations import ApiOperation
from coterie.kuscia.kusciaapi.server_certificates import KusciaApiServerKeys

_LARGEST_MESSAGE = 256 << 20
_OPTIONS = [
    ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    ("grpc.max_send_message_length", _LARGEST_MESSAGE),
]
_STATUS = {
    ApiErrorCode.VALIDATION: grpc.StatusCode.INVALID_ARGUMENT,
    ApiErrorCode.PERMISSION: grpc.StatusCode.PERMISSION_DENIED,
    ApiErrorCode.CALL_TO_MASTER: grpc.StatusCode.UNAVAILABLE,
    ApiErrorCode.NOT_ON_LITE: grpc.StatusCode.UNIMPLEMENTED,
    ApiErrorCode.NOT_ON_MASTER: grpc.StatusCode.UNIMPLEMENTED,
}
"""Of streams whose responses have no field for what went wrong."""

Context = grpc.aio.ServicerContext[Any, Any]


class GrpcFrontend:
    def __init__(
        self,
        dispatcher: Dispatcher,
        operations: Sequence[ApiOperation],
        token: SecretValue | None,
        refusal: Callable[[bytes], Awaitable[str]] | None = None,
    ) -> None:
        """`token`: what callers show; None: nothing. `refusal`: why the owner of a certificate (PEM) is not served."""
        self._refusal = refusal
        self._dispatcher = dispatcher
        self._operations = operations
        self._token = token.reveal().encode() if token is not None else None
        self._server: grpc.aio.Server | None = None
        self._pump: ConnectionPump | None = None

    async def start(self, listener: socket.socket, inside: Path, keys: KusciaApiServerKeys | None) -> None:
        """`inside`: the Unix socket on which gRPC listens. `keys`: None for plain text. Raises RuntimeError, OSError."""
        server = grpc.aio.server(options=_OPTIONS)
        services: dict[str, dict[str, Any]] = {}
        for each in self._operations:
            services.setdefault(f"{each.package}.{each.service}", {})[each.method] = self._handler(each)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]
        )
        reflection.enable_server_reflection(
            [*sorted(services), reflection.SERVICE_NAME], server, pool=messages.FILES.pool
        )
        with private_address(inside) as address:
            if keys is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _credentials(keys))
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

    def _handler(self, operation: ApiOperation) -> Any:
        if operation.stream is not None:
            return grpc.unary_stream_rpc_method_handler(functools.partial(self._streamed, operation))
        return grpc.unary_unary_rpc_method_handler(functools.partial(self._unary, operation))

    async def _unary(self, operation: ApiOperation, data: bytes, context: Context) -> bytes:
        request = await self._admitted(operation, data, context)
        answer = await self._dispatcher.answer(operation, OPERATOR, request)
        return bytes(answer.SerializeToString())

    async def _streamed(self, operation: ApiOperation, data: bytes, context: Context) -> None:
        """Writes into the context: it waits for slow readers, and is cancelled when the reader leaves."""
        request = await self._admitted(operation, data, context)
        async with contextlib.aclosing(self._dispatcher.pieces(operation, OPERATOR, request)) as pieces:
            try:
                async for piece in pieces:
                    await context.write(piece.SerializeToString())
                return
            except CallRefused as problem:
                failure = problem
        status = _STATUS.get(failure.code, grpc.StatusCode.UNKNOWN)
        await context.abort(status, f"{int(failure.code)}: {failure}")

    async def _admitted(self, operation: ApiOperation, data: bytes, context: Context) -> Any:
        if self._token is not None:
            shown = dict(context.invocation_metadata() or ()).get("token", "")
            if not hmac.compare_digest(shown.encode() if isinstance(shown, str) else shown, self._token):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the metadata `token` is missing or wrong")
        if self._refusal is not None:
            certificates = context.auth_context().get("x509_pem_cert") or ()
            if why := await self._refusal(next(iter(certificates), b"")):
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
        try:
            return operation.request.FromString(data)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the message is no {operation.request.DESCRIPTOR.name}"
            )


def _credentials(keys: KusciaApiServerKeys) -> grpc.ServerCredentials:
    pair = (keys.key.read_bytes(), keys.certificate.read_bytes())
    authority = keys.authority.read_bytes() if keys.mutual else None
    return grpc.ssl_server_credentials([pair], root_certificates=authority, require_client_auth=keys.mutual)


def quiet() -> None:
    """gRPC's own log goes to standard error in a form of its own; only what is wrong is wanted."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
