"""Deployments, jobs and services with real pods."""

from __future__ import annotations

import re
from typing import Any

import pytest
from e2e_kit import Cluster, container, deployment, pod, until

pytestmark = pytest.mark.xdist_group("e2e-autonomy")


def _words(cluster: Cluster, app: str) -> list[str]:
    """What the pods that run now were told to say."""
    live = [p for p in cluster.pods(f"app={app}") if "deletionTimestamp" not in p["metadata"]]
    return sorted(p["spec"]["containers"][0]["env"][0]["value"] for p in live)


def test_a_deployment_is_rolled_undone_scaled_and_paused(autonomy: Cluster) -> None:
    probe = {"exec": {"command": ["sh", "-c", 'test "$WORD" != bad']}, "periodSeconds": 1, "failureThreshold": 1}
    main = container(env=[{"name": "WORD", "value": "one"}], readinessProbe=probe)
    autonomy.apply(deployment("web", 5, main))
    assert "successfully rolled out" in autonomy.do("rollout status deployment/web --timeout=60s")
    assert re.search(r"^web\s+5/5\s+5\s+5\s", autonomy.do("get deploy web"), re.MULTILINE)
    # Rolled: never fewer than 4 of 5 available.
    autonomy.do("set env deployment/web WORD=two")
    autonomy.do("rollout status deployment/web --timeout=60s")
    until("only new pods are left", lambda: _words(autonomy, "web") == ["two"] * 5)
    # A bad template never takes the old pods away.
    autonomy.do("set env deployment/web WORD=bad")
    until("bad pods are tried", lambda: "bad" in _words(autonomy, "web"))
    assert "timed out" in autonomy.fail("rollout status deployment/web --timeout=3s")
    status = autonomy.json("get deploy web")["status"]
    assert status["availableReplicas"] >= 4
    assert _words(autonomy, "web").count("two") >= 4
    # Undone.
    autonomy.do("rollout undo deployment/web")
    autonomy.do("rollout status deployment/web --timeout=60s")
    until("the bad ones are gone", lambda: _words(autonomy, "web") == ["two"] * 5)
    revisions = [line.split()[0] for line in autonomy.do("rollout history deployment/web").splitlines()[2:] if line]
    assert revisions == ["1", "3", "4"]
    # Scaled both ways.
    for count in (7, 2):
        autonomy.do(f"scale deployment/web --replicas={count}")
        autonomy.do("rollout status deployment/web --timeout=60s")
        until(f"there are {count}", lambda count=count: len(_words(autonomy, "web")) == count)
    # Paused: a new template waits.
    autonomy.do("rollout pause deployment/web")
    autonomy.do("set env deployment/web WORD=three")
    seen = "jsonpath={.status.observedGeneration}={.metadata.generation}"
    until("the change was seen", lambda: len(set(autonomy.do(f"get deploy web -o '{seen}'").split("="))) == 1)
    assert _words(autonomy, "web") == ["two", "two"]
    autonomy.do("rollout resume deployment/web")
    autonomy.do("rollout status deployment/web --timeout=60s")
    until("the change is there", lambda: _words(autonomy, "web") == ["three", "three"])


def test_jobs(autonomy: Cluster) -> None:
    autonomy.apply(
        _job("counts", "echo part $JOB_COMPLETION_INDEX", completions=3, parallelism=2, completionMode="Indexed"),
        _job("fails", "exit 3", backoffLimit=1, policy="Never"),
    )
    autonomy.do("wait --for=condition=complete job/counts --timeout=60s")
    logs = autonomy.do("logs -l batch.kubernetes.io/job-name=counts --tail=-1")
    assert sorted(logs.splitlines()) == ["part 0", "part 1", "part 2"]
    assert autonomy.json("get job counts")["status"]["succeeded"] == 3
    autonomy.do("wait --for=condition=failed job/fails --timeout=60s")
    fails = autonomy.json("get job fails")["status"]
    assert fails["failed"] == 2
    assert {c["reason"] for c in fails["conditions"]} == {"BackoffLimitExceeded"}


def test_a_cron_job(autonomy: Cluster) -> None:
    """The clock's minute is waited for elsewhere, with a virtual clock; here one is started by hand."""
    autonomy.do("create cronjob tick --image=coterie/host:latest '--schedule=*/5 * * * *' -- echo ticked")
    autonomy.do("create job now --from=cronjob/tick")
    autonomy.do("wait --for=condition=complete job/now --timeout=60s")
    assert autonomy.do("logs job/now") == "ticked\n"
    assert re.search(r"^tick\s+\*/5 \* \* \* \*", autonomy.do("get cronjob"), re.MULTILINE)


