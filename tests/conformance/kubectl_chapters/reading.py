"""get in every form, watches, describe, events and wait."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from kubectl_steps import Act, Chapter, Command, Meanwhile, Scene

_OBJECTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: cm1, labels: {app: x, tier: front}}
data: {a: "1", b: "2"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cm2, labels: {app: z}}
data: {a: "9"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cm3}
data: {a: "5"}
---
apiVersion: v1
kind: Pod
metadata: {name: p1, labels: {app: x}}
spec: {containers: [{name: c, image: "busybox:1"}], nodeName: quiet-1}
---
apiVersion: v1
kind: Pod
metadata: {name: p2, labels: {app: z}}
spec: {containers: [{name: c, image: "busybox:1"}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: nginx}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
"""


def _create_cm(name: str) -> Callable[[Scene, re.Match[str]], None]:
    def act(scene: Scene, _: re.Match[str]) -> None:
        path = f"/api/v1/namespaces/{scene.namespace}/configmaps"
        scene.server.api("POST", path, {"metadata": {"name": name, "labels": {"made": "late"}}})

    return act


def _delete_cm(name: str) -> Callable[[Scene, re.Match[str]], None]:
    def act(scene: Scene, _: re.Match[str]) -> None:
        scene.server.api("DELETE", f"/api/v1/namespaces/{scene.namespace}/configmaps/{name}")

    return act


def _touch_cm(name: str) -> Callable[[Scene, re.Match[str]], None]:
    def act(scene: Scene, _: re.Match[str]) -> None:
        # Such a watch shows nothing when it begins, so change the object until it must have begun.
        for number in range(12):
            change = {"data": {"touched": str(number)}}
            path = f"/api/v1/namespaces/{scene.namespace}/configmaps/{name}"
            scene.server.api("PATCH", path, change, "application/merge-patch+json")
            time.sleep(0.1)

    return act


def _run_pod(scene: Scene) -> None:
    status = {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "c", "ready": True, "restartCount": 2, "image": "busybox:1", "imageID": "",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
        ],
    }  # fmt: skip
    path = f"/api/v1/namespaces/{scene.namespace}/pods/p1/status"
    scene.server.api("PATCH", path, {"status": status}, "application/merge-patch+json")


