"""A cluster of five machines on two subnets: rows of the acceptance list that are about machines (C-43 ... C-70, G-07).

One bench for the whole file. The control plane is on m1, with `controllers.profile: quick`. m1 to m4 have joined when the tests
begin, m5 joins in one of them. Each test leaves all machines as it found them.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from machines_kit import DOMAIN, PLAN, Bench, BenchMachine, bench_problem, until

from coterie import __version__
from coterie.kube.agent.runtimes.runp.client import group_of
from leftovers_kit import group_directories, user_ranges_below

pytestmark = [
    pytest.mark.xdist_group("e2e-machines"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(bench_problem()), reason=bench_problem() or "none"),
]

MEMBERS = ("m1", "m2", "m3", "m4")
OUTAGE_SECONDS = 60.0
"""For which the control plane is stopped under traffic."""
QUICK_SECONDS = 10.0
"""Within which the pods of a lost node are replaced in the quick profile."""
BUSY = 2.0
"""How much slower a busy machine may be."""
PYTHON = "coterie/python:latest"
SERVER = """
import http.server, os, socket
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = os.environ["HOSTNAME"].encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
CALLER = """
import sys, time, urllib.request
while True:
    for target in sys.argv[1:]:
        try:
            name = urllib.request.urlopen(f"http://{target}", timeout=2).read().decode()
            print("ok", target, name, flush=True)
        except OSError as problem:
            print("failed", target, problem, round(time.time(), 2), flush=True)
    time.sleep(0.2)
"""
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=3).read().decode())"

MATRIX = """
import socket, struct, sys, urllib.request
targets, nodes, closed = (each.split(",") for each in sys.argv[1:])
def fetched(target):
    try:
        return urllib.request.urlopen(f"http://{target}", timeout=3).read().decode()
    except OSError as problem:
        return type(problem).__name__
def pinged(node):
    ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    ping.settimeout(3)
    try:
        ping.sendto(struct.pack(">BBHHH", 8, 0, 0, 0, 1), (node, 0))
        return "answers" if ping.recv(100)[0] == 0 else "?"
    except OSError as problem:
        return type(problem).__name__
def refused(target):
    host, port = target.split(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
        return "connected"
    except OSError:
        return "refused"
print(*map(fetched, targets), *map(pinged, nodes), *map(refused, closed))
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    newest = list(kubectl_runner.found().values())[-1]
    made = Bench(tmp_path_factory.mktemp("bench"), newest)
    try:
        made.start_control_plane({"controllers": {"profile": "quick"}})
        made.join_all(*MEMBERS[1:])
        until(
            "the namespace has its account", lambda: made.try_kubectl("-n", "default", "get", "sa", "default").code == 0
        )
        yield made
    except BaseException:
        for machine in made.machines.values():
            print(f"--- log of {machine.name}\n{machine.log()}")
        raise
    finally:
        made.close()


@pytest.fixture(autouse=True)
def logs(bench: Bench, request: pytest.FixtureRequest) -> Iterator[None]:
    """All machines are there when a test begins; beside a failure stands what the nodes wrote."""
    until("the members are ready", lambda: bench.ready_nodes() >= set(MEMBERS), 40)
    yield
    if request.session.testsfailed:
        for machine in bench.machines.values():
            print(f"--- log of {machine.name}\n{machine.log(25)}")


def _server(name: str, node: str = "", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {**_template(node)["spec"], **more},
    }


def _template(node: str = "", program: str = SERVER, *words: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": PYTHON, "args": ["-c", program, *words]}
    if program == SERVER:
        container["readinessProbe"] = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"spec": spec}


def _deployment(name: str, replicas: int, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {**_template()["spec"], **spec}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def _service(name: str) -> dict[str, Any]:
    ports = [{"port": 80, "targetPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": ports},
    }


def _sleeper(name: str, node: str, seconds: int, **more: Any) -> dict[str, Any]:
    """A pod whose process is known by the number."""
    made = _server(name, node, **more)
    made["spec"]["containers"] = [{"name": "main", "image": "coterie/host:latest", "command": ["sleep", str(seconds)]}]
    return made


def _ready(bench: Bench, name: str, seconds: float = 30.0) -> dict[str, Any]:
    (found,) = bench.ready_pods(f"app={name}", 1, seconds)
    return found


def _address(pod: dict[str, Any]) -> str:
    return str(pod["status"]["podIP"])


def _fetch(bench: Bench, pod: str, address: str) -> str:
    """What a pod gets from an address; until it gets something, because new routes take a moment."""

    def look() -> str:
        done = bench.try_kubectl("exec", pod, "--", "python3", "-c", FETCH, f"http://{address}")
        return done.out.strip() if done.code == 0 else ""

    return str(until(f"{pod} reaches {address}", look, 20))


def _sleepers(machine: BenchMachine, seconds: int) -> int:
    """Processes of the pod, seen from the machine: also those in the containers' process namespaces."""
    lines = machine.do("ps", "-eo", "args").splitlines()
    return sum(line.strip() == f"sleep {seconds}" for line in lines)