def _job(name: str, script: str, policy: str = "OnFailure", **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": policy, "containers": [container(script=script)]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template, **spec}}


def test_endpoints_follow_readiness(autonomy: Cluster) -> None:
    probe = {"exec": {"command": ["test", "-e", "/v/well"]}, "periodSeconds": 1, "failureThreshold": 1}
    mount = [{"name": "v", "mountPath": "/v"}]
    main = container(readinessProbe=probe, volumeMounts=mount, ports=[{"containerPort": 18433}])
    autonomy.apply(
        pod("back", main, volumes=[{"name": "v", "emptyDir": {}}]),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "back"},
            "spec": {"selector": {"app": "back"}, "ports": [{"port": 80, "targetPort": 18433}]},
        },
    )
    autonomy.phase("back", "Running")

    def ready() -> list[bool]:
        found = autonomy.json("get endpointslices -l kubernetes.io/service-name=back")["items"]
        return [e["conditions"]["ready"] for slice_ in found for e in slice_.get("endpoints") or ()]

    until("the pod is listed, not ready", lambda: ready() == [False])
    autonomy.do("exec back -- touch /v/well")
    until("it is ready", lambda: ready() == [True])
    assert re.search(r"^back\s+\S+:18433", autonomy.do("get endpoints back"), re.MULTILINE)
    autonomy.do("exec back -- rm /v/well")
    until("it is not ready", lambda: ready() == [False])
    autonomy.do("delete pod back")
    until("it is not listed", lambda: ready() == [])


def _workload(kind: str, name: str, main: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A DaemonSet or StatefulSet."""
    body = deployment(name, spec.pop("replicas", 1), main, **spec)
    if kind == "DaemonSet":
        del body["spec"]["replicas"]
    return {**body, "kind": kind}


def test_a_stateful_set_keeps_names_and_files(autonomy: Cluster) -> None:
    """The files of a local-path volume outlive the pod, whoever runs in it, and go with the claim."""
    mount = [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/inside", "subPath": "inside"}]
    script = "echo $(hostname) >> /data/visits; echo x > /inside/file; sleep 1000"
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    main = container(script=script, volumeMounts=mount)
    autonomy.apply(
        _workload("StatefulSet", "db", main, replicas=2, serviceName="db", volumeClaimTemplates=[claim]),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"}, "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 80}]}},
    )  # fmt: skip
    autonomy.do("rollout status sts/db --timeout=60s")
    until("both are ready", lambda: re.search(r"^db\s+2/2", autonomy.do("get sts db"), re.MULTILINE))
    assert autonomy.do("exec db-1 -- cat /data/visits") == "db-1\n"
    assert autonomy.do("exec db-1 -- cat /data/inside/file") == "x\n"
    first = autonomy.pod("db-1")
    assert first["spec"]["hostname"] == "db-1"
    assert first["spec"]["subdomain"] == "db"
    claims = autonomy.do("get pvc")
    assert re.search(r"^data-db-1\s+Bound\s+pvc-\S+\s+1Mi\s+RWO\s+local-path", claims, re.MULTILINE)
    assert "local-path (default)" in autonomy.do("get sc")
    autonomy.do("delete pod db-1")
    until("another db-1 is ready", lambda: _replaced(autonomy, "db-1", first["metadata"]["uid"]))
    assert autonomy.do("exec db-1 -- cat /data/visits") == "db-1\ndb-1\n"
    # Another user of the same volume: files written as root stay readable, and the directory writable.
    autonomy.do("set env sts/db ROUND=2")
    autonomy.do("rollout status sts/db --timeout=60s")
    until("all are new", lambda: autonomy.do("exec db-0 -- sh -c 'echo $ROUND; wc -l < /data/visits'") == "2\n2\n")
    assert [line.split()[0] for line in autonomy.do("rollout history sts/db").splitlines()[2:] if line] == ["1", "2"]
    autonomy.do("rollout undo sts/db")
    autonomy.do("rollout status sts/db --timeout=60s")
    until("it is undone", lambda: autonomy.do("exec db-0 -- sh -c 'echo $ROUND'") == "\n")
    # Scaled down, the claim stays; deleted, the files go.
    autonomy.do("scale sts/db --replicas=1")
    until("db-1 is gone", lambda: autonomy.try_("get", "pod", "db-1").rc != 0)
    volume = autonomy.json("get pvc data-db-1")["spec"]["volumeName"]
    directory = autonomy.plane.home / "var" / "volumes" / volume
    assert (directory / "visits").exists()
    autonomy.do("delete pvc data-db-1 --timeout=30s")
    until("the volume is gone", lambda: autonomy.try_("get", "pv", volume).rc != 0)
    until("its files are gone", lambda: not directory.exists())
    kept = autonomy.plane.home / "var" / "volumes" / autonomy.json("get pvc data-db-0")["spec"]["volumeName"]
    assert kept.exists()


def test_a_pod_with_an_ephemeral_volume_and_a_runtime_class(autonomy: Cluster) -> None:
    """The claim of the volume is made for the pod and goes with it; of the runtimes only ours runs it."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    main = container(
        script="echo here > /scratch/file; sleep 1000", volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}]
    )
    for name, handler in (("ours", "runp"), ("theirs", "kata")):
        autonomy.apply(
            {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler}
        )
    autonomy.apply(pod("brief", main, volumes=[volume], runtimeClassName="ours"))
    autonomy.phase("brief", "Running")
    until("it wrote", lambda: autonomy.try_("exec", "brief", "--", "cat", "/scratch/file").out == "here\n")
    claim = autonomy.json("get pvc brief-scratch")
    assert claim["metadata"]["ownerReferences"][0]["name"] == "brief"
    directory = autonomy.plane.home / "var" / "volumes" / claim["spec"]["volumeName"]
    assert (directory / "file").read_text() == "here\n"
    autonomy.do("delete pod brief --grace-period=1")
    until("the claim is gone", lambda: autonomy.try_("get", "pvc", "brief-scratch").rc != 0)
    until("its files are gone", lambda: not directory.exists())
    autonomy.apply(pod("other", container(script="sleep 1000"), runtimeClassName="theirs"))
    failed = autonomy.phase("other", "Failed")
    assert 'the handler "kata" of RuntimeClass "theirs" is not available' in failed["status"]["message"]
    autonomy.do("delete pod other")
    autonomy.do("delete runtimeclass ours theirs")
    # A class of ours that no node has: the pod waits, and says for what.
    autonomy.apply(pod("waits", container(script="sleep 1000"), runtimeClassName="kata"))
    until("it says why", lambda: "no runtime handler" in autonomy.do("get pod waits -o jsonpath={.status.conditions}"))
    autonomy.do("delete pod waits")
    has = autonomy.do("get nodes -o jsonpath={.items[0].status.runtimeHandlers[*].name}").split()
    assert has[0] == "runp" and "kata" not in has
    if "bubblewrap" in has:
        autonomy.apply(pod("walled", container(script="sleep 1000"), runtimeClassName="bubblewrap"))
        autonomy.phase("walled", "Running")
        inside = autonomy.do("exec walled -- sh -c 'id -u; grep CapBnd /proc/self/status; cat /proc/net/fib_trie'")
        assert inside.split()[:3] == ["65534", "CapBnd:", "0" * 16]
        assert autonomy.json("get pod walled")["status"]["podIP"] in inside, "it has the pod's network"
        autonomy.do("delete pod walled --grace-period=1")