GET = Chapter(
    "get",
    (
        Command("create", "create -f objects.yaml", out=("configmap/cm1 created", "service/web created")),
        Act("run the pod", _run_pod),
        Command("table", "get cm", out=(r"^NAME\s+DATA\s+AGE", r"^cm1\s+2\s+\d+s")),
        Command("one", "get cm cm1", out=r"^cm1\s+2\s", absent="cm2"),
        Command("two by name", "get cm/cm1 cm/cm2", out=(r"cm1\s+2", r"cm2\s+1")),
        Command("pods", "get pods", out=(r"^p1\s+1/1\s+Running\s+2", r"^p2\s+0/1\s+Pending\s+0")),
        Command("wide", "get pods -o wide", out=(r"NOMINATED NODE\s+READINESS GATES", r"^p1\s+.*10\.0\.0\.7\s+quiet-1")),
        Command("yaml", "get cm cm1 -o yaml", out=(r"^kind: ConfigMap", r"^  a: \"1\"")),
        Command("yaml is short", "get cm cm1 -o yaml", absent="managedFields", since="1.21"),
        Command("json", "get cm cm1 -o json", check=lambda c: c["data"]["b"] == "2"),
        Command("list json", "get cm -o json", check=lambda c: c["kind"] == "List" and len(c["items"]) >= 3),
        Command("name", "get cm -o name", out=r"^configmap/cm1$"),
        Command("jsonpath", "get cm cm1 -o 'jsonpath={.data.a}-{.metadata.labels.tier}'", out=r"\A1-front\Z"),
        Command("jsonpath range", "get cm -l app -o 'jsonpath={range .items[*]}{.metadata.name}={.data.a}{\" \"}{end}'", out=r"\Acm1=1 cm2=9 \Z"),
        Command("jsonpath file", "get cm cm1 -o jsonpath-file=path.txt", out=r"\Acm1\Z"),
        Command("jsonpath as json", "get cm cm1 -o 'jsonpath-as-json={.data}'", check=lambda d: d == [{"a": "1", "b": "2"}]),
        Command("custom columns", "get cm cm1 -o custom-columns=N:.metadata.name,A:.data.a,Z:.data.z", out=(r"^N\s+A\s+Z", r"^cm1\s+1\s+<none>")),
        Command("custom columns file", "get cm cm1 -o custom-columns-file=columns.txt", out=r"^cm1\s+1"),
        Command("go template", "get cm cm1 -o 'go-template={{.metadata.name}} {{index .data \"b\"}}'", out=r"\Acm1 2\Z"),
        Command("go template file", "get cm cm1 -o go-template-file=one.tmpl", out=r"\Aname cm1\n\Z"),
        Command("all namespaces", "get cm -A", out=(r"^NAMESPACE\s+NAME", r"^t-get\s+cm1")),
        Command("label equals", "get cm -l app=x", out="cm1", absent="cm2|cm3"),
        Command("label differs", "get cm -l app!=x -o name", out=("cm2", "cm3"), absent="cm1"),
        Command("label sets", "get cm -l 'app in (x,z),tier' -o name", out="cm1", absent="cm2"),
        Command("label notin", "get cm -l 'app,app notin (x)' -o name", out="cm2", absent="cm1|cm3"),
        Command("label absent", "get cm -l '!app' -o name", out="cm3", absent="cm1"),
        Command("field name", "get cm --field-selector=metadata.name=cm2 -o name", out=r"\Aconfigmap/cm2\n\Z"),
        Command("field phase", "get pods --field-selector=status.phase=Running -o name", out=r"\Apod/p1\n\Z"),
        Command("field node", "get pods --field-selector=spec.nodeName!=quiet-1 -o name", out=r"\Apod/p2\npod/web-\w+-\w+\n\Z"),
        Command("sort by name", "get cm -l app --sort-by=.metadata.name --no-headers", out=r"\Acm1.*\ncm2"),
        Command("sort by data", "get cm --sort-by=.data.a -l 'app' -o name", out=r"\Aconfigmap/cm1\nconfigmap/cm2"),
        Command("show labels", "get cm cm1 --show-labels", out=r"app=x,tier=front"),
        Command("label columns", "get cm -L app,tier", out=(r"APP\s+TIER", r"^cm1\s.*x\s+front")),
        Command("chunks", "get cm --chunk-size=1 -o name", out=("cm1", "cm2", "cm3")),
        Command("table chunks", "get cm -A --chunk-size=2", out=(r"\scm1\s", r"\scm3\s")),
        Command("no headers", "get cm cm1 --no-headers", absent="NAME", out="^cm1"),
        Command("several kinds", "get cm,svc,deploy", out=(r"^configmap/cm1\s", r"^service/web\s+ClusterIP", r"^deployment.apps/web\s+0/1")),
        Command("all", "get all", out=("pod/p1", "service/web", "deployment.apps/web"), absent="configmap"),
        Command("from file", "get -f objects.yaml -o name", out=("configmap/cm3", "deployment.apps/web")),
        Command("managed fields", "get cm cm1 --show-managed-fields -o json", since="1.21", check=lambda c: c["metadata"]["managedFields"][0]["manager"] == "kubectl-create"),
        Command("subresource status", "get pod p1 --subresource=status -o json", since="1.24", check=lambda p: p["status"]["phase"] == "Running"),
        Command("subresource scale", "get deploy web --subresource=scale -o json", since="1.24", check=lambda s: s["kind"] == "Scale" and s["spec"]["replicas"] == 1),
        Command("ignore not found", "get cm nope --ignore-not-found", out=r"\A\Z"),
        Command("nothing", "get jobs", err="No resources found in t-get namespace"),
        Command("raw", "get --raw /api/v1/namespaces/{ns}/configmaps/cm1", check=lambda c: c["data"]["a"] == "1"),
        Command("server print off", "get cm cm1 --server-print=false", out=r"^cm1\s+\d+s"),
        Command("watch", "get cm -w", meanwhile=Meanwhile(r"^cm3\s", _create_cm("late1"), r"^late1\s+0")),
        Command("watch output", "get cm -w -o name", meanwhile=Meanwhile(r"^configmap/cm3", _create_cm("late2"), r"^configmap/late2")),
        Command("watch only", "get cm --watch-only -l app=z", meanwhile=Meanwhile("", _touch_cm("cm2"), r"^cm2\s")),
        Command("watch events", "get cm late1 -w --output-watch-events", meanwhile=Meanwhile(r"^ADDED\s+late1", _delete_cm("late1"), r"^DELETED\s+late1")),
        Command("watch one", "get pod p1 -w -o 'jsonpath={.status.phase}{\"\\n\"}'", meanwhile=Meanwhile("^Running$", lambda scene, _: scene.server.api("PATCH", f"/api/v1/namespaces/{scene.namespace}/pods/p1/status", {"status": {"phase": "Succeeded"}}, "application/merge-patch+json"), "^Succeeded$")),
    ),
    files={
        "objects.yaml": _OBJECTS,
        "path.txt": "{.metadata.name}",
        "columns.txt": "NAME          A\n.metadata.name .data.a\n",
        "one.tmpl": "name {{.metadata.name}}\n",
    },
)  # fmt: skip


