"""Our API server with two of our nodes and none of our controllers and schedulers, in a process of its own.

    python platform_process.py DIRECTORY

Writes DIRECTORY/kubeconfig once it is ready. Pods run in our runtime as processes of this machine.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.http.messages import UserInfo
from coterie.http.server import HttpServer
from coterie.kube.agent import agent
from coterie.kube.agent.runtimes.runp.halt import halt
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.agent.runtimes.runp.settings import RunpSettings
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.api.status_response import status_response
from coterie.kube.apiserver.auth.authn import user_from_certificate
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Manager
from coterie.kube.store import MemoryStore
from coterie.node import api_identity

NODES = ("node-1", "node-2")


async def main(root: Path) -> None:
    paths = DomainPaths(root / "platform").prepare()
    identity = api_identity.ensure(paths, ("127.0.0.1", "localhost", "kubernetes"), SYSTEM_CLOCK)
    store = MemoryStore()
    await store.open()
    settings = Settings(
        signer=TokenSigner(identity.token_key),
        agent_tls=identity.agent_tls,
        authentication_info=identity.authentication_info(),
    )
    server = ApiServer(store, settings)
    await server.start()
    http = HttpServer(server.handle, user_of=user_from_certificate, problem_response=status_response)
    host, port = await http.listen("127.0.0.1", 0, identity.server_tls())
    groups = []
    for name in NODES:
        client = Client(InProcessTransport(server.handle, _node_user(name)))
        informers = Informers(client)
        home = DomainPaths(root / name).prepare()
        runtime = RunpRuntime(RunpSettings(directory=home.var / "runp", images=home.var / "images", node=name))
        made = agent.make(client, informers, runtime, AgentSettings(name, home, machine_id=name, port=0))
        groups.append(Manager([[informers], *made.groups], name=name))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running = [asyncio.create_task(manager.run()) for manager in groups]
    certificate, key = identity.pair("admin")
    kubeconfig.make(
        "platform",
        f"https://{host}:{port}",
        ca=identity.ca_file.read_bytes(),
        certificate=certificate.read_bytes(),
        key=key.read_bytes(),
    ).write(root / "kubeconfig")
    await stop.wait()
    for manager in groups:
        manager.stop()
    await asyncio.gather(*running, return_exceptions=True)
    await http.stop()
    await server.stop()
    await store.close()
    for name in NODES:
        await halt(DomainPaths(root / name).var / "runp", name, 0.0, forget=True)


def _node_user(name: str) -> UserInfo:
    return UserInfo(f"system:node:{name}", ("system:nodes", "system:authenticated"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