def _replaced(cluster: Cluster, name: str, uid: str) -> bool:
    found = cluster.try_("get", "pod", name, "-o", "jsonpath={.metadata.uid} {.status.containerStatuses[0].ready}").out
    return found.endswith(" true") and not found.startswith(uid)


def test_a_daemon_set_runs_on_the_node_even_when_it_is_cordoned(autonomy: Cluster) -> None:
    autonomy.do("cordon node-a")
    try:
        autonomy.apply(_workload("DaemonSet", "ds", container(env=[{"name": "WORD", "value": "one"}])))
        assert "successfully rolled out" in autonomy.do("rollout status ds/ds --timeout=60s")
        assert re.search(r"^ds\s+1\s+1\s+1\s+1\s+1\s", autonomy.do("get ds ds"), re.MULTILINE)
        (only,) = autonomy.pods("app=ds")
        assert only["spec"]["nodeName"] == "node-a"
        # A drain leaves it where it is.
        selector = f"--pod-selector=app=ds --timeout=20s -n {autonomy.namespace}"
        assert "cannot delete DaemonSet-managed Pods" in autonomy.fail(f"drain node-a {selector}")
        autonomy.do(f"drain node-a --ignore-daemonsets {selector}")
        assert autonomy.pods("app=ds")[0]["metadata"]["uid"] == only["metadata"]["uid"]
        autonomy.do("set env ds/ds WORD=two")
        autonomy.do("rollout status ds/ds --timeout=60s")
        assert _words(autonomy, "ds") == ["two"]
        autonomy.do("rollout undo ds/ds")
        autonomy.do("rollout status ds/ds --timeout=60s")
        until("it is undone", lambda: _words(autonomy, "ds") == ["one"])
        revisions = [line.split()[0] for line in autonomy.do("rollout history ds/ds").splitlines()[2:] if line]
        assert revisions == ["2", "3"]
        autonomy.do("delete ds ds --timeout=30s")
        until("its pods are gone", lambda: autonomy.pods("app=ds") == [])
        until("its history is gone", lambda: autonomy.json("get controllerrevisions")["items"] == [])
    finally:
        autonomy.do("uncordon node-a")


def test_a_replication_controller_heals(autonomy: Cluster) -> None:
    template = deployment("rc", 1)["spec"]["template"]
    autonomy.apply(
        {"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "rc"}, "spec": {"replicas": 2, "template": template}}
    )  # fmt: skip
    until("two run", lambda: re.search(r"^rc\s+2\s+2\s+2\s", autonomy.do("get rc rc"), re.MULTILINE))
    gone = autonomy.pods("app=rc")[0]["metadata"]["name"]
    autonomy.do(f"delete pod {gone}")
    until("two run again", lambda: re.search(r"^rc\s+2\s+2\s+2\s", autonomy.do("get rc rc"), re.MULTILINE))
    assert gone not in [p["metadata"]["name"] for p in autonomy.pods("app=rc")]
    autonomy.do("scale rc/rc --replicas=1")
    until("one runs", lambda: len(_alive(autonomy, "rc")) == 1)


def _alive(cluster: Cluster, app: str) -> list[dict[str, Any]]:
    return [p for p in cluster.pods(f"app={app}") if "deletionTimestamp" not in p["metadata"]]
