"""Nodes that whole files of tests share: one autonomy node, or a master with two nodes that joined it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import kubectl_runner
import pytest
from e2e_kit import Cluster, Node, joined_node

VERSIONS = kubectl_runner.chosen()
_FAST = {"nodeGraceSeconds": 5, "podEvictionSeconds": 2}
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(180))
            if not VERSIONS:
                item.add_marker(pytest.mark.skip(reason="no kubectl: run `make setup`"))


@pytest.fixture(scope="session")
def host_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one directory that pods of the autonomy node may mount."""
    return tmp_path_factory.mktemp("allowed")


@pytest.fixture(scope="session")
def autonomy_node(tmp_path_factory: pytest.TempPathFactory, host_path: Path) -> Iterator[Cluster]:
    agent = {"nodeName": "node-a", "port": 0, "hostPaths": [str(host_path)]}
    settings = {
        "mode": "autonomy",
        "apiServer": {"port": 0},
        "agent": agent,
        "capacity": {"cpu": 16, "memory": "32Gi"},
        "controllers": {"autoscalerSeconds": 2},
    }
    node = Node(tmp_path_factory.mktemp("autonomy"), "node-a", settings).start()
    cluster = Cluster(node, VERSIONS[-1], nodes={"node-a": node})
    try:
        cluster.wait_until_up("node-a")
        yield cluster
        assert node.complaints() == []
    finally:
        node.destroy()


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and node-1, node-2, each a process with a root of its own."""
    root = tmp_path_factory.mktemp("joined")
    settings = {"mode": "master", "apiServer": {"port": 0}, "controllers": _FAST}
    plane = Node(root / "master", "master", settings).start()
    cluster = Cluster(plane, VERSIONS[-1])
    try:
        cluster.wait_until_up()
        for name in ("node-1", "node-2"):
            cluster.nodes[name] = joined_node(plane, root / name, name).start()
        cluster.wait_until_up("node-1", "node-2")
        yield cluster
        assert plane.complaints() == []
    finally:
        for node in (*cluster.nodes.values(), plane):
            node.destroy()


@pytest.fixture
def autonomy(autonomy_node: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from _scene(autonomy_node, request.node.name)


@pytest.fixture
def joined(two_nodes: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from _scene(two_nodes, request.node.name)


def _scene(cluster: Cluster, test: str) -> Iterator[Cluster]:
    """A namespace for each test; its pods are gone when the next one begins."""
    word = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower()).strip("-")[:40].strip("-")
    inside = cluster.in_namespace(f"{word}-{next(_numbers)}")
    yield inside
    inside.do(f"delete namespace {inside.namespace} --wait=false")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Beside a failure stands what the nodes had to say."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Cluster):
                for node in {value.plane.name: value.plane, **value.nodes}.values():
                    report.sections.append((f"log of {node.name}", node.log_tail()))
    return report
