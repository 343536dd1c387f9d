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
