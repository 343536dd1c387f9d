"""A domain with nothing but its data mesh: an API server in memory, tables, and an engine that may read them.

    python -m benchmarks.data_domain FOLDER HTTP-PORT GRPC-PORT

Puts the engine's certificates into FOLDER as `engine.crt` and `engine.key`, then `ready.json`. Ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks import data_tables
from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.files import write_atomic
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.http.messages import UserInfo
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import DOMAIN_DATAS
from coterie.kuscia.datamesh.process import DataMeshProcess
from coterie.kuscia.datamesh.settings import MeshSettings
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.identity import domain_identity, engine_certificates
from coterie.kuscia.identity.engine_certificates import EngineIdentity

DOMAIN = "bench"
_ENGINE = "task-0"


async def serve(folder: Path, http: int, grpc: int) -> None:
    paths = DomainPaths.of(folder, DOMAIN).prepare()
    domain_identity.ensure(paths, DOMAIN, SecretValue(pki.key_pem(pki.new_key("rsa"), pkcs1=True)), SYSTEM_CLOCK.now())
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, UserInfo("bench", ("system:masters",))))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DOMAIN}}
    await client.create(Kind.dynamic(builtin("namespaces")), namespace)
    informers = Informers(client)
    settings = MeshSettings(DOMAIN, paths, "127.0.0.1", http, grpc)
    child = DataMeshProcess(settings, paths.run, client, informers, SYSTEM_CLOCK, everywhere=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, child.stop)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(informers.run())
        serving = tasks.create_task(child.run())
        await child.ready.wait()
        for name in data_tables.FORMATS:
            for what in ("in", "out"):
                await client.create(DOMAIN_DATAS.as_dynamic, _table(name, what), DOMAIN)
        await _engine(client, folder, paths)
        write_atomic(folder / "ready.json", json.dumps({"data": str(paths.data)}).encode())
        await serving
        watching.cancel()
    await server.stop()
    await store.close()


async def _engine(client: Client, folder: Path, paths: DomainPaths) -> None:
    marks = {labels.KUSCIA_INITIATOR: DOMAIN, labels.KUSCIA_TASK_ID: "task", labels.KUSCIA_JOB_ID: "job"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _ENGINE,
            "annotations": marks,
            "labels": {labels.KUSCIA_COMMUNICATION_ROLE_CLIENT: "true"},
        },
        "spec": {"containers": [{"name": "engine", "image": "engine:1"}]},
    }
    made = await client.create(PODS.as_dynamic, pod, DOMAIN)
    key = pki.load_key(paths.ca_key.read_bytes(), thorough=False)
    authority = pki.Authority(pki.load_certificate(paths.ca_certificate.read_bytes()), key)
    engine = EngineIdentity(DOMAIN, _ENGINE, made["metadata"]["uid"], "task", "job")
    pair = engine_certificates.issue_client_pair(authority, engine, SYSTEM_CLOCK.now())
    write_atomic(folder / "engine.crt", pair.certificate)
    write_atomic(folder / "engine.key", pair.key)


def _table(ending: str, what: str) -> dict[str, Any]:
    spec = {
        "relativeURI": f"{what}.{ending}", "author": DOMAIN, "name": ending, "type": "table", "vendor": "manual",
        "dataSource": "default-data-source", "columns": data_tables.COLUMNS,
    }  # fmt: skip
    head = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "DomainData"}
    return {**head, "metadata": {"name": f"{what}-{ending}"}, "spec": spec}


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
