"""Two masters of one domain with gateways, and a lite that names both: `make ha`. A job that was created at the member that does not lead ends
well although the leader, its Envoy with it, is killed; the evidence log goes on at the other member."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from jobs_kit import app_image, job, task
from mesh_nodes import Node, deploy_token, network, until
from store_servers_kit import postgresql_server

from coterie.kube.api.types.coordination import LEASES
from coterie.kube.api.types.nodes import NODES
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.evidence import domain_log
from coterie.kuscia.evidence.service import evidence_directory

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(not os.environ.get("COTERIE_HA"), reason="takes a minute: `make ha`"),
]
JOBS = KUSCIA_JOBS.as_dynamic
_OFF = {"enabled": False}


async def leader(seen: Node) -> str:
    return (await seen.client.get(LEASES, "coterie-controllers", "kube-system")).spec.holder_identity or ""


async def has_phase(seen: Node, name: str, wanted: str) -> bool:
    return bool(((await seen.client.get(JOBS, name, CROSS_DOMAIN)).get("status") or {}).get("phase") == wanted)


async def node_ready(seen: Node) -> bool:
    conditions = [each for node in (await seen.client.list(NODES)).items for each in node.status.conditions or ()]
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


def lose(member: Node) -> None:
    """The Envoy of a node outlives it by design; that of a lost machine does not."""
    for process in member._left():
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


async def test_a_lite_goes_on_with_the_other_member(tmp_path: Path) -> None:
    with postgresql_server() as server:
        settings: dict[str, Any] = {
            "store": f"{server.url}?sslmode=disable",
            "controllers": {"nodeGraceSeconds": 60, "healthPort": 0},
            **dict.fromkeys(("metrics", "console", "kusciaAPI", "dns"), _OFF),
        }
        async with network(tmp_path, third=77) as net:
            one = net.master("hq", **settings)
            await net.start(one)
            two = net.master("hq", instance="hq-2", **settings)
            await net.start(two)
            assert (await leader(two)).startswith("hq-1")
            alice = net.lite("alice", one, await deploy_token(two, "alice"))
            alice.settings["masterEndpoint"] = f"{one.outside},{two.outside}"
            await net.start(alice)
            await until("alice's node is ready", lambda: node_ready(two))
            await one.client.create(APP_IMAGES.as_dynamic, app_image("puppet", "sleep 15"))
            await two.client.create(JOBS, job("first", "alice", task("a", "alice")))
            await until("the job runs", lambda: has_phase(two, "first", "Running"))
            await one.end(signal.SIGKILL)
            lose(one)
            await until("it ends", lambda: has_phase(two, "first", "Succeeded"))
            await two.client.create(JOBS, job("second", "alice", task("a", "alice")))
            await until("the next one ends", lambda: has_phase(two, "second", "Succeeded"))
            assert (await leader(two)).startswith("hq-2")
            logs = [domain_log.log_numbers(evidence_directory(each.paths)) for each in (one, two)]
            assert logs == [[1], [2]], "each member has the log of its term"
