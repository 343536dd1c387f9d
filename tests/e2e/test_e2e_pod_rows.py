"""Rows of the acceptance list about pods on one node (C-59 to C-68, G-01 to G-05), and `kubectl debug`."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import HOST_IMAGE, Cluster, alive, container, pod, starts, state, until
from test_e2e_streams import _in_terminal

from coterie.kube.api import quantity

pytestmark = pytest.mark.xdist_group("e2e-autonomy")
PYTHON_IMAGE = "coterie/python:latest"


def host_pids(word: str) -> set[int]:
    """Processes of the machine with the word in their command line, but not a kubectl that was given it."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.encode() in each for each in words) and not words[0].endswith(b"kubectl"):
            found.add(int(path.parent.name))
    return found


def usage_of(cluster: Cluster, name: str) -> dict[str, float]:
    """Cores and bytes, as `kubectl top` asks for them."""
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{cluster.namespace}/pods/{name}"
    (main,) = json.loads(cluster.do(f"get --raw {path}"))["containers"]
    return {key: quantity.parse(main["usage"][key]).milli_value() / 1000 for key in ("cpu", "memory")}


def test_c59_pods_are_created_updated_and_deleted(autonomy: Cluster) -> None:
    autonomy.apply(pod("work", container("one"), container("two", "exec sleep 97531")))
    before = {each["name"]: each for each in autonomy.ready("work")["status"]["containerStatuses"]}
    kept = host_pids("97531")
    # The list of containers is fixed, as in Kubernetes; images may change, and debuggers may be added.
    removal = '[{"op": "remove", "path": "/spec/containers/0"}]'
    assert "may not add or remove containers" in autonomy.try_("patch", "pod", "work", "--type=json", "-p", removal).err
    autonomy.do(f"set image pod/work one={PYTHON_IMAGE}")
    until("one was restarted", lambda: state(autonomy.pod("work"), "one").get("restartCount") == 1)
    now = autonomy.ready("work")
    assert state(now, "two")["containerID"] == before["two"]["containerID"] and host_pids("97531") == kept
    assert "definition changed, will be restarted" in autonomy.do("events --for pod/work")
    autonomy.do("delete pod work")
    assert not host_pids("97531")


def test_c60_status_and_usage_follow(autonomy: Cluster) -> None:
    script = "while [ ! -e /v/go ]; do sleep 0.1; done; python3 -c 'x = bytearray(50 << 20)\nwhile True: pass'"
    volume: dict[str, Any] = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    autonomy.apply(pod("busy", container(script=script, **volume), volumes=[{"name": "v", "emptyDir": {}}]))
    autonomy.ready("busy")
    idle = usage_of(autonomy, "busy")
    autonomy.do("exec busy -- touch /v/go")
    until(
        "the load shows",
        lambda: (
            (seen := usage_of(autonomy, "busy"))["cpu"] > idle["cpu"] + 0.05
            and seen["memory"] > idle["memory"] + (40 << 20)
        ),
    )


def test_c64_idle_pods_cost_no_requests(autonomy: Cluster) -> None:
    autonomy.apply(*[pod(f"idle-{number}") for number in range(10)])
    for number in range(10):
        autonomy.ready(f"idle-{number}")

    def requests() -> dict[str, int]:
        lines = autonomy.do("get --raw /metrics").splitlines()
        found = [re.fullmatch(r"apiserver_request_total\{(.*)\} (\d+)", line) for line in lines]
        return {each[1]: int(each[2]) for each in found if each and 'resource="pods"' in each[1]}

    until("statuses are written", lambda: requests() == (time.sleep(1), requests())[1])
    before = requests()
    time.sleep(5)
    assert requests() == before


def test_c66_a_container_that_is_killed_is_reported(autonomy: Cluster) -> None:
    autonomy.apply(pod("victim", container(script="exec sleep 86421"), restartPolicy="Never"))
    autonomy.ready("victim")
    (process,) = host_pids("86421")
    autonomy.try_("exec", "victim", "--", "kill", "-9", "2")
    ended = state(autonomy.phase("victim", "Failed", seconds=15))["state"]["terminated"]
    assert ended["exitCode"] == 137 and not alive(process)