def _gone(bench: Bench, *names: str) -> None:
    bench.kubectl(f"delete --ignore-not-found --wait=true --timeout=40s {' '.join(names)}")


def _node_range(bench: Bench, node: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(bench.json(f"get node {node}")["spec"]["podCIDR"])


# The rows.


def test_c67_the_network_comes_up_without_any_configuration(bench: Bench) -> None:
    """Only `node add` and `node join` were run: every node has a range of its own, every pod an address of it."""
    ranges = [_node_range(bench, name) for name in MEMBERS]
    assert len(set(ranges)) == len(MEMBERS)
    assert not any(one.overlaps(other) for one in ranges for other in ranges if one is not other)
    bench.apply(*(_server(f"on-{name}", name) for name in MEMBERS))
    for name, cidr in zip(MEMBERS, ranges, strict=True):
        assert ipaddress.IPv4Address(_address(_ready(bench, f"on-{name}"))) in cidr


def test_c55_machines_of_different_subnets_form_one_cluster(bench: Bench) -> None:
    """The pods of the test before: each reaches each, by way of the router where they are in different subnets."""
    addresses = {name: _address(_ready(bench, f"on-{name}")) for name in MEMBERS}
    for source in ("m1", "m2", "m4"):
        for target in MEMBERS:
            assert _fetch(bench, f"on-{source}", f"{addresses[target]}:8080") == f"on-{target}"
    # From machines to pods, and the API to agents of the other subnet.
    assert bench["m2"].do("curl", "-sS", "--max-time", "3", f"http://{addresses['m4']}:8080") == "on-m4"
    assert bench.try_kubectl("logs", "on-m4").code == 0


def test_c69_pods_reach_pods_nodes_services_and_names(bench: Bench) -> None:
    """From a pod on each node. A node is reached at its address in the pod network; the machine's own address is not for pods."""
    service_of_m2 = _service("matrix")  # not the name of the pod, which is in its own /etc/hosts
    service_of_m2["spec"]["selector"] = {"app": "on-m2"}
    bench.apply(service_of_m2)
    try:
        addresses = {name: _address(_ready(bench, f"on-{name}")) for name in MEMBERS}
        service = bench.json("get service matrix")["spec"]["clusterIP"]
        nodes = [str(_node_range(bench, name)[1]) for name in MEMBERS]
        targets = [f"{address}:8080" for address in addresses.values()] + [service, "matrix.default.svc", "matrix"]
        wanted = [f"on-{name}" for name in MEMBERS] + ["on-m2"] * 3 + ["answers"] * len(nodes)
        closed = [f"{bench[name].address}:10250" for name in MEMBERS]
        words = [",".join(each) for each in (targets, nodes, closed)]
        wanted += ["refused"] * len(closed)
        for name in MEMBERS:
            answers: list[str] = []
            deadline = time.monotonic() + 30
            while answers != wanted and time.monotonic() < deadline:
                answers = bench.kubectl(f"exec on-{name} -- python3 -c {shlex.quote(MATRIX)} {' '.join(words)}").split()
            assert dict(zip([*targets, *nodes, *closed], answers, strict=True)) == dict(
                zip([*targets, *nodes, *closed], wanted, strict=True)
            ), name
    finally:
        _gone(bench, "service/matrix")


def test_c14_actors_are_spread_over_the_machines(bench: Bench) -> None:
    """The functions process is on m1, and has connected to each actor that is ready."""
    script = "from serverless import Response\ndef action(req):\n    return Response('x')\n"
    spec = {"script": script, "scaling": {"minReplicas": 4}}
    bench.apply(
        {
            "apiVersion": "coterie.io/v1alpha1",
            "kind": "Action",
            "metadata": {"name": "spread", "namespace": DOMAIN},
            "spec": spec,
        }
    )
    action = f"get action spread -n {DOMAIN}"
    until("four are ready", lambda: bench.json(action).get("status", {}).get("readyReplicas") == 4, 90)
    pods = bench.json(f"get pods -n {DOMAIN} -l coterie.io/action=spread")["items"]
    assert len({each["spec"]["nodeName"] for each in pods}) >= 2
    bench.kubectl(f"delete action spread -n {DOMAIN} --wait=false")


def test_c56_a_node_is_not_tied_to_a_network_card(bench: Bench) -> None:
    """m3 joined with the address of its first card, and joins again with that of its second."""
    first, second = PLAN["m3"]

    def internal() -> list[str]:
        listed = bench.json("get node m3")["status"]["addresses"]
        return [each["address"] for each in listed if each["type"] == "InternalIP"]

    assert internal() == [first]
    before = _node_range(bench, "m3")
    bench["m3"].coterie("node", "leave", "--force", "--ignore-daemonsets", "--timeout", "30s")
    assert "m3" not in bench.kubectl("get nodes")
    bench["m3"].coterie("node", "reset", "--force")
    bench.join("m3", second, first)
    try:
        assert internal() == [second, first]
        assert _node_range(bench, "m3") != before, "a range is given out again as late as possible"
        bench.apply(_server("second-card", "m3"))
        pod = _ready(bench, "second-card")
        assert _fetch(bench, "on-m4", f"{_address(pod)}:8080") == "second-card"
        assert bench.try_kubectl("exec", "second-card", "--", "true").code == 0
        _gone(bench, "pod/second-card")
    finally:
        bench["m3"].coterie("node", "reset", "--force")
        bench.join("m3")
    bench.apply(_server("on-m3", "m3"))
    _ready(bench, "on-m3")


def test_c63_an_agent_runs_its_own_pods_only(bench: Bench) -> None:
    bench.apply(_sleeper("foreign", "m4", 424242), _sleeper("unscheduled", "nowhere", 434343))
    _ready(bench, "foreign")
    assert _sleepers(bench["m4"], 424242) == 1
    for name in ("m1", "m2", "m3"):
        assert _sleepers(bench[name], 424242) == 0
    assert not any(_sleepers(bench[name], 434343) for name in MEMBERS)
    _gone(bench, "pod/foreign", "pod/unscheduled")
    until("its process has ended", lambda: _sleepers(bench["m4"], 424242) == 0)


def test_c70_a_machine_joins_and_is_reset_at_run_time(bench: Bench) -> None:
    machine = bench["m5"]
    assert machine.processes() == {}
    before, files = machine.network_state(), set(machine.home.rglob("*"))
    bench.join("m5")
    bench.apply(_server("on-m5", "m5"))
    group = group_of("m5", machine.root / DOMAIN / "var" / "run" / "runp")
    pod = _ready(bench, "on-m5")
    for name in MEMBERS:
        assert _fetch(bench, "on-m5", f"{_address(_ready(bench, f'on-{name}'))}:8080") == f"on-{name}"
        assert _fetch(bench, f"on-{name}", f"{_address(pod)}:8080") == "on-m5"
    others = {name: _starts(_ready(bench, f"on-{name}")) for name in MEMBERS}
    assert group_directories(group) and user_ranges_below(str(machine.home))
    said = machine.coterie("node", "reset", "--force")
    assert "The Node m5 is deleted." in said and "1 pod stopped" in said
    assert "m5" not in bench.kubectl("get nodes")
    assert bench.try_kubectl("get", "pod", "on-m5").code != 0, "a pod without a controller is gone with its node"
    assert machine.processes() == {}
    assert machine.network_state() == before, "no device, route or rule is left"
    assert set(machine.home.rglob("*")) == files
    assert group_directories(group) == [] and user_ranges_below(str(machine.home)) == []
    assert str(machine.home) not in Path("/proc/self/mounts").read_text() + machine.do("cat", "/proc/self/mounts")
    assert {name: _starts(_ready(bench, f"on-{name}")) for name in MEMBERS} == others, "others are not affected"


def _starts(pod: dict[str, Any]) -> list[tuple[str, int]]:
    return [(each["containerID"], each["restartCount"]) for each in pod["status"]["containerStatuses"]]


def test_a_node_of_the_next_minor_version_works_and_one_of_the_version_after_is_refused(bench: Bench) -> None:
    machine = bench["m5"]
    major, minor = (int(part) for part in __version__.split(".")[:2])
    try:
        file = bench.add("m5")
        machine.pretend_version(f"{major}.{minor + 2}.0")
        refused = machine.try_coterie("node", "join", "-", stdin=file)
        assert refused.code == 1
        assert "one minor version apart at most; upgrade the control plane" in refused.err, refused.err
        assert machine.node_pid() == 0
        machine.pretend_version(f"{major}.{minor + 1}.0")
        machine.coterie("node", "join", "-", stdin=file)
        bench.apply(_server("newer", "m5"))
        assert _fetch(bench, "on-m2", f"{_address(_ready(bench, 'newer'))}:8080") == "newer"
        assert bench.json("get node m5")["status"]["nodeInfo"]["kubeletVersion"] == f"v{major}.{minor + 1}.0"
    finally:
        machine.pretend_version("")
        _reset_without_control_plane(bench, machine)


def _reset_without_control_plane(bench: Bench, machine: BenchMachine) -> None:
    bench.cut(machine.name)
    try:
        done = machine.try_coterie("node", "reset", "--force")
        assert done.code == 0, done
        assert f"Run `coterie delete node {machine.name}` where the control plane is" in done.err
        assert machine.processes() == {} and not machine.root.exists()
    finally:
        bench.mend(machine.name)
    bench["m1"].coterie("delete", "node", machine.name)
    bench.kubectl("delete pod newer --force --grace-period=0")


def test_c44_c45_a_dead_node_is_noticed_and_gets_no_pods_until_it_returns(bench: Bench) -> None:
    """m2's node process is killed, m4's cable is pulled: both are NotReady in time, and nothing is scheduled there."""
    bench["m2"].kill_node()
    bench.cut("m4")
    began = time.monotonic()
    try:
        until("both are not ready", lambda: not {"m2", "m4"} & bench.ready_nodes(), 20)
        noticed = time.monotonic() - began
        bench.apply(_deployment("later", 4))
        placed = {pod["spec"]["nodeName"] for pod in bench.ready_pods("app=later", 4)}
        assert placed <= {"m1", "m3"}, placed
        assert noticed < QUICK_SECONDS * BUSY
    finally:
        bench.mend("m4")
        bench["m2"].coterie("node", "join")
    until("both are ready again", lambda: {"m2", "m4"} <= bench.ready_nodes(), 30)
    bench.kubectl("scale deployment later --replicas=12")
    until(
        "they are used again",
        lambda: {"m2", "m4"} <= {pod["spec"].get("nodeName") for pod in bench.pods("app=later")},
    )
    _gone(bench, "deployment/later")
    _restore_pods(bench, "m2", "m4")


def _restore_pods(bench: Bench, *nodes: str) -> None:
    """Bare pods of a node that was lost are deleted, and nobody makes them again."""
    for name in nodes:
        until(f"the old pod of {name} is gone or there", lambda name=name: _settled(bench, f"on-{name}"))
        if bench.try_kubectl("get", "pod", f"on-{name}").code:
            bench.apply(_server(f"on-{name}", name))
        _ready(bench, f"on-{name}")


def _settled(bench: Bench, pod: str) -> bool:
    done = bench.try_kubectl("get", "pod", pod, "-o", "json")
    return done.code != 0 or "deletionTimestamp" not in json.loads(done.out)["metadata"]


def test_a_killed_machines_pods_are_replaced_and_its_addresses_withdrawn_in_time(bench: Bench) -> None:
    bench.join("m5")
    spread = {"topologySpreadConstraints": [_spread("lost")]}
    bench.apply(_deployment("lost", 5, **spread), _service("lost"))
    pods = bench.ready_pods("app=lost", 5)
    (victim,) = [pod for pod in pods if pod["spec"]["nodeName"] == "m5"]
    began = time.monotonic()
    bench["m5"].kill()
    until("the address is withdrawn", lambda: _address(victim) not in _endpoints(bench, "lost"), 20)
    until("it is replaced", lambda: len(_endpoints(bench, "lost")) == 5, 30)
    took = time.monotonic() - began
    assert "m5" not in {pod["spec"]["nodeName"] for pod in bench.ready_pods("app=lost", 5)}
    bench["m5"].boot()
    bench["m5"].coterie("node", "join")
    until("the deleted pod of before is gone", lambda: len(bench.json("get pods -l app=lost")["items"]) == 5)
    assert not [line for line in bench["m5"].processes().values() if "http.server" in line], "never two of one"
    bench["m5"].coterie("node", "leave", "--ignore-daemonsets", "--timeout", "30s")
    bench["m5"].coterie("node", "reset", "--force")
    _gone(bench, "deployment/lost", "service/lost")
    assert took < QUICK_SECONDS * BUSY


def _spread(app: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": app}},
    }


def _endpoints(bench: Bench, service: str) -> set[str]:
    slices = bench.json(f"get endpointslices -l kubernetes.io/service-name={service}")["items"]
    return {
        address
        for each in slices
        for endpoint in each.get("endpoints") or ()
        if endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    }


def test_a_router_that_fails_costs_the_machines_behind_it_and_nothing_runs_twice(bench: Bench) -> None:
    """m4 goes on without the control plane; its pod is replaced, and ended when m4 is back."""
    tolerant = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in ("unreachable", "not-ready")]
    here = {"nodeSelector": {"kubernetes.io/hostname": "m4"}}
    bench.apply(_sleeper("stays", "m4", 515151, tolerations=tolerant))
    one = _deployment("moves", 1)
    one["spec"]["template"]["spec"]["containers"] = [
        {"name": "main", "image": "coterie/host:latest", "command": ["sleep", "525252"]}
    ]
    one["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["m4"]}]
                    },
                }
            ]
        }
    }
    bench.apply(one)
    (moved,) = bench.ready_pods("app=moves", 1)
    assert moved["spec"]["nodeName"] == here["nodeSelector"]["kubernetes.io/hostname"]
    before = _starts(_ready(bench, "stays"))
    bench.cut_router()
    try:
        until("m4 is not ready", lambda: "m4" not in bench.ready_nodes(), 20)
        until("the pod is replaced", lambda: _elsewhere(bench, "moves", "m4"), 20)
        assert _sleepers(bench["m4"], 525252) == 1, "its machine does not know yet"
    finally:
        bench.mend_router()
    until("m4 is back", lambda: "m4" in bench.ready_nodes(), 30)
    until("the old one has ended", lambda: _sleepers(bench["m4"], 525252) == 0)
    assert sum(_sleepers(bench[name], 525252) for name in MEMBERS) == 1
    assert _starts(_ready(bench, "stays")) == before, "who was not replaced goes on"
    _gone(bench, "deployment/moves", "pod/stays")
    _restore_pods(bench, "m4")


