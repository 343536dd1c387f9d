"""A control plane on somebody's Kubernetes: configuration, calls that are passed on, what is installed there, the chart."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from coterie.base import pki, pki_files
from coterie.base.clock import SYSTEM_CLOCK
from coterie.http import plain_client
from coterie.http.messages import Request, Response, UserInfo
from coterie.http.server import HttpServer
from coterie.kube.api.errors import ApiError, Forbidden, Invalid, Unauthorized
from coterie.kube.api.meta import Object, ObjectMeta
from coterie.kube.api.types.kind import Kind
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.discovery import RestMapper, discover
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.store import MemoryStore
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.controllers.domain import objects
from coterie.node import config, kubernetes_access
from coterie.node.config import ConfigError
from coterie.node.kubernetes_install import ACCOUNT, NAMESPACE, install_objects
from coterie.node.parts import kubernetes
from coterie.node.parts.kubernetes_relay import KubernetesRelay, upstream_headers
from coterie.node.parts.registry import parts_of

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/coterie"
HELM = ROOT / ".tools/kubernetes/helm"
ADMIN = UserInfo("admin", ("system:masters", "system:authenticated"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def account(namespace: str, name: str) -> UserInfo:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return UserInfo(f"system:serviceaccount:{namespace}:{name}", groups)


# The configuration.


def parsed(tmp_path: Path, **document: Any) -> config.NodeSettings:
    document = {"domainID": "alice", "mode": "master", "apiServer": {"kubeconfig": "in-cluster"}, **document}
    return config.parse(document, tmp_path, lowest_port=0)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"apiServer": {"kubeconfig": "f", "port": 6443}}, "apiServer.port"),
        ({"apiServer": {"kubeconfig": "f", "auditLog": "a"}}, "apiServer.auditLog"),
        ({"store": "sqlite:///f"}, "store"),
        ({"datastoreEndpoint": "etcd://m1:2379/c"}, "datastoreEndpoint"),
        ({"functions": {"enabled": True}}, "functions.enabled"),
        ({"console": {"enabled": True}}, "console.enabled"),
        ({"gateway": {"enabled": False}}, "gateway.enabled"),
        ({"gateway": {"ingress": {"httpPort": 8888}}}, "gateway.ingress"),
        ({"mode": "autonomy", "agent": {"taint": False}}, "agent.taint"),
        ({"mode": "lite", "masterEndpoint": "https://m:1080", "liteDeployToken": "t"}, "apiServer.kubeconfig"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_work_is_refused(tmp_path: Path, document: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{key}: ")):
        parsed(tmp_path, **document)


def test_a_node_there_is_tainted_and_runs_its_own_pods(tmp_path: Path) -> None:
    made = parsed(tmp_path, mode="autonomy", apiServer={"kubeconfig": "a/b"})
    assert made.agent is not None and made.agent.taint and made.only_namespace == "alice"
    assert Path(made.api.kubeconfig).is_absolute() and not made.functions.enabled and not made.gateway.functions
    parts = [part.name for part in parts_of(made)]
    assert "kubernetes" in parts and not {"control-plane", "overlay", "functions", "console"} & set(parts)


def test_only_the_controllers_of_kuscia_run_there() -> None:
    names = [spec.name for spec in kubernetes.specs()]
    assert (
        names[0] == "scheduler"
        and "kusciajob" in names
        and not {"gc", "replicaset", "gpujob", "logrequest"} & set(names)
    )


@pytest.mark.parametrize(
    ("cluster", "word"),
    [
        ({"server": "http://c:1"}, "https"),
        ({"server": "https://c:1", "insecure-skip-tls-verify": True}, "insecure"),
        ({"server": "https://c:1", "proxy-url": "http://p:1"}, "proxy-url"),
    ],
    ids=["plain", "insecure", "proxy"],
)
def test_ways_that_would_give_tokens_away_are_refused(tmp_path: Path, cluster: dict[str, Any], word: str) -> None:
    context = {"name": "c", "context": {"cluster": "c"}}
    document = {"clusters": [{"name": "c", "cluster": cluster}], "contexts": [context], "current-context": "c"}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=word):
        kubernetes_access.connection_of(str(file))


# Calls of partners.


def test_nothing_but_the_callers_token_is_passed_on() -> None:
    given = {
        "authorization": "Bearer t",
        "accept": "a",
        "impersonate-user": "admin",
        "x-remote-user": "admin",
        "cookie": "c",
    }
    assert upstream_headers(Request("GET", "/api", "", given), "c:1") == {
        "authorization": "Bearer t", "accept": "a", "accept-encoding": "identity", "host": "c:1",
    }  # fmt: skip
    for bad in ({}, {"authorization": "Basic eDp5"}):
        with pytest.raises(Unauthorized):
            upstream_headers(Request("GET", "/api", "", bad), "c:1")


async def test_calls_are_passed_on_without_our_certificate(tmp_path: Path) -> None:
    authority = pki_files.ensure_authority(tmp_path, "cluster", now=NOW)
    serving = pki_files.ensure_server(tmp_path, "server", authority, names=("127.0.0.1",), now=NOW)
    own = pki_files.ensure_client(tmp_path, "own", authority, user="us", now=NOW)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(serving.certificate_path, serving.key_path)
    context.load_verify_locations(tmp_path / "ca.crt")
    context.verify_mode = ssl.CERT_OPTIONAL

    def answer(request: Request) -> Response:
        shown = {"user": request.peer.certificate_user is not None, "path": request.path, "query": request.query}
        return Response(200, orjson.dumps({**shown, "token": request.headers.get("authorization")}))

    cluster = HttpServer(answer, user_of=lambda _: UserInfo("somebody"))
    host, port = await cluster.listen("127.0.0.1", 0, context)
    connection = ClusterConnection(
        server=f"https://{host}:{port}",
        ca=(tmp_path / "ca.crt").read_bytes(),
        certificate=own.certificate_path.read_bytes(),
        key=own.key_path.read_bytes(),
        token="ours",
    )
    relay = KubernetesRelay(connection, tmp_path / "run" / "api.sock")
    running = asyncio.create_task(relay.run())
    await relay.ready.wait()
    pool = plain_client.Pool(tmp_path / "run" / "api.sock")
    try:
        response = await pool.request("GET", "/api/v1/pods?watch=1", {"Host": "x", "Authorization": "Bearer theirs"})
        assert orjson.loads(await response.read()) == {
            "user": False, "path": "/api/v1/pods", "query": "watch=1", "token": "Bearer theirs",
        }  # fmt: skip
        assert (await pool.request("GET", "/api/v1/pods", {"Host": "x"})).status == 401
        await cluster.stop()
        away = await pool.request("GET", "/api", {"Host": "x", "Authorization": "Bearer theirs"})
        assert away.status == 503
    finally:
        await pool.close()
        relay.stop()
        await running


# What is installed.


class _Cluster:
    def __init__(self, server: ApiServer, mapper: RestMapper) -> None:
        self._server = server
        self._mapper = mapper

    def client(self, user: UserInfo) -> Client:
        return Client(InProcessTransport(self._server.handle, user), field_validation="Strict")

    async def apply(self, obj: Object, user: UserInfo = ADMIN) -> None:
        resource = self._mapper.of_kind(obj["apiVersion"], obj["kind"])
        await self.client(user).apply(Kind.dynamic(resource), obj, obj["metadata"].get("namespace", ""), force=True)


@pytest.fixture
async def cluster() -> AsyncIterator[_Cluster]:
    """An API server of ours without Kuscia's extension, as somebody else's is."""
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(signer=TokenSigner(pki.new_key())), SYSTEM_CLOCK)
    await server.start()
    made = _Cluster(server, await discover(Client(InProcessTransport(server.handle, ADMIN))))
    for obj in install_objects(agent="alice"):
        await made.apply(obj)
    yield made
    await server.stop()
    await store.close()


def thing(
    api: str, kind: str, name: str, namespace: str = "", labels: dict[str, str] | None = None, **more: Any
) -> Object:
    meta: Object = {"name": name, "labels": labels or {}}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": api, "kind": kind, "metadata": meta, **more}


def binding(kind: str, role: str, namespace: str = "") -> Object:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    return thing("rbac.authorization.k8s.io/v1", kind, "x", namespace, roleRef=reference, subjects=[subject])


OURS = {"kuscia.secretflow/domain-name": "alice"}
ALLOWED = (
    thing("v1", "Namespace", "bob", labels={"kuscia.secretflow/domain-name": "bob"}),
    thing("v1", "ConfigMap", "c", "alice"),
    thing("v1", "Node", "n", labels={"kuscia.secretflow/namespace": "alice"}),
    binding("RoleBinding", "coterie:domain", "alice"),
    binding("ClusterRoleBinding", "domain-cluster-res"),
)
REFUSED = (
    thing("v1", "Namespace", "evil"),
    thing("v1", "Namespace", "kube-system", labels=OURS),
    thing("v1", "ConfigMap", "c", "kube-system"),
    thing("v1", "Node", "n"),
    thing("v1", "Secret", "s", "alice"),
    binding("RoleBinding", "coterie:domain", "kube-system"),
    binding("RoleBinding", "admin", "alice"),
    binding("ClusterRoleBinding", "coterie:domain"),
    binding("ClusterRoleBinding", "cluster-admin"),
    thing("rbac.authorization.k8s.io/v1", "Role", "x", "alice", rules=[{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
)  # fmt: skip


async def test_what_is_installed_is_valid_and_leaves_no_way_to_more(cluster: _Cluster) -> None:
    """Validation is strict; roles and policies decide as on a kube-apiserver (tests/real_kubernetes)."""
    for obj in ALLOWED:
        await cluster.apply(obj, account(NAMESPACE, ACCOUNT))
    for obj in REFUSED:
        with pytest.raises((Forbidden, Invalid)):
            await cluster.apply(obj, account(NAMESPACE, ACCOUNT))
    # A domain's account: its own nodes, and no others.
    await cluster.apply(thing("v1", "Namespace", "carol"))
    bound = binding("ClusterRoleBinding", "domain-cluster-res")
    bound["metadata"]["name"] = "carol"
    bound["subjects"] = [{"kind": "ServiceAccount", "name": "carol", "namespace": "carol"}]
    await cluster.apply(bound)
    carol = account("carol", "carol")
    await cluster.apply(thing("v1", "Node", "c", labels={"kuscia.secretflow/namespace": "carol"}), carol)
    for obj in (
        thing("v1", "Node", "d", labels={"kuscia.secretflow/namespace": "alice"}),
        thing("v1", "Node", "n", labels={"kuscia.secretflow/namespace": "carol"}),
        thing("coordination.k8s.io/v1", "Lease", "l", "kube-system", labels={"kuscia.secretflow/namespace": "carol"}),
        thing("coordination.k8s.io/v1", "Lease", "l", "kube-node-lease"),
    ):
        with pytest.raises(ApiError):
            await cluster.apply(obj, carol)


def test_accounts_of_domains_are_bound_to_installed_roles() -> None:
    made = list(objects.accounts(Domain(metadata=ObjectMeta(name="bob", uid="u")), "alice", installed_roles=True))
    assert objects.ROLE not in {each.kind for each in made}
    (bound,) = [each.object for each in made if each.kind is objects.ROLE_BINDING]
    assert bound["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "coterie:domain",
    }


# The chart.


def leaves(values: Any, path: str = "") -> list[str]:
    if not isinstance(values, dict) or not values:
        return [path]
    return [leaf for key, value in values.items() for leaf in leaves(value, f"{path}.{key}" if path else key)]


def test_every_value_of_the_chart_is_documented_and_used() -> None:
    text = (CHART / "values.yaml").read_text()
    templates = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
    used = set(re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", templates))
    known = leaves(yaml.safe_load(text))
    unused = [leaf for leaf in known if not any(leaf == each or leaf.startswith(f"{each}.") for each in used)]
    assert not unused
    assert not [each for each in used if not any(leaf == each or leaf.startswith(f"{each}.") for leaf in known)]
    page = (ROOT / "docs/guide/kubernetes.md").read_text()
    assert not [leaf for leaf in known if f"`{leaf}`" not in page and f"`{leaf.rpartition('.')[0]}`" not in page]


VARIANTS = {
    "master": {},
    "master-on-the-cluster": {"controlPlane": "kubernetes"},
    "masters": {"replicas": 2, "store": "postgresql://c@db/c", "storeSecret": "db", "domainKey": "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQo="},
    "lite": {"mode": "lite", "runtime": "runp", "lite": {"masterEndpoint": "https://m:1080", "deployToken": "token"}},
    "autonomy": {"mode": "autonomy", "runtime": "runp"},
}  # fmt: skip
BASE = {"domainID": "alice", "image": {"repository": "registry.example.org/coterie"}}


def rendered(tmp_path: Path, values: dict[str, Any], code: int = 0) -> str:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({**BASE, **values}))
    command = [str(HELM), "template", "rel", str(CHART), "-n", "space", "--kube-version", "1.36.0", "-f", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"HOME": str(tmp_path)})
    assert ran.returncode == code, ran.stderr
    return ran.stdout if not code else ran.stderr


needs_helm = pytest.mark.skipif(not HELM.exists(), reason="scripts/get-kubernetes helm builds helm")


@needs_helm
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_chart_makes_a_configuration_that_a_node_takes(tmp_path: Path, variant: str) -> None:
    found = list(yaml.safe_load_all(rendered(tmp_path, VARIANTS[variant])))
    (secret,) = [each for each in found if each["kind"] == "Secret"]
    made = config.parse(yaml.safe_load(secret["stringData"]["coterie.yaml"]), lowest_port=1024)
    assert made.domain == "alice" and not [
        each for each in made.notices if each.key not in ("dns.port", "gateway.internal.port")
    ]
    assert not {"ClusterRole", "ClusterRoleBinding"} & {each["kind"] for each in found}
    (workload,) = [each for each in found if each["kind"] in ("StatefulSet", "Deployment")]
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    assert (workload["kind"] == "Deployment") == ("PodDisruptionBudget" in {each["kind"] for each in found})


@needs_helm
@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replicas": 2}, "domainKey"),
        ({"replicas": 2, "domainKey": "k"}, "store is missing"),
        ({"mode": "autonomy", "replicas": 2, "domainKey": "k", "store": "s"}, "only a master"),
        ({"mode": "lite"}, "lite.masterEndpoint"),
        ({"runtime": "runc"}, "runtime must be"),
        ({"mode": "autonomy", "runk": {"namespace": "space"}}, "runk.namespace"),
        ({"image": {"repository": ""}}, "image.repository"),
        ({"controlPlane": "kubernetes", "store": "s"}, "its own store"),
    ],
    ids=["key", "store", "autonomy", "lite", "runc", "runk", "image", "cluster"],
)
def test_the_chart_refuses_what_cannot_work(tmp_path: Path, values: dict[str, Any], word: str) -> None:
    assert word in rendered(tmp_path, values, code=1)