def _event(scene: Scene) -> None:
    base = f"/api/v1/namespaces/{scene.namespace}"
    pod = scene.server.api("GET", f"{base}/pods/p1")["metadata"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p1", "namespace": scene.namespace, "uid": pod["uid"]}
    event = {
        "metadata": {"name": "p1.1"},
        "involvedObject": reference,
        "reason": "Scheduled",
        "message": "put on the node",
        "type": "Normal",
        "count": 1,
        "source": {"component": "tester"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    scene.server.api("POST", f"{base}/events", event)
    warning = {**event, "metadata": {"name": "p1.2"}, "type": "Warning", "reason": "Slow", "message": "it takes long"}
    scene.server.api("POST", f"{base}/events", warning)


DESCRIBE = Chapter(
    "describe",
    (
        Command("create", "create -f objects.yaml", out="pod/p1 created"),
        Act("write events", _event),
        Command("pod", "describe pod p1", out=(r"^Name: +p1", r"^Node: +quiet-1", r"Normal\s+Scheduled.*put on the node")),
        Command("pod without events", "describe pod p1 --show-events=false", absent="put on the node", out="^Name: +p1"),
        Command("pods by label", "describe pods -l app=z", out=r"^Name: +p2"),
        Command("deployment", "describe deploy web", out=(r"^Selector: +app=web", r"^Replicas: +1 desired", r"Image: +nginx")),
        Command("service", "describe svc web", out=(r"^Type: +ClusterIP", r"^Port: +<unset> +80/TCP")),
        Command("configmap", "describe cm cm1", out=(r"^Data$", r"^a:\n----\n1")),
        Command("namespace", "describe ns {ns}", out=(r"^Status: +Active", "resource quota")),
        Command("secret", "create secret generic hidden --from-literal=word=xyzzy", out="created"),
        Command("describe secret", "describe secret hidden", out=r"word: +5 bytes", absent="xyzzy"),
        Command("quota", "create quota tight --hard=configmaps=10", out="created"),
        Command("quota counted", "wait --for=jsonpath='{.status.hard.configmaps}'=10 quota/tight --timeout=20s", out="condition met", since="1.23"),
        Command("describe quota", "describe quota tight", out=r"configmaps\s+\S+\s+10"),
        Command("serviceaccount", "create sa me", out="created"),
        Command("describe serviceaccount", "describe sa me", out=r"^Name: +me"),
        Command("clusterrole", "describe clusterrole view", out=r"configmaps\s+\[\]\s+\[\]\s+\[get list watch\]"),
        Command("crd", "describe crd kusciajobs.kuscia.secretflow", out=(r"^Kind: +CustomResourceDefinition", r"Kind: +KusciaJob")),
        Command("by prefix", "describe cm cm", out=(r"^Name: +cm1", r"^Name: +cm3")),
        Command("missing", "describe pod nope", rc=1, err=r'pods "nope" not found'),
        Command("events", "events", out=r"Warning\s+Slow\s+Pod/p1\s+it takes long", since="1.26"),
        Command("events for", "events --for pod/p1 --types=Warning", out="Slow", absent="Scheduled", since="1.26"),
        Command("events json", "events --for pod/p1 -o json", check=lambda e: len(e["items"]) == 2, since="1.26"),
        Command("get events", "get events", out=(r"^LAST SEEN\s+TYPE\s+REASON\s+OBJECT\s+MESSAGE", r"Normal\s+Scheduled\s+pod/p1\s+put on the node")),
        Command("get events sorted", "get events --sort-by=.reason -o name", out=r"event/p1\.1\nevent/p1\.2"),
        Command("get events by field", "get events --field-selector=involvedObject.name=p1,type=Warning -o name", out=r"\Aevent/p1\.2\n\Z"),
        Command("events of the new group", "get events.events.k8s.io p1.1 -o json", check=lambda e: e["note"] == "put on the node" and e["regarding"]["name"] == "p1"),
    ),
    files={"objects.yaml": _OBJECTS},
)  # fmt: skip

WAIT = Chapter(
    "wait",
    (
        Command("create", "create -f objects.yaml", out="pod/p1 created"),
        Act("run the pod", _run_pod),
        Command("condition", "wait --for=condition=Ready pod/p1 --timeout=10s", out="pod/p1 condition met"),
        Command("condition value", "wait --for=condition=Ready=true pods -l app=x --timeout=10s", out="condition met"),
        Command("condition missing", "wait --for=condition=Ready pod/p2 --timeout=1s", rc=1, err="timed out waiting"),
        Command("jsonpath", "wait '--for=jsonpath={.status.phase}=Running' pod/p1 --timeout=10s", out="condition met", since="1.23"),
        Command("jsonpath any value", "wait '--for=jsonpath={.status.podIP}' pod/p1 --timeout=10s", out="condition met", since="1.31"),
        Command("delete of nothing", "wait --for=delete pod/gone --timeout=5s", since="1.21"),
        Command("delete without waiting", "delete cm cm3 --wait=false", out="deleted"),
        Command("delete", "wait --for=delete cm/cm3 --timeout=10s", since="1.21"),
        Command("create of something", "wait --for=create cm/cm1 --timeout=5s", out="condition met", since="1.31"),
        Command("create never", "wait --for=create cm/never --timeout=1s", rc=1, err="timed out|not found", since="1.31"),
    ),
    files={"objects.yaml": _OBJECTS},
)  # fmt: skip
