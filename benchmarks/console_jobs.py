"""An API server with many jobs and nobody who works on them, for the console's benchmark. Commands are JSON lines on standard input:

{"create": 10000}                  jobs, the newest is the last
{"rate": 100, "changes": 1000}     status changes, each second or (rate 0) as fast as they go; every tenth is of the newest job
                                   answer: {"seconds": ..., "at": {"9": <seconds since 1970 at which the newest job got the message "count 9.">}}
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
import time
from pathlib import Path
from typing import Any

from coterie.base import pki_files
from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.base.secret import SecretValue
from coterie.http.messages import UserInfo
from coterie.http.server import HttpServer
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.extensions.apiserver import KUSCIA

JOBS = KUSCIA_JOBS.as_dynamic
TOKEN = "bench"
PARTIES = ("alice", "bob", "carol")
PHASES = ("Succeeded", "Running", "Failed", "Pending")


async def serve(folder: Path) -> None:
    store = MemoryStore()
    await store.open()
    admin = UserInfo("admin", ("system:masters",))
    server = ApiServer(store, Settings(extensions=[KUSCIA], static_tokens=[(SecretValue(TOKEN), admin)]), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, admin, timeout=None))
    for name in PARTIES:
        await client.create(Kind.dynamic(builtin("namespaces")), {"metadata": {"name": name}})
        await client.create(DOMAINS.as_dynamic, {"metadata": {"name": name}, "spec": {"cert": ""}})
    template = {"name": "t", "spec": {"containers": [{"name": "c", "workingDir": "/"}]}}
    image = {"image": {"name": "psi", "tag": "1", "id": "ab" * 32}, "deployTemplates": [template]}
    await client.create(APP_IMAGES.as_dynamic, {"metadata": {"name": "psi"}, "spec": image})
    authority = pki_files.ensure_authority(folder, "bench", now=SYSTEM_CLOCK.now())
    pair = pki_files.ensure_server(folder, "apiserver", authority, names=["127.0.0.1"], now=SYSTEM_CLOCK.now())
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate_path, pair.key_path)
    web = HttpServer(server.handle)
    _, port = await web.listen("127.0.0.1", 0, tls)
    made = kubeconfig.make("bench", f"https://127.0.0.1:{port}", ca=(folder / "ca.crt").read_bytes())
    made.write(folder / "kubeconfig")
    print(json.dumps({"port": port}), flush=True)
    loop = asyncio.get_running_loop()
    jobs = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        if "create" in asked:
            await create(client, jobs, asked["create"] - 1)
            await asyncio.sleep(1.1)  # creation times have whole seconds, and the last is to be the newest
            await create(client, jobs + asked["create"] - 1, 1)
            jobs += asked["create"]
            answer: dict[str, Any] = {}
        else:
            answer = await change(client, jobs, asked["rate"], asked["changes"])
        print(json.dumps(answer), flush=True)


async def create(client: Client, first: int, count: int) -> None:
    chance = random.Random(first)
    now = rfc3339(SYSTEM_CLOCK.now())
    for number in range(first, first + count):
        parties = chance.sample(PARTIES, 2)
        name = f"psi-{number:05d}-{chance.randrange(1 << 20):05x}"
        task = {"alias": "psi", "taskID": f"{name}-t", "appImage": "psi", "taskInputConfig": "{}"}
        spec = {
            "initiator": parties[0],
            "maxParallelism": 1,
            "tasks": [task | {"parties": [{"domainID": p} for p in parties]}],
        }
        await client.create(JOBS, {"metadata": {"name": name, "namespace": CROSS_DOMAIN}, "spec": spec}, CROSS_DOMAIN)
        phase = PHASES[number % len(PHASES)]
        status = {"phase": phase, "startTime": now, "taskStatus": {f"{name}-t": phase}}
        if phase == "Failed":
            status |= {"completionTime": now, "message": "a task failed: exit code 1", "reason": "TaskFailed"}
        await client.patch_status(JOBS, name, CROSS_DOMAIN, {"status": status})


async def change(client: Client, jobs: int, rate: float, changes: int) -> dict[str, Any]:
    names = [each["metadata"]["name"] for each in (await client.list(JOBS, CROSS_DOMAIN)).items]
    names.sort()
    chance = random.Random(changes)
    at: dict[int, float] = {}
    began = time.monotonic()
    for number in range(changes):
        if rate and (ahead := number / rate - (time.monotonic() - began)) > 0:
            await asyncio.sleep(ahead)
        if number % 10 == 9:
            status = {"phase": "Failed", "message": f"count {number}."}
            await client.patch_status(JOBS, names[-1], CROSS_DOMAIN, {"status": status})
            at[number] = time.time()
        else:
            phase = chance.choice(PHASES)
            await client.patch_status(JOBS, chance.choice(names), CROSS_DOMAIN, {"status": {"phase": phase}})
    return {"seconds": time.monotonic() - began, "at": at}


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
