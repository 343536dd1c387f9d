"""StatefulSets, DaemonSets, ReplicationControllers and their volumes: rollout, scale, tables. The test stands in for agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kubectl_steps import Act, Chapter, Command, Scene
from server_process import ApiFailed

_MERGE = "application/merge-patch+json"
_READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def _run_until(plural: str, name: str, done: Callable[[dict[str, Any]], bool]) -> Callable[[Scene], None]:
    """What agents would do: pods of the app run and are ready, and those that are deleted go, until it is done."""

    def act(scene: Scene) -> None:
        group = "/api/v1" if plural == "replicationcontrollers" else "/apis/apps/v1"
        path = f"{group}/namespaces/{scene.namespace}/{plural}/{name}"
        deadline = time.monotonic() + 30
        while not done(found := scene.server.api("GET", path)):
            assert time.monotonic() < deadline, f"{plural} {name} is not done: {found.get('status')}"
            _run_pods(scene, name)
            time.sleep(0.05)

    return act


def _run_pods(scene: Scene, app: str) -> None:
    pods = f"/api/v1/namespaces/{scene.namespace}/pods"
    for pod in scene.server.api("GET", f"{pods}?labelSelector=app%3D{app}")["items"]:
        path = f"{pods}/{pod['metadata']['name']}"
        try:
            if pod["metadata"].get("deletionTimestamp"):
                scene.server.api("DELETE", f"{path}?gracePeriodSeconds=0")
            elif pod["status"]["phase"] != "Running" and (pod["spec"].get("nodeName") or app != "agent"):
                status = {"status": {"phase": "Running", "conditions": [_READY]}}
                scene.server.api("PATCH", f"{path}/status", status, _MERGE)
        except ApiFailed as failed:
            if failed.status != 404:  # the controller was quicker
                raise


def _seen(obj: dict[str, Any]) -> bool:
    return bool(obj.get("status", {}).get("observedGeneration") == obj["metadata"]["generation"])


def _stateful(obj: dict[str, Any]) -> bool:
    status = obj.get("status", {})
    return (
        _seen(obj)
        and status.get("currentRevision") == status.get("updateRevision")
        and status.get("availableReplicas") == status.get("replicas") == obj["spec"]["replicas"]
    )


def _partitioned(obj: dict[str, Any]) -> bool:
    status = obj.get("status", {})
    return _seen(obj) and status.get("updatedReplicas") == 1 and status.get("availableReplicas") == 2


def _daemons(obj: dict[str, Any]) -> bool:
    status = obj.get("status", {})
    return _seen(obj) and status.get("updatedNumberScheduled") == status.get("numberAvailable") == 1


def _replicas(obj: dict[str, Any]) -> bool:
    return bool(_seen(obj) and obj["status"].get("readyReplicas") == obj["spec"]["replicas"])


def _image(kind: str, name: str, image: str) -> Command:
    return Command(
        f"{kind} has {image}",
        f"get {kind} {name} -o 'jsonpath={{.spec.template.spec.containers[0].image}}'",
        out=rf"\A{image}\Z",
    )


SETS = Chapter(
    "sets",
    (
        # StatefulSet.
        Command("statefulset", "apply -f db.yaml", out="statefulset.apps/db created"),
        Command("statefulset waits", "rollout status sts/db --timeout=1s", rc=1, out="Waiting for"),
        Act("its pods run", _run_until("statefulsets", "db", _stateful)),
        Command("statefulset status", "rollout status sts/db --timeout=20s", out="(rolling update|roll out) complete"),
        Command("statefulset row", "get sts db -o wide", out=r"^db\s+2/2\s+\S+\s+c\s+x:1"),
        Command("stable names", "get pods -l app=db -o name", out=(r"^pod/db-0$", r"^pod/db-1$")),
        Command(
            "identity",
            "get pod db-1 -o json",
            check=lambda p: (
                p["spec"]["hostname"] == "db-1"
                and p["spec"]["subdomain"] == "db"
                and p["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "db-1"
                and p["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
            ),
        ),
        Command("claims", "get pvc", out=(r"^data-db-0\s+Pending\s+local-path", r"^data-db-1\s+Pending\s+local-path")),
        Command(
            "describe claim",
            "describe pvc data-db-0",
            out=("StorageClass: +local-path", r"Finalizers: +\[kubernetes.io/pvc-protection\]", "Used By: +db-0"),
        ),
        Command(
            "describe statefulset",
            "describe sts db",
            out=("Replicas: +2 desired", "create Pod db-0 in StatefulSet db successful"),
        ),
        Command("statefulset image", "set image sts/db c=x:2", out="image updated"),
        Act("revision 2 runs", _run_until("statefulsets", "db", _stateful)),
        Command("statefulset history", "rollout history sts/db", out=(r"^1\s+<none>", r"^2\s+<none>")),
        Command("statefulset history revision", "rollout history sts/db --revision=1", out="Image:.*x:1"),
        Command("statefulset undo", "rollout undo sts/db", out="rolled back"),
        _image("sts", "db", "x:1"),
        Act("revision 3 runs", _run_until("statefulsets", "db", _stateful)),
        Command(
            "an old revision is new again",
            "rollout history sts/db",
            out=(r"^2\s+<none>", r"^3\s+<none>"),
            absent=r"^1\s",
        ),
        Command("statefulset undo to", "rollout undo sts/db --to-revision=2", out="rolled back"),
        Act("revision 4 runs", _run_until("statefulsets", "db", _stateful)),
        _image("sts", "db", "x:2"),
        Command(
            "statefulset undo missing",
            "rollout undo sts/db --to-revision=77",
            rc=1,
            err="unable to find specified revision",
        ),
        Command(
            "partition",
            'patch sts db -p \'{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}}}}\'',
            out="patched",
        ),
        Command("partitioned image", "set image sts/db c=x:3", out="image updated"),
        Act("one of two is new", _run_until("statefulsets", "db", _partitioned)),
        Command(
            "partitioned status", "rollout status sts/db --timeout=20s", out="partitioned roll out complete: 1 new pods"
        ),
        Command("statefulset restart", "rollout restart sts/db", out="restarted"),
        Command("statefulset scale", "scale sts/db --replicas=1", out="scaled"),
        Act("one is left", _run_until("statefulsets", "db", lambda s: _seen(s) and s["status"].get("replicas") == 1)),
        Command("claims stay", "get pvc -o name", out=(r"data-db-0$", r"data-db-1$")),
        Command("revisions", "get controllerrevisions", out=r"^db-\S+\s+statefulset.apps/db\s+\d"),
        Command(
            "revision count",
            "get controllerrevisions -o json",
            check=lambda r: all(i["data"]["spec"]["template"]["$patch"] == "replace" for i in r["items"]),
        ),
        # DaemonSet.
        Command("daemonset", "apply -f agent.yaml", out="daemonset.apps/agent created"),
        Act("its pod runs", _run_until("daemonsets", "agent", _daemons)),
        Command(
            "daemonset status",
            "rollout status ds/agent --timeout=20s",
            out='daemon set "agent" successfully rolled out',
        ),
        Command("daemonset row", "get ds agent", out=r"^agent\s+1\s+1\s+1\s+1\s+1\s+<none>"),
        Command(
            "bound by name",
            "get pods -l app=agent -o json",
            check=lambda r: r["items"][0]["spec"]["nodeName"] == "quiet-1",
        ),
        Command("daemonset image", "set image ds/agent c=x:2", out="image updated"),
        Act("the next one runs", _run_until("daemonsets", "agent", _daemons)),
        Command("daemonset history", "rollout history ds/agent", out=(r"^1\s+<none>", r"^2\s+<none>")),
        Command("daemonset history revision", "rollout history ds/agent --revision=2", out="Image:.*x:2"),
        Command("daemonset undo", "rollout undo ds/agent", out="rolled back"),
        Act("the first one runs again", _run_until("daemonsets", "agent", _daemons)),
        _image("ds", "agent", "x:1"),
        Command("daemonset restart", "rollout restart ds/agent", out="restarted"),
        Act("it is restarted", _run_until("daemonsets", "agent", _daemons)),
        Command(
            "describe daemonset",
            "describe ds agent",
            out=(
                "Desired Number of Nodes Scheduled: 1",
                "Number of Nodes Scheduled with Up-to-date Pods: 1",
                "SuccessfulCreate",
            ),
        ),
        # ReplicationController.
        Command("replicationcontroller", "apply -f rc.yaml", out="replicationcontroller/rc created"),
        Act("its pods run", _run_until("replicationcontrollers", "rc", _replicas)),
        Command("replicationcontroller row", "get rc rc -o wide", out=r"^rc\s+2\s+2\s+2\s+\S+\s+c\s+x:1\s+app=rc"),
        Command("replicationcontroller scale", "scale rc/rc --replicas=3", out="scaled"),
        Act("three run", _run_until("replicationcontrollers", "rc", _replicas)),
        Command(
            "describe replicationcontroller",
            "describe rc rc",
            out=("Replicas: +3 current / 3 desired", "SuccessfulCreate"),
        ),
        # Volumes.
        Command(
            "the default class",
            "get sc",
            out=r"^local-path \(default\)\s+coterie.io/local-path\s+Delete\s+WaitForFirstConsumer\s+false",
        ),
        Command("a static claim", "apply -f claim.yaml", out="persistentvolumeclaim/static created"),
        Command("it waits", "get pvc static", out=r"^static\s+Pending"),
        Act("its volume comes", lambda scene: scene.server.api("POST", "/api/v1/persistentvolumes", _volume(scene))),
        Command(
            "it is bound",
            "wait --for=jsonpath={.status.phase}=Bound pvc/static --timeout=10s",
            out="condition met",
            since="1.23",
        ),
        Command("claim row", "get pvc static", out=r"^static\s+Bound\s+vol-\S+\s+2Gi\s+RWO"),
        Command("volume row", "get pv vol-{ns}", out=r"^vol-\S+\s+2Gi\s+RWO\s+Retain\s+Bound\s+\S+/static"),
        Command(
            "describe volume",
            "describe pv vol-{ns}",
            out=("Status: +Bound", "Reclaim Policy: +Retain", r"Finalizers: +\[kubernetes.io/pv-protection\]"),
        ),
        Command(
            "claim cannot grow",
            'patch pvc static -p \'{"spec":{"resources":{"requests":{"storage":"5Gi"}}}}\'',
            rc=1,
            err="the storageclass that provisions the pvc must support resize",
        ),
        Command("claim deleted", "delete pvc static --timeout=10s", out="deleted"),
        Command(
            "it is released",
            "wait --for=jsonpath={.status.phase}=Released pv/vol-{ns} --timeout=10s",
            out="condition met",
            since="1.23",
        ),
        Command("volume deleted", "delete pv vol-{ns} --timeout=10s", out="deleted"),
        # All of it goes.
        Command(
            "sets deleted",
            "delete sts/db ds/agent rc/rc --wait=false",
            out=('statefulset.apps "db"', 'daemonset.apps "agent"', 'replicationcontroller "rc"'),
        ),
        Act("the collector works", lambda scene: _gone(scene)),
    ),
    files={
        "db.yaml": """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: 'x:1'}]}}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
""",
        "agent.yaml": """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers: [{name: c, image: 'x:1'}]
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [quiet-1]}]}]
      tolerations: [{key: example.com/by-name-only, operator: Exists}]
""",
        "rc.yaml": """
apiVersion: v1
kind: ReplicationController
metadata: {name: rc}
spec:
  replicas: 2
  template: {metadata: {labels: {app: rc}}, spec: {containers: [{name: c, image: 'x:1'}]}}
""",
        "claim.yaml": """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: static}
spec: {storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, selector: {matchLabels: {own: 'yes'}}}
""",
    },
)


def _volume(scene: Scene) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "hostPath": {"path": "/data"}}
    return {"metadata": {"name": f"vol-{scene.namespace}", "labels": {"own": "yes"}}, "spec": spec}


def _gone(scene: Scene) -> None:
    deadline = time.monotonic() + 30
    for plural in ("/api/v1/namespaces/{}/pods", "/apis/apps/v1/namespaces/{}/controllerrevisions"):
        while scene.server.api("GET", plural.format(scene.namespace))["items"]:
            assert time.monotonic() < deadline, plural
            for app in ("db", "agent", "rc"):
                _run_pods(scene, app)
            time.sleep(0.1)