def _elsewhere(bench: Bench, app: str, node: str) -> bool:
    return any(
        pod["spec"].get("nodeName") not in (None, node) and pod["status"]["phase"] == "Running"
        for pod in bench.pods(f"app={app}")
    )


# The control plane stops under traffic.


@dataclass(slots=True)
class Outage:
    """What was seen while the control plane was away."""

    before: dict[str, tuple[str, list[tuple[str, int]]]] = field(default_factory=dict)
    cluster_ip: str = ""
    running: dict[str, int] = field(default_factory=dict)
    """Processes of pods by machine, at the end of the outage."""
    ready_after: float = 0.0
    """Seconds until all workers were Ready."""
    machine_failures: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def outage(bench: Bench) -> Outage:
    """The control plane is away; the pod `erased` is deleted in its store meanwhile."""
    seen = Outage()
    bench.apply(_deployment("web", 3, **{"topologySpreadConstraints": [_spread("web")]}), _service("web"))
    pods = bench.ready_pods("app=web", 3)
    bench.apply(_sleeper("erased", "m4", 616161), _sleeper("steady", "m2", 626262))
    _ready(bench, "erased"), _ready(bench, "steady")
    seen.cluster_ip = bench.json("get service web")["spec"]["clusterIP"]
    targets = [seen.cluster_ip, "web.default.svc", *(f"{_address(pod)}:8080" for pod in pods)]
    for node in ("m2", "m4"):
        caller = _server(f"caller-{node}", node)
        caller["spec"]["containers"] = _template(node, CALLER, *targets)["spec"]["containers"]
        bench.apply(caller)
    for node in ("m2", "m4"):
        _ready(bench, f"caller-{node}")
        until("it gets answers", lambda node=node: "ok" in bench.kubectl(f"logs --tail=20 caller-{node}"))
    time.sleep(2)
    seen.before = {pod["metadata"]["name"]: (_address(pod), _starts(pod)) for pod in bench.ready_pods("app=web", 3)}
    bench.stop_node("m1")
    bench["m1"].do(sys.executable, "-c", _ERASE, str(bench["m1"].root / DOMAIN / "var/storage/coterie.db"), "erased")
    deadline = time.monotonic() + OUTAGE_SECONDS
    while time.monotonic() < deadline:
        done = bench["m2"].run("curl", "-sS", "--max-time", "2", f"http://{seen.cluster_ip}")
        if done.code:
            seen.machine_failures.append(done.err.strip())
        time.sleep(0.5)
    seen.running = {name: _sleepers(bench[name], number) for name, number in (("m2", 626262), ("m4", 616161))}
    began = time.monotonic()
    bench.start_node("m1")
    until("the workers are ready", lambda: {"m2", "m3", "m4"} <= bench.ready_nodes(), 40)
    seen.ready_after = time.monotonic() - began
    return seen


