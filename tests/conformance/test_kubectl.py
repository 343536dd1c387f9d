"""Real kubectl binaries of several versions, command by command, against a real server.

One server for each kubectl version, one namespace for each chapter: chapters do not depend on each other, so any one
can be run alone (`-k '1.32 and custom'`). All versions found are used when COTERIE_ALL_KUBECTL=1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import kubectl_runner
import pytest
import yaml
from kept_nodes import QUIET, KeptNodes
from kubectl_chapters import (
    access,
    autoscaling,
    certificates,
    changing,
    create,
    custom,
    discovery,
    kinds,
    policies,
    reading,
    removal,
    services,
    sets,
    streams,
    webhooks,
    workloads,
)
from kubectl_runner import Kubectl, minor
from kubectl_steps import Chapter, Scene, play
from server_process import ApiFailed, ServerPair, ServerProcess

CHAPTERS = (
    discovery.DISCOVERY, discovery.KUSCIA, create.CREATE, create.REFUSALS, reading.GET, reading.DESCRIBE, reading.WAIT,
    changing.APPLY, changing.CHANGE, workloads.WORKLOADS, sets.SETS, removal.DELETE, removal.NAMESPACES, access.AUTH, access.NODES,
    streams.STREAMS, autoscaling.AUTOSCALING, custom.CUSTOM, policies.POLICIES, services.SERVICES, kinds.KINDS,
    certificates.CERTIFICATES, webhooks.WEBHOOKS,
)  # fmt: skip
VERSIONS = kubectl_runner.chosen()

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not VERSIONS, reason="no kubectl was found and none could be fetched: run `make setup`"),
]


def _rows() -> list[object]:
    return [
        pytest.param(version, chapter, id=f"{version}-{chapter.name}", marks=pytest.mark.xdist_group(f"kubectl-{version}"))
        for version, chapter in itertools.product(VERSIONS or ["none"], CHAPTERS)
    ]  # fmt: skip


@pytest.fixture
def kubectl_server(
    servers: Callable[[str], ServerProcess], kept_nodes: Callable[[str], KeptNodes], version: str
) -> ServerProcess:
    server = servers(f"kubectl-{version}")
    if not _exists(server, f"/api/v1/nodes/{QUIET}"):
        kept_nodes(f"kubectl-{version}").register(QUIET)
    return server


def _exists(server: ServerProcess, path: str) -> bool:
    try:
        server.api("GET", path)
    except ApiFailed as failed:
        if failed.status == 404:
            return False
        raise
    return True


@pytest.mark.parametrize(("version", "chapter"), _rows())
def test_chapter(
    version: str,
    chapter: Chapter,
    kubectl_server: ServerProcess,
    agents: Callable[[str], str],
    tmp_path: Path,
) -> None:
    if chapter.agent:
        agents(f"kubectl-{version}")
    logged = kubectl_server.log_size()
    failures = play(chapter, _scene(version, chapter, kubectl_server, tmp_path))
    count = len(chapter.commands(version))
    assert not failures, f"{len(failures)} of {count} commands failed\n\n" + "\n\n".join(failures)
    assert kubectl_server.complaints(logged) == []


def _scene(version: str, chapter: Chapter, server: ServerProcess, directory: Path) -> Scene:
    namespace = f"t-{chapter.name}"
    server.api("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    work, home = directory / "work", server.root / "home"
    work.mkdir()
    for name, text in chapter.files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for extension in ("crt", "key"):
        (work / f"tls.{extension}").write_bytes((server.pki / f"admin.{extension}").read_bytes())
    sources = server.kubeconfigs if isinstance(server, ServerPair) else [server.kubeconfig]
    copies: list[Path] = []
    for number, source in enumerate(sources):
        config = yaml.safe_load(source.read_text())
        config["contexts"][0]["context"]["namespace"] = namespace
        copies.append(directory / ("kubeconfig" if not number else f"kubeconfig-{number}"))
        copies[-1].write_text(yaml.safe_dump(config))
    allow = "--prune-allowlist" if minor(version) >= (1, 26) else "--prune-whitelist"
    return Scene(server, Kubectl(version, copies[0], work, home, copies[1:]), namespace, {"allow": allow})


@pytest.mark.parametrize("version", VERSIONS or ["none"])
def test_enough_commands(version: str) -> None:
    assert sum(len(chapter.commands(version)) for chapter in CHAPTERS) >= 120


def test_chapters_have_unique_names() -> None:
    assert len({chapter.name for chapter in CHAPTERS}) == len(CHAPTERS)