def test_c68_containers_of_a_pod_share_their_network(autonomy: Cluster) -> None:
    autonomy.apply(pod("both", container("web", "exec python3 -m http.server 8000"), container("client")))
    autonomy.ready("both")
    fetch = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/').status)"
    until(
        "the server answers",
        lambda: autonomy.try_("exec", "both", "-c", "client", "--", "python3", "-c", fetch).out.strip() == "200",
    )
    inodes = {autonomy.do(f"exec both -c {name} -- readlink /proc/self/ns/net") for name in ("web", "client")}
    assert len(inodes) == 1


def test_g01_cpu_limit_holds_for_all_processes_together(autonomy: Cluster) -> None:
    script = (
        "import os, time\n"
        "began = time.monotonic()\n"
        "for _ in range(2):\n"
        "    if not os.fork():\n"
        "        while time.monotonic() - began < 6: pass\n"
        "        os._exit(0)\n"
        "for _ in range(2): os.wait()\n"
        "used = os.times()\n"
        "print((used.children_user + used.children_system) / (time.monotonic() - began))\n"
    )
    limits = {"limits": {"cpu": "500m", "memory": "256Mi"}}
    main = {"name": "main", "image": PYTHON_IMAGE, "args": ["-c", script], "resources": limits}
    autonomy.apply(pod("spinner", main, restartPolicy="Never"))
    autonomy.phase("spinner", "Succeeded")
    # Other programs of a busy machine may take more of it away.
    assert 0.1 < float(autonomy.logs("spinner")) < 0.56


def test_g02_memory_limit_is_hard(autonomy: Cluster) -> None:
    hog = "d = []\nwhile True: d.append(bytearray(4 << 20))"
    limits = {"limits": {"memory": "64Mi"}}
    main = {"name": "main", "image": PYTHON_IMAGE, "args": ["-c", hog], "resources": limits}
    autonomy.apply(pod("hog", main, restartPolicy="Never"), pod("neighbour"))
    ended = state(autonomy.phase("hog", "Failed"))["state"]["terminated"]
    # Without a control group each process is limited by itself, and sees its allocation fail.
    assert ended["reason"] == ("OOMKilled" if os.geteuid() == 0 else "Error")
    assert state(autonomy.ready("neighbour"))["restartCount"] == 0
    assert "node-a" in autonomy.ready_nodes()


def test_g03_deleting_a_pod_removes_its_containers(autonomy: Cluster) -> None:
    autonomy.apply(pod("brief", container(script="trap 'exit 0' TERM; sleep 75319 & wait")))
    uid = autonomy.ready("brief")["metadata"]["uid"]
    assert host_pids("75319")
    autonomy.do("delete pod brief --timeout=10s")
    assert not host_pids("75319")
    assert not list(autonomy.plane.root.rglob(f"*{uid}*/pod.json")), "the runtime knows it no more"


def test_g05_two_containers_share_a_volume(autonomy: Cluster) -> None:
    mounts: dict[str, Any] = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    writer = container(
        "writer", "i=0; while :; do i=$((i+1)); echo $i > /v/n.new; mv /v/n.new /v/n; sleep 0.1; done", **mounts
    )
    reader = container("reader", "while :; do cat /v/n 2>/dev/null; sleep 0.2; done", **mounts)
    autonomy.apply(pod("pair", writer, reader, volumes=[{"name": "v", "emptyDir": {}}]))
    autonomy.ready("pair")
    seen = until("updates arrive", lambda: len(set(autonomy.logs("pair", "-c", "reader").split())) > 3)
    assert seen


def test_kubectl_debug_attaches_to_an_ephemeral_container(autonomy: Cluster) -> None:
    autonomy.apply(pod("target", container(script="exec sleep 64208")))
    before = starts(autonomy.ready("target"))
    shown = _in_terminal(
        autonomy,
        ["debug", "-it", "target", f"--image={HOST_IMAGE}", "--target=main", "-c", "dbg", "--", "sh"],
        [
            (rb"pressing enter", b"\n"),
            (rb"[$#] ?$", b"echo seen $(cat /proc/2/cmdline | tr '\\0' ' ')\n"),
            (rb"seen sleep 64208", b"exit 4\n"),
        ],
    )
    assert b"seen sleep 64208" in shown
    ended = until(
        "it ended",
        lambda: next(
            (
                found["state"]["terminated"]
                for found in autonomy.pod("target")["status"].get("ephemeralContainerStatuses", ())
                if "terminated" in found["state"]
            ),
            None,
        ),
    )
    assert ended["exitCode"] == 4
    now = autonomy.pod("target")
    assert starts(now) == before and now["status"]["phase"] == "Running"
    # It is not restarted, and cannot be changed or removed.
    assert now["status"]["ephemeralContainerStatuses"][0]["restartCount"] == 0
    # A second one, without a target: its own processes, the same network.
    autonomy.do(f"debug target --image={HOST_IMAGE} -c net --attach=false -- readlink /proc/self/ns/net")
    until("the output is there", lambda: "net:[" in autonomy.try_("logs", "target", "-c", "net").out)
    assert autonomy.logs("target", "-c", "net") == autonomy.do("exec target -c main -- readlink /proc/self/ns/net")