_ERASE = """
import asyncio, pathlib, sys
from coterie.kube.store import SqliteStore
from coterie.kube.store.protocol import DeleteOp
async def erase():
    store = SqliteStore(pathlib.Path(sys.argv[1]))
    await store.open()
    try:
        keys = [each.key for each in (await store.scan("")).records if each.key.endswith(f"pods/default/{sys.argv[2]}")]
        assert len(keys) == 1, keys
        await store.commit([DeleteOp(keys[0])])
    finally:
        await store.close()
asyncio.run(erase())
"""


def test_c43_workers_go_on_without_the_control_plane_and_find_it_again(bench: Bench, outage: Outage) -> None:
    assert outage.running == {"m2": 1, "m4": 1}, "their pods ran all the time"
    assert outage.ready_after < 20 * BUSY
    for name in ("m2", "m4"):
        bench.apply(_server(f"new-{name}", name))
        assert _ready(bench, f"new-{name}")["spec"]["nodeName"] == name
    _gone(bench, "pod/new-m2", "pod/new-m4")


def test_c65_what_was_deleted_meanwhile_is_ended(bench: Bench, outage: Outage) -> None:
    """No event tells of it: agents compare what they have with what there is."""
    assert bench.try_kubectl("get", "pod", "erased").code != 0
    until("its container is gone", lambda: _sleepers(bench["m4"], 616161) == 0, 40)
    assert _sleepers(bench["m2"], 626262) == 1


def test_g07_addresses_services_and_names_are_the_same_and_answered_all_the_time(bench: Bench, outage: Outage) -> None:
    after = {pod["metadata"]["name"]: (_address(pod), _starts(pod)) for pod in bench.ready_pods("app=web", 3)}
    assert after == outage.before, "no pod was restarted or moved"
    assert bench.json("get service web")["spec"]["clusterIP"] == outage.cluster_ip
    assert outage.machine_failures == []
    for node in ("m2", "m4"):
        lines = bench.kubectl(f"logs caller-{node}").splitlines()
        assert [line for line in lines if line.startswith("failed")] == []
        answered = {re.split(" ", line)[1] for line in lines}
        assert {outage.cluster_ip, "web.default.svc"} <= answered
        assert len(lines) > OUTAGE_SECONDS, "it called all the time"
    bench.apply(_deployment("fresh", 2))
    bench.ready_pods("app=fresh", 2)
    _gone(bench, "deployment/fresh", "deployment/web", "service/web", "pod/steady", "pod/caller-m2", "pod/caller-m4")
