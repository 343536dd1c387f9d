"""The program of gateway pods: `python -m coterie.functions.gateway`. Settings are in the environment; ends on SIGTERM.

COTERIE_LINK_TOKEN                the token of the link
COTERIE_INVOKE_TOKEN              whoever has it may call actions by name
COTERIE_GATEWAY_OWN_NETWORK       1: the loopback is the pod's own
COTERIE_GATEWAY_MAX_BODY          bytes of a request's body
COTERIE_GATEWAY_ADDRESS           where to listen; every address
COTERIE_GATEWAY_PORT, COTERIE_GATEWAY_LINK_PORT
COTERIE_GATEWAY_GRACE             seconds for requests under way when it ends
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop

from coterie.base import log
from coterie.base.secret import SecretValue
from coterie.functions.gateway.server import MAX_BODY, GatewayServer, HttpGatewaySettings

_PORT, _LINK_PORT = 6810, 6812
"""As in kuscia/api/functions/types.py, which would load the whole API."""
_DRAIN_SECONDS = 1.0
"""Until nobody sends new requests here."""


async def serve() -> None:
    environment = os.environ
    invoke_token = environment.pop("COTERIE_INVOKE_TOKEN", "")
    server = GatewayServer(
        HttpGatewaySettings(
            link_token=SecretValue(environment.pop("COTERIE_LINK_TOKEN")),
            invoke_token=SecretValue(invoke_token) if invoke_token else None,
            own_network=environment.get("COTERIE_GATEWAY_OWN_NETWORK") == "1",
            max_body=int(environment.get("COTERIE_GATEWAY_MAX_BODY") or MAX_BODY),
        )
    )
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    address = environment.get("COTERIE_GATEWAY_ADDRESS") or "0.0.0.0"
    await server.link.listen(address, int(environment.get("COTERIE_GATEWAY_LINK_PORT") or _LINK_PORT))
    _, port = await server.http.listen(address, int(environment.get("COTERIE_GATEWAY_PORT") or _PORT))
    log.logger("functions.gateway").info("Gateway listens", port=port)
    await ended.wait()
    await asyncio.sleep(_DRAIN_SECONDS)
    await server.stop(float(environment.get("COTERIE_GATEWAY_GRACE") or 90.0))


def main() -> None:
    log.configure()
    if not os.environ.get("COTERIE_LINK_TOKEN"):
        sys.exit("COTERIE_LINK_TOKEN is not set: the functions process gives each gateway its token")
    uvloop.run(serve())


if __name__ == "__main__":
    main()