def test_ephemeral_containers_need_a_right_of_their_own(autonomy: Cluster) -> None:
    autonomy.do("create serviceaccount editor")
    namespace = autonomy.namespace
    autonomy.do(f"create rolebinding editor --clusterrole=edit --serviceaccount={namespace}:editor")

    def allowed(verb: str, subresource: str) -> bool:
        asked = {"namespace": namespace, "verb": verb, "resource": "pods", "subresource": subresource}
        user = f"system:serviceaccount:{namespace}:editor"
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        body = json.dumps({**review, "spec": {"user": user, "resourceAttributes": asked}})
        return autonomy.do("create -f - -o jsonpath={.status.allowed}", stdin=body) == "true"

    until("the binding counts", lambda: allowed("create", "exec"))
    assert not allowed("patch", "ephemeralcontainers")
    autonomy.do("create role debug --verb=patch,update --resource=pods/ephemeralcontainers")
    autonomy.do(f"create rolebinding debug --role=debug --serviceaccount={namespace}:editor")
    until("the binding counts", lambda: allowed("patch", "ephemeralcontainers"))


def test_capabilities_and_sysctls_of_a_pod(autonomy: Cluster) -> None:
    show = "grep CapBnd /proc/self/status; cat /proc/sys/net/ipv4/tcp_keepalive_time"
    drop = {"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}
    sysctls = {"sysctls": [{"name": "net.ipv4.tcp_keepalive_time", "value": "77"}]}
    refused = container(securityContext={"capabilities": {"add": ["NET_ADMIN"]}})
    forbidden = {"sysctls": [{"name": "kernel.msgmax", "value": "77"}]}
    autonomy.apply(
        pod("strict", container(script=show, **drop), securityContext=sysctls, restartPolicy="Never"),
        pod("greedy", refused, restartPolicy="Never"),
        pod("tuned", securityContext=forbidden),
    )
    autonomy.phase("strict", "Succeeded")
    assert autonomy.logs("strict").split() == ["CapBnd:", "0000000000000400", "77"]
    until("it is refused", lambda: "NET_ADMIN cannot be given" in str(state(autonomy.pod("greedy"))))
    assert autonomy.phase("tuned", "Failed")["status"]["reason"] == "SysctlForbidden"


def test_an_empty_dir_in_memory_has_the_size_it_asks_for(autonomy: Cluster) -> None:
    """Also where the node has no root: its supervisor mounts in a namespace of its own."""
    script = (
        "df --output=fstype,size --block-size=1 /m | tail -1; "
        "head -c 2000000 /dev/zero 2>/dev/null > /m/f || { echo full; : > /m/f; }; echo here > /m/g; sleep 1000"
    )
    volume = {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    mounts: dict[str, Any] = {"volumeMounts": [{"name": "m", "mountPath": "/m"}]}
    other = container("other", "until cat /m/g 2>/dev/null; do sleep 0.1; done; sleep 1000", **mounts)
    autonomy.apply(pod("memory", container(script=script, **mounts), other, volumes=[volume]))
    autonomy.ready("memory")
    until("it wrote", lambda: "full" in autonomy.logs("memory", "-c", "main"))
    assert autonomy.logs("memory", "-c", "main").split()[:2] == ["tmpfs", "1048576"]
    uid = autonomy.pod("memory")["metadata"]["uid"]
    directory = autonomy.plane.root
    autonomy.do("delete pod memory --timeout=20s")
    until("its files are gone", lambda: not [each for each in directory.rglob(uid) if each.is_dir()])
