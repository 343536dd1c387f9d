"""RunK on a real Kubernetes: etcd, kube-apiserver and kube-controller-manager, with the Role of the guide and no other rights.

There is no kubelet and no scheduler: the test binds copies and writes their statuses. Not part of `make test`: `make kubernetes` builds
the binaries and runs this.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_kit import RealCluster, wait_until

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.http.messages import UserInfo
from coterie.kube.agent.runk import mirror_agent
from coterie.kube.agent.runk.settings import RunkSettings
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES
from coterie.kube.api.types.pods import PODS
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Manager
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.engine.certificates import DomainAuthority, EngineCertificateIssuer
from coterie.kuscia.engine.engine_plugin import EnginePlugin, EngineSettings
from coterie.kuscia.engine.templates.config_store import NoConfigStore
from coterie.kuscia.extensions.apiserver import KUSCIA

pytestmark = [
    pytest.mark.skipif(not os.environ.get("COTERIE_REAL_KUBERNETES"), reason="only `make kubernetes` runs this"),
    pytest.mark.timeout(900),
    pytest.mark.slow,
]
GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/runk.md"
ADMIN = UserInfo("system:admin", ("system:masters",))
_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def manifests() -> list[str]:
    """Those of the guide, the namespace first."""
    blocks = re.findall(r"```yaml\n(apiVersion.*?)```", GUIDE.read_text(), re.DOTALL)
    return sorted(blocks, key=lambda text: yaml.safe_load_all(text).__next__()["kind"] != "Namespace")


async def until(check: Callable[[], Any], what: str) -> Any:
    for _ in range(int(_SECONDS / 0.1)):
        found = check()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"it never came to this: {what}")


@asynccontextmanager
async def mirrored(root: Path, access: Path) -> AsyncIterator[tuple[Client, mirror_agent.MirrorAgent]]:
    """A domain of ours whose pods run in the cluster."""
    store = MemoryStore()
    await store.open()
    api = ApiServer(store, Settings(extensions=[KUSCIA], signer=TokenSigner(pki.new_key())), SYSTEM_CLOCK)
    await api.start()
    client = Client(InProcessTransport(api.handle, ADMIN))
    await client.create(NAMESPACES.as_dynamic, {"metadata": {"name": "alice"}})
    connection = kubeconfig.read(access).resolve()
    backing = Client(HttpTransport(connection))
    paths = DomainPaths(root / "alice")
    issuer = EngineCertificateIssuer(DomainAuthority(paths), "alice", SYSTEM_CLOCK)
    informers = Informers(client)
    agent = mirror_agent.make(
        client,
        informers,
        backing,
        AgentSettings(node_name="node-1", paths=paths, machine_id="m"),
        RunkSettings(namespace="engines", owner="test", keep_logs=False, dns_servers=("10.0.0.2",)),
        plugins=[EnginePlugin(EngineSettings("alice"), issuer, NoConfigStore())],
    )
    manager = Manager([[informers], *agent.groups])
    running = asyncio.create_task(manager.run())
    try:
        await asyncio.wait_for(manager.ready.wait(), _SECONDS)
        yield client, agent
    finally:
        manager.stop()
        await running
        await backing.close()
        await api.stop()
        await store.close()


def engine(name: str) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "alice",
            "labels": {"kuscia.secretflow/communication-role-client": "true"},
            "annotations": {"kuscia.secretflow/task-id": "task-1", "kuscia.secretflow/initiator": "bob"},
        },
        "spec": {
            "nodeName": "node-1",
            "restartPolicy": "Never",
            "containers": [
                {"name": "main", "image": "engine:1", "envFrom": [{"configMapRef": {"name": "settings"}}]},
            ],
        },
    }


async def test_an_engine_of_a_partner_with_the_rights_of_the_guide(cluster: RealCluster, tmp_path: Path) -> None:
    namespace, role = manifests()
    cluster.kubectl("apply", "-f", "-", given=namespace)
    cluster.kubectl("create", "serviceaccount", "nobody", "-n", "engines")
    wait_until(lambda: cluster.get("serviceaccount", "nobody", "-n", "engines"), "the account is there")
    nobody = cluster.account_kubeconfig("engines", "nobody", tmp_path / "nobody.kubeconfig")
    async with mirrored(tmp_path / "first", nobody) as (_, agent):
        await until(lambda: "rights are missing" in agent.pods.problem, "it says what is missing")
        assert "create" in agent.pods.problem and "networkpolicies" in agent.pods.problem

    cluster.kubectl("apply", "-f", "-", given=role)
    access = cluster.account_kubeconfig("engines", "coterie-runk", tmp_path / "runk.kubeconfig")
    async with mirrored(tmp_path / "second", access) as (client, agent):
        await until(lambda: not agent.pods.problem, "nothing is missing")
        assert agent.pods.limitations == ()
        await client.create(
            CONFIG_MAPS.as_dynamic, {"metadata": {"name": "settings", "namespace": "alice"}, "data": {"a": "b"}}
        )
        await client.create(PODS.as_dynamic, engine("engine"))
        copy = await until(lambda: _open(cluster.get("pod", "engine", "-n", "engines")), "the copy may be scheduled")
        assert copy["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"] == "engine-settings"
        assert not any("kube-api-access" in each["name"] for each in copy["spec"].get("volumes") or ())
        policy = cluster.get("networkpolicy", "engine", "-n", "engines")
        assert policy["metadata"]["ownerReferences"][0]["uid"] == copy["metadata"]["uid"]

        _run(cluster, "engine")
        found = await until(lambda: _in_phase(client, "engine", "Running"), "the original runs")
        assert found["status"]["podIP"] == "10.244.0.7"
        await client.delete(PODS, "engine", "alice")
        await until(
            lambda: cluster.get("pod", "engine", "-n", "engines")["metadata"].get("deletionTimestamp"), "the copy ends"
        )
        cluster.kubectl("delete", "pod", "engine", "-n", "engines", "--force", "--grace-period=0")
        await until(lambda: _gone(client, "engine"), "the original is gone")
        await until(lambda: not cluster.get("configmap", "engine-settings", "-n", "engines"), "what it owned is gone")
        await until(lambda: not cluster.get("networkpolicy", "engine", "-n", "engines"), "its policy, too")

        cluster.kubectl("create", "quota", "none", "--hard=pods=0", "-n", "engines")
        await until(
            lambda: cluster.get("quota", "none", "-n", "engines").get("status", {}).get("hard"), "the quota counts"
        )
        await client.create(PODS.as_dynamic, engine("late"))
        found = await until(lambda: _with_reason(client, "late"), "a quota is told")
        assert found["status"]["reason"] == "BackingClusterForbidden" and "quota" in found["status"]["message"]
        cluster.kubectl("delete", "quota", "none", "-n", "engines")
        await until(lambda: _open(cluster.get("pod", "late", "-n", "engines")), "it is tried again")


def _open(pod: Object) -> Object | None:
    return pod if pod and not pod["spec"].get("schedulingGates") else None


def _run(cluster: RealCluster, name: str) -> None:
    """What a scheduler and a kubelet do."""
    where = f"/api/v1/namespaces/engines/pods/{name}/binding"
    target = {"apiVersion": "v1", "kind": "Node", "name": "worker"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    cluster.kubectl("create", "--raw", where, "-f", "-", given=json.dumps(binding))
    status = {
        "phase": "Running",
        "podIP": "10.244.0.7",
        "podIPs": [{"ip": "10.244.0.7"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "main",
                "image": "engine:1",
                "imageID": "sha256:1",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
            }
        ],
    }
    words = ("patch", "pod", name, "-n", "engines", "--subresource=status", "--type=merge", "-p")
    cluster.kubectl(*words, json.dumps({"status": status}))


async def _in_phase(client: Client, name: str, phase: str) -> Object | None:
    found = await client.get(PODS.as_dynamic, name, "alice")
    return found if (found.get("status") or {}).get("phase") == phase else None


async def _with_reason(client: Client, name: str) -> Object | None:
    found = await client.get(PODS.as_dynamic, name, "alice")
    return found if (found.get("status") or {}).get("reason") else None


async def _gone(client: Client, name: str) -> bool:
    return not (await client.list(PODS.as_dynamic, "alice", fields=f"metadata.name={name}")).items
