"""Pods whose image the node does not have: it is pulled from a registry, once, with the pod's credentials, or the user learns why not."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_kit import Cluster, Node, until
from kubectl_runner import chosen

sys.path.insert(0, str(Path(__file__).parents[1] / "kube" / "agent" / "images"))
from image_kit import entry, folder, tar
from registry_kit import Content, Registry

pytestmark = pytest.mark.xdist_group("e2e-autonomy")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry(Content()).serving() as running:
        running.content.add([tar([folder("app"), entry("app/name", b"from the registry")])], "1", Cmd=["/bin/never"])
        yield running


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Cluster]:
    settings = {
        "mode": "autonomy",
        "apiServer": {"port": 0},
        "agent": {"nodeName": "node-i", "port": 0, "taint": False},
        "capacity": {"cpu": 16, "memory": "32Gi"},
        "image": {"pullPolicy": "remote"},
    }
    node = Node(tmp_path / "i", "node-i", settings).start()
    cluster = Cluster(node, chosen()[-1], nodes={"node-i": node})
    try:
        cluster.wait_until_up("node-i")
        yield cluster.in_namespace("pulls")
        assert node.complaints() == []
    finally:
        node.destroy()


def _pod(name: str, image: str, **spec: object) -> dict[str, object]:
    container = {"name": "main", "image": image, "command": ["/app/run"], "imagePullPolicy": "IfNotPresent"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def _waiting(cluster: Cluster, name: str) -> str:
    path = "{.status.containerStatuses[0].state.waiting.reason}"
    return cluster.do(f"get pod {name} -o jsonpath={path}")


def test_an_image_is_pulled_with_the_pods_credentials(remote: Cluster, registry: Registry) -> None:
    registry.token, registry.credentials = "t", "Basic " + base64.b64encode(b"me:secret").decode()
    image = f"{registry.host}/team/app:1"
    remote.apply(_pod("without", image))
    until(
        "it is told that nobody may pull it",
        lambda: _waiting(remote, "without") in ("ErrImagePull", "ImagePullBackOff"),
    )
    assert "refuses the user name or password" in remote.do("describe pod without")
    remote.do(
        f"create secret docker-registry own --docker-server={registry.host} --docker-username=me --docker-password=secret"
    )
    remote.apply(_pod("with", image, imagePullSecrets=[{"name": "own"}]))
    until("it is pulled", lambda: "Successfully pulled image" in remote.do("describe pod with"))
    assert "secret" not in remote.nodes["node-i"].log.read_text()


def test_what_is_wrong_is_told_and_tried_again(remote: Cluster, registry: Registry) -> None:
    remote.apply(_pod("missing", f"{registry.host}/team/app:2"))
    until("the second failure is a back-off", lambda: _waiting(remote, "missing") == "ImagePullBackOff")
    shown = remote.do("describe pod missing")
    assert "has no such image team/app" in shown and "Pulling image" in shown
    registry.content.add([tar([entry("a", b"a")])], "2")
    until("it is pulled when it is there", lambda: "Successfully pulled image" in remote.do("describe pod missing"))
    remote.apply(_pod("nowhere", "team/app:3"))
    until("a name without a registry", lambda: "names no registry" in remote.do("describe pod nowhere"))
