"""KusciaAPI of whole nodes with real gateways: a master, its lite, a partner."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mesh_nodes import Node, befriend, deploy_token, network, ready, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]
JOB = {
    "job_id": "job-a",
    "initiator": "alice",
    "tasks": [{"alias": "one", "app_image": "none", "parties": [{"domain_id": "alice"}], "task_input_config": "{}"}],
}


def session(node: Node) -> aiohttp.ClientSession:
    """As the documented curl call does it."""
    paths = node.paths
    tls = ssl.create_default_context(cafile=str(paths.ca_certificate))
    tls.load_cert_chain(paths.certificate("kusciaapi-client"), paths.key("kusciaapi-client"))
    return aiohttp.ClientSession(
        f"https://{node.host}:8082",
        connector=aiohttp.TCPConnector(ssl=tls),
        headers={"Token": paths.api_token.read_text()},
    )


def libraries_of(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def post(http: aiohttp.ClientSession, path: str, **body: Any) -> Any:
    async with http.post(path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_a_lite_its_master_and_a_partner(tmp_path: Path) -> None:
    async with network(tmp_path, third=23) as net:
        hq, carol = await net.start(net.master("hq"), net.autonomy("carol"))
        alice = net.lite("alice", hq, await deploy_token(hq, "alice"))
        await net.start(alice)
        await befriend(hq, carol)
        await ready(hq, "alice-hq", "carol-hq")
        assert hq.process is not None

        async def has_keys() -> bool:
            return alice.paths.api_token.exists()

        await until("alice's KusciaAPI has its keys", has_keys)
        # Nothing of it is loaded before somebody calls.
        assert "cygrpc" not in libraries_of(hq.process.pid)
        assert not any(each.name() == "python" and "coterie.kuscia.kusciaapi" in each.cmdline() for each in hq._left())

        async with session(alice) as at_alice, session(hq) as at_hq:

            async def forwarded() -> bool:
                return bool((await post(at_alice, "/api/v1/domain/query", domain_id="alice"))["status"]["code"] == 0)

            await until("alice asks its master", forwarded)
            assert (await post(at_hq, "/api/v1/domain/query", domain_id="alice"))["data"]["domain_id"] == "alice"
            refused = await post(at_alice, "/api/v1/domain/query", domain_id="hq")
            assert refused["status"]["code"] == 11102
            assert (await post(at_alice, "/api/v1/domain/create", domain_id="x"))["status"]["code"] == 11104

            # A stream through both gateways tells of what happens meanwhile.
            async with at_alice.post("/api/v1/job/watch", json={}) as watching:
                made = await post(at_alice, "/api/v1/job/create", **JOB)
                assert made["status"]["code"] == 0, made
                text = ""
                while '"job-a"' not in text:
                    text += (await watching.content.readany()).decode()
            assert (await post(at_hq, "/api/v1/job/query", job_id="job-a"))["data"]["initiator"] == "alice"

            # Neither partners nor our own node come in by the way of the lites, whoever they say they are.
            forged = {"Host": "kusciaapi.master.svc", "Kuscia-Source": "alice", "Kuscia-Origin-Source": "alice"}
            async with hq.as_node() as from_hq, carol.as_node() as from_carol:
                url = "http://gateway/api/v1/job/query"
                async with from_hq.post(url, json={"job_id": "job-a"}, headers=forged) as answer:
                    assert (answer.status, await answer.read()) == (401, b"")

                async def partner() -> int:
                    there = {**forged, "Host": "kusciaapi.hq.svc"}
                    async with from_carol.post(url, json={}, headers=there) as answer:
                        return answer.status if answer.status in (401, 403) else 0

                assert await until("carol is refused", partner) == 403

            await hq.end()
            lost = (await post(at_alice, "/api/v1/job/query", job_id="job-a"))["status"]
            assert (lost["code"], lost["message"].partition(": ")[0]) == (11103, "the master could not be asked")
