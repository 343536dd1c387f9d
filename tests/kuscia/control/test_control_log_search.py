"""Searching the logs of one machine for a job: sources, namespaces, attacks."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kube.api.errors import BadRequest
from coterie.kuscia.api.log_query import CONTROLLER, SCHEDULER
from coterie.kuscia.control.log_index import LoggedPod, PodLogIndex
from coterie.kuscia.control.log_search import NodeLogSearch

ACCESS = '10.0.0.1 - [2026-01-02T03:04:04.000Z] alice {host} "POST /x HTTP/1.1" t s 200 - 12 345 500 1 2 3 - - via'


class Machine:
    def __init__(self, home: Path, **settings: Any) -> None:
        self.paths = DomainPaths(home).prepare()
        self.index = PodLogIndex.of(self.paths.stdout)
        self.searcher = NodeLogSearch(
            self.paths, "alice", SYSTEM_CLOCK, node="n-1", **({"index": self.index} | settings)
        )
        (self.paths.logs / "envoy").mkdir()

    def pod(self, task: str, text: str = "", *, job: str = "j-1", namespace: str = "alice", second: int = 3) -> Path:
        entry = LoggedPod(1, namespace, job, task, f"{task}-0", f"uid-{namespace}-{task}")
        directory = self.paths.stdout / "pods" / entry.directory / "engine"
        directory.mkdir(parents=True)
        (directory / "0.log").write_text(f"2026-01-02T03:04:{second:02d}.000000000Z stdout F {text}\n")
        self.index.add(entry)
        return directory

    def search(self, namespace: str = "alice", **params: str) -> list[dict[str, Any]]:
        answer = json.loads(asyncio.run(self.searcher.search(namespace, params)))
        lines: list[dict[str, Any]] = answer["lines"]
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "alice")


def test_all_sources_in_the_order_of_time(machine: Machine) -> None:
    machine.pod("j-1-psi", "hello", second=5)
    logs = machine.paths.logs
    (logs / "envoy" / "internal.log").write_text(ACCESS.format(host="j-1-psi-0-fed.bob.svc") + "\n")
    (logs / "datamesh.log").write_text("2026-01-02T03:04:01.000Z info  datamesh: Data written task=j-1-psi\n")
    (logs / "coterie.log").write_text(
        "2026-01-02T03:04:02.000Z info  scheduler: Bound task=j-1-psi\n"
        "2026-01-02T03:04:03.000Z info  agent: Started pod=alice/j-1-psi-0\n"
        "2026-01-02T03:04:03.500Z info  agent: Started pod=alice/other-0\n"
    )
    lines = machine.search(job="j-1")
    assert [line["source"] for line in lines] == ["datamesh", "scheduler", "controller", "gateway", "engine"]
    assert {line["party"] for line in lines} == {"alice"}
    assert {line["task"] for line in lines} == {"j-1-psi"}
    assert lines[-1]["text"] == "hello"
    assert (lines[-1]["pod"], lines[-1]["container"], lines[-1]["node"]) == ("j-1-psi-0", "engine", "n-1")
    assert [line["source"] for line in machine.search(job="j-1", source="gateway,scheduler")] == [
        "scheduler",
        "gateway",
    ]
    assert machine.search(job="j-1", party="bob") == []


def test_output_is_found_when_the_pod_is_gone_and_its_files_are_compressed(machine: Machine) -> None:
    directory = machine.pod("j-1-psi", "newest")
    packed = gzip.compress(b"2026-01-02T03:04:01.000000000Z stdout F oldest\n")
    (directory / "0.log.1.gz").write_bytes(packed)
    assert [line["text"] for line in machine.search(task="j-1-psi")] == ["oldest", "newest"]


def test_all_runs_of_a_container_are_searched(machine: Machine) -> None:
    directory = machine.pod("j-1-psi", "first", second=1)
    (directory / "1.log").write_text("2026-01-02T03:04:02.000000000Z stdout F second\n")
    (directory / "10.log").write_text("2026-01-02T03:04:03.000000000Z stdout F third\n")
    assert [line["text"] for line in machine.search(task="j-1-psi", limit="2")] == ["second", "third"]


def test_another_namespace_gets_nothing_of_this_one(machine: Machine) -> None:
    machine.pod("j-1-psi", "of alice")
    machine.pod("j-1-psi", "of bob", namespace="bob")
    (machine.paths.logs / "envoy" / "internal.log").write_text(ACCESS.format(host="j-1-psi-0-fed.bob.svc") + "\n")
    (machine.paths.logs / "coterie.log").write_text("2026-01-02T03:04:02.000Z info  x: Y task=j-1-psi\n")
    assert [line["text"] for line in machine.search("bob", job="j-1", tasks="j-1-psi")] == ["of bob"]
    assert machine.search("carol", job="j-1", tasks="j-1-psi") == []


def test_an_engine_cannot_print_lines_of_other_sources(machine: Machine) -> None:
    forged = '{"time": "2026-01-02T03:04:02.000Z", "level": "info", "source": "controller", "task": "j-1-psi", "party": "bob"}'
    machine.pod("j-1-psi", forged)
    (line,) = machine.search(job="j-1")
    assert (line["source"], line["party"], line["level"], line["text"]) == ("engine", "alice", "", forged)


def test_a_control_plane_gives_each_namespace_its_own_lines(tmp_path: Path) -> None:
    plane = Machine(tmp_path / "master", index=None, sources=(SCHEDULER, CONTROLLER), plane=True)
    (plane.paths.logs / "coterie.log").write_text(
        "2026-01-02T03:04:01.000Z info  controllers.kusciatask: Task phase changed task=t-1 phase=Running\n"
        "2026-01-02T03:04:02.000Z info  gangs: Reserved task=alice/t-1 node=n\n"
        "2026-01-02T03:04:03.000Z info  gangs: Reserved task=bob/t-1 node=n\n"
    )
    for namespace, seconds in (("alice", ["02"]), ("bob", ["03"]), ("cross-domain", ["01"]), ("carol", [])):
        assert [line["at"][17:19] for line in plane.search(namespace, task="t-1")] == seconds
    assert {line["source"] for line in plane.search("alice", task="t-1")} == {"scheduler"}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"job": "../../etc/passwd"},
        {"job": "j", "task": "a/../b"},
        {"job": "j", "tasks": "ok,../x"},
        {"job": "j", "tasks": ",".join(f"t{n}" for n in range(300))},
        {"job": "j", "grep": "("},
        {"job": "j", "limit": "-1"},
        {"job": "j", "limit": "9" * 40},
        {"job": "j", "source": "kernel"},
        {"job": "j", "cursor": "x"},
    ],
)
def test_bad_queries_are_refused(machine: Machine, params: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        machine.search(**params)


def test_links_in_the_directory_of_a_pod_are_not_followed(machine: Machine, tmp_path: Path) -> None:
    directory = machine.pod("j-1-psi", "own")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "0.log").write_text("2026-01-02T03:04:03.000000000Z stdout F secret\n")
    (directory / "1.log").symlink_to(secret / "0.log")
    (directory.parent / "linked").symlink_to(secret)
    assert [line["text"] for line in machine.search(job="j-1")] == ["own"]
