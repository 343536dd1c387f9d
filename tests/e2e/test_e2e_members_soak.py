"""A control plane of two members under jobs, while members and their store are killed, stopped and paused: `make ha` (minutes).

Every job that was acknowledged ends well, with one pod that was started once. Terms of leaders do not overlap.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from e2e_kit import Cluster, Node, joined_node, until
from store_servers_kit import EtcdCluster, StoreServer, etcd_cluster, postgresql_server
from test_e2e_members import a_job, addresses, member

SECONDS = float(os.environ.get("COTERIE_HA_SECONDS", "240"))
EVERY, FAULT_EVERY, PAUSED = 3.0, (12.0, 25.0), 15.0
"""Seconds between two jobs, between two faults, and of a pause."""
PATIENCE = 180.0
pytestmark = [
    pytest.mark.timeout(SECONDS + 600),
    pytest.mark.skipif(not os.environ.get("COTERIE_HA"), reason="takes minutes: `make ha`"),
]
_TERM = re.compile(r"^(\S+)\s+\w+\s+control\.leader: (Leading|Released leadership|Lost leadership)", re.MULTILINE)


@dataclass
class Soak:
    members: dict[str, Cluster]
    server: StoreServer | EtcdCluster
    random: random.Random
    ends: dict[str, list[float]] = field(default_factory=lambda: {"a": [], "b": []})
    """When a member was killed or paused: its term is over then."""
    created: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    away: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Members that come back at a time, and how."""

    def leading(self) -> str:
        """The member whose log says so last."""
        told = {name: _TERM.findall(each.plane.log.read_text()) for name, each in self.members.items()}
        found = [(events[-1][0], name) for name, events in told.items() if events and events[-1][1] == "Leading"]
        return max(found, default=("", ""))[1]

    def create(self, number: int) -> None:
        name = f"soak-{number}"
        up = [each for key, each in self.members.items() if key not in self.away]
        for place in self.random.sample(up, len(up)):
            answer = place.try_("create", "-f", "-", stdin=json.dumps(a_job(name, "sleep 1")))
            if answer.rc == 0:
                self.created.append(name)
                return
        self.unknown.append(name)

    def fault(self) -> None:
        up = [key for key in self.members if key not in self.away]
        kinds = ["store"] if len(up) < 2 else ["kill leader", "kill leader", "kill", "stop", "pause leader", "store"]
        kind = self.random.choice(kinds)
        name = self.leading() if "leader" in kind and self.leading() in up else self.random.choice(up)
        node, now = self.members[name].plane, time.time()
        self.faults.append(kind)
        if kind == "store":
            self.server.kill()
            time.sleep(self.random.uniform(0.2, 5.0))
            self.server.start()
        elif kind == "stop":
            node.stop()
            self.away[name] = now + 2, "start"
        elif kind == "pause leader":
            os.kill(node.pid, signal.SIGSTOP)
            self.ends[name].append(now)
            self.away[name] = now + PAUSED, "resume"
        else:
            node.kill()
            self.ends[name].append(now)
            self.away[name] = now + self.random.uniform(1, 10), "start"

    def come_back(self, *, all_: bool = False) -> None:
        for name, (when, how) in list(self.away.items()):
            if all_ or time.time() >= when:
                node = self.members[name].plane
                if how == "resume":
                    os.kill(node.pid, signal.SIGCONT)
                else:
                    node.start()
                del self.away[name]

    def terms(self) -> list[tuple[float, float, str]]:
        """From and to, by the logs and by what was done to the members."""
        found = []
        for name, each in self.members.items():
            events = [
                (datetime.fromisoformat(at).timestamp(), what) for at, what in _TERM.findall(each.plane.log.read_text())
            ]
            for (began, what), after in zip(events, [*events[1:], (time.time(), "now")], strict=True):
                if what == "Leading":
                    found.append((began, min([after[0], *(end for end in self.ends[name] if end >= began)]), name))
        return sorted(found)


@pytest.mark.parametrize("kind", ["postgresql", "etcd"])
def test_jobs_survive_faults_of_members_and_store(kind: str, tmp_path: Path) -> None:
    """etcd has three members; its leader and another one are killed in turn."""
    version = kubectl_runner.chosen()[-1]
    nodes: list[Node] = []
    with postgresql_server(durable=True) if kind == "postgresql" else etcd_cluster() as server:
        store = f"{server.url}?sslmode=disable" if kind == "postgresql" else f"{server.url}/ha"
        try:
            first = member(tmp_path, "a", store).start()
            nodes.append(first)
            a = Cluster(first, version)
            a.wait_until_up()
            second = member(tmp_path, "b", store, (first.home / "var/certs/domain.key").read_bytes()).start()
            nodes.append(second)
            b = Cluster(second, version)
            b.wait_until_up()
            nodes.insert(0, joined_node(first, tmp_path / "n1", "n1").start())
            b.wait_until_up("n1")
            _soak(Soak({"a": a, "b": b}, server, random.Random(7)))
        finally:
            for node in nodes:
                if node._process is not None:
                    os.kill(node.pid, signal.SIGCONT)
                node.destroy()


def _soak(soak: Soak) -> None:
    began, number = time.monotonic(), 0
    next_fault = time.monotonic() + 5
    while time.monotonic() < began + SECONDS:
        at = time.monotonic()
        soak.come_back()
        soak.create(number)
        number += 1
        if at >= next_fault:
            soak.fault()
            next_fault = time.monotonic() + soak.random.uniform(*FAULT_EVERY)
        time.sleep(max(0.0, at + EVERY - time.monotonic()))
    soak.come_back(all_=True)
    for each in soak.members.values():
        each.wait_until_up("n1")
    a, b = soak.members.values()

    def over() -> bool:
        done = {each["metadata"]["name"]: each["status"] for each in a.json("get jobs")["items"]}
        return all(done.get(name, {}).get("succeeded") == 1 for name in soak.created)

    until("all jobs end well", over, PATIENCE)
    pods = _pods_by_job(b.json("get pods")["items"])
    twice = {name: len(pods.get(name, ())) for name in soak.created if len(pods.get(name, ())) != 1}
    assert not twice, "pods were made twice"
    until("both are published", lambda: len(addresses(a)) == 2, PATIENCE)
    terms = soak.terms()
    overlaps = [(one, two) for one, two in itertools.pairwise(terms) if two[0] < one[1]]
    gaps = sorted(two[0] - one[1] for one, two in itertools.pairwise(terms))
    print(
        f"\n{len(soak.created)} jobs acknowledged, {len(soak.unknown)} unknown, faults {sorted(soak.faults)}, {len(terms)} terms, "
        f"without a leader {[round(each, 1) for each in gaps]} s"
    )
    assert not overlaps, "two led at once"


def _pods_by_job(pods: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pod in pods:
        found.setdefault(pod["metadata"]["labels"].get("job-name", ""), []).append(pod["metadata"]["name"])
    return found
