"""The functions process without a control plane: bus, dispatcher and links, for benchmarks and kill tests.

The specification comes as a file with JSON: `directory`, `gateways` (uid, port), `token`, `actions` (name, next, concurrency, actors: ports),
`routes` (path, action).
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from coterie.base import log
from coterie.functions.bus.factory import open_bus
from coterie.functions.dispatcher.actor_client import HttpActorCaller
from coterie.functions.dispatcher.dispatcher import CallDispatcher
from coterie.functions.gateway.link_messages import TriggerRoute
from coterie.functions.gateway.links import GatewayAddress, GatewayLinks
from coterie.functions.model import ActionConfig, ActorAddress
from coterie.functions.pod_connections import PodConnections

VERSION = "v1"


async def serve(specification: dict[str, Any]) -> None:
    directory, token = Path(specification["directory"]), specification["token"]
    bus = await open_bus(specification.get("bus", "embedded"), directory / "bus.db", "bench.")
    connections = PodConnections()
    dispatcher = CallDispatcher(bus, HttpActorCaller(connections.connect), index=directory / "results.db")
    links = GatewayLinks(bus, dispatcher, connections.connect)
    actions = specification["actions"]
    dispatcher.configure(
        {
            each["name"]: ActionConfig(
                name=each["name"],
                next=frozenset(each["next"]),
                timeout=each.get("timeout", 30.0),
                concurrency=each["concurrency"],
                retries=each.get("retries", 3),
                first_delay=0.05,
                traffic={VERSION: 100},
            )
            for each in actions
        }
    )
    for each in actions:
        dispatcher.set_actors(
            each["name"],
            [ActorAddress(f"{each['name']}-{port}", each["name"], VERSION, "127.0.0.1", port, token) for port in each["actors"]],
        )  # fmt: skip
    links.set_routes([TriggerRoute(path=each["path"], action=each["action"]) for each in specification["routes"]])
    links.set_gateways(
        [GatewayAddress(each["uid"], "127.0.0.1", each["port"], token) for each in specification["gateways"]]
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    tasks = [asyncio.ensure_future(dispatcher.run()), asyncio.ensure_future(links.run())]
    waiting = asyncio.ensure_future(ended.wait())
    await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, waiting):
        task.cancel()
    await asyncio.gather(*tasks, waiting, return_exceptions=True)
    await bus.close()


def main() -> None:
    log.configure()
    uvloop.run(serve(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
