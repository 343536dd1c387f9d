"""One pod at a time: what is in it, how it lives and how it ends. Real processes, seen through a real kubectl."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import Cluster, alive, condition, container, pod, starts, state, until

pytestmark = pytest.mark.xdist_group("e2e-autonomy")


def test_init_containers_run_in_order_and_before_the_others(autonomy: Cluster) -> None:
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mount = [{"name": "v", "mountPath": "/v"}]
    autonomy.apply(
        pod(
            "ordered",
            container(script="cat /v/story; sleep 1000", volumeMounts=mount),
            initContainers=[
                container("first", "echo first >> /v/story", volumeMounts=mount),
                container("second", "echo second >> /v/story; sleep 0.3", volumeMounts=mount),
            ],
            **volume,
        ),
        pod(
            "stuck",
            container(script="echo never"),
            initContainers=[container("first", "echo no >&2; exit 3")],
            restartPolicy="Never",
        ),
    )
    ordered = autonomy.ready("ordered")
    assert autonomy.logs("ordered") == "first\nsecond\n"
    assert [state(ordered, name, init=True)["state"]["terminated"]["reason"] for name in ("first", "second")] == [
        "Completed",
        "Completed",
    ]
    assert condition(ordered, "Initialized") == "True"
    stuck = autonomy.phase("stuck", "Failed")
    assert state(stuck, "first", init=True)["state"]["terminated"]["exitCode"] == 3
    assert state(stuck)["state"]["waiting"]["reason"] == "PodInitializing"
    assert "Init:Error" in autonomy.do("get pod stuck")
    assert autonomy.logs("stuck", "-c first") == "no\n"


def test_containers_share_volumes_and_localhost(autonomy: Cluster) -> None:
    mount = [{"name": "v", "mountPath": "/v"}]
    server = "import socket; s = socket.create_server(('127.0.0.1', 0)); open('/v/tmp', 'w').write(str(s.getsockname()[1]))\nimport os; os.rename('/v/tmp', '/v/port')\nc, _ = s.accept(); c.sendall(b'over localhost'); c.close()\nimport time; time.sleep(1000)"
    client = "import os, socket, time\nwhile not os.path.exists('/v/port'): time.sleep(0.02)\nc = socket.create_connection(('localhost', int(open('/v/port').read()))); print(c.recv(99).decode())"
    autonomy.apply(
        pod(
            "pair",
            {"name": "server", "image": "coterie/python:latest", "args": ["-c", server], "volumeMounts": mount},
            {"name": "client", "image": "coterie/python:latest", "args": ["-c", client], "volumeMounts": mount},
            volumes=[{"name": "v", "emptyDir": {}}],
            restartPolicy="Never",
        )
    )
    until("the client is done", lambda: "terminated" in state(autonomy.pod("pair"), "client").get("state", {}))
    assert autonomy.logs("pair", "-c client") == "over localhost\n"
    assert "1/2" in autonomy.do("get pod pair")


def test_restart_policies_and_back_off(autonomy: Cluster) -> None:
    autonomy.apply(
        pod("always", container(script="echo run; exit 0")),
        pod("on-failure", container(script="echo run; exit 4"), restartPolicy="OnFailure"),
        pod("on-success", container(script="echo run; exit 0"), restartPolicy="OnFailure"),
        pod("never", container(script="exit 5"), restartPolicy="Never"),
    )
    for name in ("always", "on-failure"):
        crashed = until(
            f"{name} backs off",
            lambda name=name: (
                (p := autonomy.pod(name))
                and state(p).get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
                and p
            ),
        )
        assert state(crashed)["restartCount"] == 1
        assert "back-off" in state(crashed)["state"]["waiting"]["message"]
        assert crashed["status"]["phase"] == "Running"
        assert condition(crashed, "Ready") == "False"
    assert state(autonomy.pod("on-failure"))["lastState"]["terminated"]["exitCode"] == 4
    assert "CrashLoopBackOff" in autonomy.do("get pod always")
    assert "BackOff" in autonomy.do("events --for pod/always")
    succeeded, failed = autonomy.phase("on-success", "Succeeded"), autonomy.phase("never", "Failed")
    assert (state(succeeded)["restartCount"], state(failed)["restartCount"]) == (0, 0)
    ended = state(failed)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (5, "Error")


def test_probes_fail_and_recover(autonomy: Cluster) -> None:
    server = "import http.server, os\nclass H(http.server.BaseHTTPRequestHandler):\n  def do_GET(self):\n    self.send_response(200 if os.path.exists('/v/well') else 503); self.end_headers()\n  def log_message(self, *a): pass\nhttp.server.HTTPServer(('127.0.0.1', 18431), H).serve_forever()"
    every = {"periodSeconds": 1, "failureThreshold": 1}
    mount = [{"name": "v", "mountPath": "/v"}]
    autonomy.apply(
        pod(
            "web",
            {
                "name": "main",
                "image": "coterie/python:latest",
                "args": ["-c", server],
                "volumeMounts": mount,
                "readinessProbe": {"httpGet": {"port": 18431, "path": "/"}, **every},
                "startupProbe": {"tcpSocket": {"port": 18431}, "periodSeconds": 1},
            },
            volumes=[{"name": "v", "emptyDir": {}}],
        ),
        pod(
            "lives",
            container(
                script="touch /v/well; sleep 1000",
                volumeMounts=mount,
                livenessProbe={"exec": {"command": ["test", "-e", "/v/well"]}, "initialDelaySeconds": 1, **every},
            ),
            volumes=[{"name": "v", "emptyDir": {}}],
        ),
    )
    web = autonomy.phase("web", "Running")
    until("it has started", lambda: state(autonomy.pod("web")).get("started"))
    assert condition(web, "Ready") == "False"
    autonomy.do("exec web -- touch /v/well")
    autonomy.ready("web")
    autonomy.do("exec web -- rm /v/well")
    autonomy.ready("web", "False")
    until("the probe's failure is told", lambda: "Readiness probe failed" in autonomy.do("events --for pod/web"))
    autonomy.do("exec web -- touch /v/well")
    assert state(autonomy.ready("web"))["restartCount"] == 0
    autonomy.ready("lives")
    autonomy.do("exec lives -- rm /v/well")
    until("it is restarted", lambda: state(autonomy.pod("lives"))["restartCount"] == 1)
    lives = autonomy.ready("lives")
    assert state(lives)["lastState"]["terminated"]["exitCode"] in (137, 143)
    assert "Liveness probe failed" in autonomy.do("events --for pod/lives")


def test_hooks_and_graceful_termination(autonomy: Cluster, host_path: Path) -> None:
    volumes = [{"name": "h", "hostPath": {"path": str(host_path)}}]
    mount = [{"name": "h", "mountPath": "/h"}]
    autonomy.apply(
        pod(
            "hooked",
            container(
                script="trap 'echo term >> /h/story; exit 0' TERM; sleep 1000 & wait",
                volumeMounts=mount,
                lifecycle={
                    "postStart": {"exec": {"command": ["sh", "-c", "echo started >> /h/story"]}},
                    "preStop": {"exec": {"command": ["sh", "-c", "echo stopping >> /h/story"]}},
                },
            ),
            volumes=volumes,
            terminationGracePeriodSeconds=20,
        ),
        pod(
            "deaf",
            container(script="trap '' TERM; echo $$; while :; do sleep 0.1; done"),
            terminationGracePeriodSeconds=2,
        ),
    )
    autonomy.ready("hooked")
    autonomy.ready("deaf")
    began = time.monotonic()
    autonomy.do("delete pod hooked")
    assert time.monotonic() - began < 15, "an answer to SIGTERM ends the wait"
    assert (host_path / "story").read_text() == "started\nstopping\nterm\n"
    began = time.monotonic()
    autonomy.do("delete pod deaf")
    assert 1.9 <= time.monotonic() - began < 12, "what ignores SIGTERM is killed when its grace is over"


def test_active_deadline(autonomy: Cluster) -> None:
    autonomy.apply(pod("late", container(), activeDeadlineSeconds=1))
    late = autonomy.phase("late", "Failed")
    assert late["status"]["reason"] == "DeadlineExceeded"
    assert "DeadlineExceeded" in autonomy.do("describe pod late")


def test_environment(autonomy: Cluster) -> None:
    autonomy.do("create configmap plain --from-literal=COLOUR=blue --from-literal=SIZE=3")
    autonomy.do("create secret generic hidden --from-literal=word=xyzzy")
    ref: dict[str, Any] = {"name": "plain"}
    autonomy.apply(
        pod(
            "env",
            container(
                script="env | sort",
                resources={"limits": {"cpu": "2", "memory": "64Mi"}},
                envFrom=[{"prefix": "P_", "configMapRef": ref}],
                env=[
                    {"name": "A", "value": "a"},
                    {"name": "B", "value": "$(A)b"},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {**ref, "key": "COLOUR"}}},
                    {"name": "D", "valueFrom": {"configMapKeyRef": {**ref, "key": "no", "optional": True}}},
                    {"name": "S", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}},
                    {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                    {"name": "W", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "M", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                    {"name": "U", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                ],
            ),
            restartPolicy="Never",
        ),
        pod(
            "missing",
            container(env=[{"name": "X", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]),
        ),
    )
    autonomy.phase("env", "Succeeded")
    found = dict(line.split("=", 1) for line in autonomy.logs("env").splitlines() if "=" in line)
    wanted = {
        "A": "a", "B": "ab", "C": "blue", "S": "xyzzy", "N": "env", "L": "env", "W": "node-a", "M": "64", "U": "2",
        "P_COLOUR": "blue", "P_SIZE": "3", "HOSTNAME": "env",
    }  # fmt: skip
    assert {key: found.get(key) for key in wanted} == wanted
    assert "D" not in found
    until(
        "the missing secret is told",
        lambda: (
            state(autonomy.pod("missing")).get("state", {}).get("waiting", {}).get("reason")
            == "CreateContainerConfigError"
        ),
    )
    assert 'secret "none" not found' in autonomy.do("describe pod missing")
    autonomy.do("create secret generic none --from-literal=k=v")
    autonomy.ready("missing")


def test_volumes(autonomy: Cluster, host_path: Path) -> None:
    (host_path / "given").write_text("from the host")
    autonomy.do("create configmap settings --from-literal=a.conf=one --from-literal=b.conf=two")
    autonomy.do("create secret generic keys --from-literal=key=xyzzy")
    sources = [
        {"configMap": {"name": "settings", "items": [{"key": "a.conf", "path": "deep/a"}]}},
        {"secret": {"name": "keys"}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "cm", "configMap": {"name": "settings"}},
        {"name": "sec", "secret": {"secretName": "keys", "defaultMode": 0o400}},
        {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "host", "hostPath": {"path": str(host_path), "type": "Directory"}},
        {"name": "all", "projected": {"sources": sources}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": v["name"], "mountPath": f"/mnt/{v['name']}", "readOnly": v["name"] == "host"} for v in volumes
    ]
    mounts.append({"name": "cm", "mountPath": "/mnt/one.conf", "subPath": "a.conf"})
    autonomy.apply(
        pod("vols", container(volumeMounts=mounts), volumes=volumes),
        pod(
            "refused",
            container(volumeMounts=[{"name": "h", "mountPath": "/h"}]),
            volumes=[{"name": "h", "hostPath": {"path": "/etc"}}],
        ),
    )
    autonomy.ready("vols")
    run = "exec vols -- sh -c"
    told = autonomy.do(
        f"{run} 'cd /mnt; cat cm/a.conf cm/b.conf one.conf sec/key host/given all/deep/a all/key all/name; echo; wc -c < all/token'"
    )
    assert told.splitlines()[0] == "onetwoonexyzzyfrom the hostonexyzzyvols"
    assert int(told.splitlines()[1]) > 100, "a token is there"
    assert autonomy.do(f"{run} 'stat -Lc %a /mnt/sec/key'") == "400\n"
    assert "tmpfs" in autonomy.do(f"{run} 'df --output=fstype /mnt/mem'")
    assert "Read-only" in autonomy.fail(f"{run} 'echo no > /mnt/host/given'")
    autonomy.do('patch configmap settings --type=merge -p \'{"data":{"a.conf":"new"}}\'')
    until("the change arrives", lambda: autonomy.do("exec vols -- cat /mnt/cm/a.conf") == "new")
    assert autonomy.do("exec vols -- cat /mnt/one.conf") == "one", "a subPath stays as it was"
    assert state(autonomy.pod("vols"))["restartCount"] == 0
    until("the refusal is told", lambda: "FailedMount" in autonomy.do("events --for pod/refused"))
    assert autonomy.pod("refused")["status"]["phase"] == "Pending"


def test_termination_messages(autonomy: Cluster) -> None:
    autonomy.apply(
        pod("says", container(script="echo why > /dev/termination-log; exit 1"), restartPolicy="Never"),
        pod(
            "logs",
            container(script="echo last words; exit 1", terminationMessagePolicy="FallbackToLogsOnError"),
            restartPolicy="Never",
        ),
    )
    messages = {n: state(autonomy.phase(n, "Failed"))["state"]["terminated"]["message"] for n in ("says", "logs")}
    assert messages == {"says": "why\n", "logs": "last words\n"}


def test_a_missing_image_is_told(autonomy: Cluster) -> None:
    autonomy.do("run none --image=example/none:1 --restart=Never")
    waiting = until(
        "it is told",
        lambda: (
            (s := state(autonomy.pod("none"), "none").get("state", {}).get("waiting"))
            and s["reason"] == "ErrImageNeverPull"
            and s
        ),
    )
    assert "example/none:1" in waiting["message"]
    assert "ErrImageNeverPull" in autonomy.do("get pod none")


def test_a_memory_hog_is_killed_and_reported(autonomy: Cluster) -> None:
    hog = "x = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(1000)"
    autonomy.apply(
        pod(
            "hog",
            {
                "name": "main",
                "image": "coterie/python:latest",
                "args": ["-c", hog],
                "resources": {"limits": {"memory": "48Mi"}},
            },
            restartPolicy="Never",
        )
    )
    ended = state(autonomy.phase("hog", "Failed"))["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert "OOMKilled" in autonomy.do("get pod hog")


def test_a_forced_delete_leaves_no_process(autonomy: Cluster, host_path: Path) -> None:
    volumes = [{"name": "h", "hostPath": {"path": str(host_path)}}]
    script = "trap '' TERM; awk '{print $1}' /proc/self/stat > /dev/null; sleep 987 & wait"
    autonomy.apply(
        pod("goes", container(script=script, volumeMounts=[{"name": "h", "mountPath": "/h"}]), volumes=volumes)
    )
    autonomy.ready("goes")
    keepers = autonomy.plane.shepherds()
    pids = [p.pid for k in keepers for p in k.children(recursive=True) if p.cmdline()[:2] == ["sleep", "987"]]
    assert pids
    autonomy.try_("delete", "pod", "goes", "--grace-period=0", "--force")
    assert "not found" in autonomy.fail("get pod goes")
    until("its processes are gone", lambda: not any(alive(pid) for pid in pids))


def test_pods_outlive_a_crash_of_the_whole_node(autonomy: Cluster) -> None:
    """API, controllers and agent are one process here; killed, all come back and the pod has not noticed."""
    autonomy.apply(pod("steady", container(script="echo begun; sleep 1000")))
    before = starts(autonomy.ready("steady"))
    autonomy.plane.kill()
    autonomy.plane.kubeconfig.unlink()
    autonomy.plane.start()
    autonomy.wait_until_up("node-a")
    assert starts(autonomy.ready("steady")) == before
    # The Node says Ready of before until its agent is back.
    until("its agent answers again", lambda: autonomy.try_("logs", "steady").rc == 0)
    assert autonomy.logs("steady") == "begun\n"


def test_a_pod_that_forks_fills_or_takes_all_memory_is_stopped_and_named(autonomy: Cluster) -> None:
    def small(**limits: str) -> dict[str, Any]:
        return {"limits": {name.replace("_", "-"): value for name, value in limits.items()}}

    fill = "import os\nwhile True: open(os.urandom(4).hex(), 'wb').write(b'x' * (1 << 20))"
    bomb = (
        "import threading, time\nthreading.stack_size(65536)\nwhile True:\n"
        "  try: threading.Thread(target=time.sleep, args=(1000,)).start()\n  except RuntimeError: time.sleep(1)"
    )
    hog = "d = []\nwhile True: d.append(bytearray(4 << 20))"
    python = {"image": "coterie/python:latest"}
    autonomy.apply(
        pod(
            "filler",
            {"name": "main", **python, "args": ["-c", fill], "resources": small(ephemeral_storage="5Mi", cpu="100m")},
            restartPolicy="Never",
        ),
        pod(
            "volume-filler",
            container(
                script="head -c 3000000 /dev/zero > /v/file; sleep 1000",
                volumeMounts=[{"name": "v", "mountPath": "/v"}],
            ),
            volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
            restartPolicy="Never",
        ),
        pod("bomb", {"name": "main", **python, "args": ["-c", bomb]}),
        pod(
            "hog",
            {"name": "main", **python, "args": ["-c", hog], "resources": small(memory="64Mi")},
            restartPolicy="Never",
        ),
        pod("neighbour", container(script="echo there; sleep 1000")),
    )
    hog_ended = state(autonomy.phase("hog", "Failed"))["state"]["terminated"]
    assert (hog_ended["reason"], hog_ended["message"]) == (
        "OOMKilled",
        "Container main exceeded its memory limit of 64Mi",
    )
    filler, volume = autonomy.phase("filler", "Failed"), autonomy.phase("volume-filler", "Failed")
    assert filler["status"]["reason"] == volume["status"]["reason"] == "Evicted"
    assert filler["status"]["message"] == 'Container main exceeded its local ephemeral storage limit "5Mi".'
    assert volume["status"]["message"] == 'Usage of EmptyDir volume "v" exceeds the limit "1Mi".'
    until("the bomb is named", lambda: "reached its limit of 4096 processes" in autonomy.do("events --for pod/bomb"))
    autonomy.do("delete pod bomb --grace-period=1")
    assert state(autonomy.ready("neighbour"))["restartCount"] == 0
