"""delete in all its forms: propagation to dependents, finalizers, grace, whole namespaces."""

from __future__ import annotations

import time
from collections.abc import Callable

from kubectl_steps import Act, Chapter, Command, Scene
from server_process import ApiFailed

_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: gone}}\nspec: {nodeName: quiet-1, containers: [{name: c, image: x}]}\n"


def _family(name: str) -> Callable[[Scene], None]:
    """A config map that owns another one, as a controller would make it."""

    def make(scene: Scene) -> None:
        path = f"/api/v1/namespaces/{scene.namespace}/configmaps"
        parent = scene.server.api("POST", path, {"metadata": {"name": name}})["metadata"]
        owner = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": name,
            "uid": parent["uid"],
            "blockOwnerDeletion": True,
        }
        scene.server.api("POST", path, {"metadata": {"name": f"{name}-child", "ownerReferences": [owner]}})

    return make


def _gone(*names: str) -> Callable[[Scene], None]:
    """Garbage is collected behind the command's back, so give it a moment."""

    def check(scene: Scene) -> None:
        for name in names:
            deadline = time.monotonic() + 15
            while _exists(scene, name):
                assert time.monotonic() < deadline, f"configmap {name} was not collected"
                time.sleep(0.05)

    return check


def _exists(scene: Scene, name: str) -> bool:
    try:
        scene.server.api("GET", f"/api/v1/namespaces/{scene.namespace}/configmaps/{name}")
    except ApiFailed as failed:
        if failed.status == 404:
            return False
        raise
    return True


DELETE = Chapter(
    "delete",
    (
        Command("create", "create -f objects.yaml", out="pod/p4 created"),
        Act("a family", _family("back")),
        Command("background", "delete cm back --cascade=background", out='configmap "back" deleted'),
        Act("collected", _gone("back-child")),
        Act("a family", _family("fore")),
        Command("foreground", "delete cm fore --cascade=foreground", out='configmap "fore" deleted'),
        Command("foreground took the child first", "get cm fore-child", rc=1, err="NotFound"),
        Act("a family", _family("orphan")),
        Command("orphan", "delete cm orphan --cascade=orphan", out='configmap "orphan" deleted'),
        Command("orphan lives", "get cm orphan-child -o json", check=lambda c: "ownerReferences" not in c["metadata"]),
        Command("one", "delete cm a1", out='configmap "a1" deleted'),
        Command("one again", "delete cm a1", rc=1, err="NotFound"),
        Command("ignore not found", "delete cm a1 --ignore-not-found"),
        Command("by label", "delete cm -l kind=b", out=('"b1" deleted', '"b2" deleted'), absent="c1"),
        Command("by file", "delete -f c1.yaml", out='configmap "c1" deleted'),
        Command("dry run", "delete cm held --dry-run=server", out=r"deleted.*\(server dry run\)"),
        Command("without waiting", "delete cm held --wait=false", out='"held" deleted'),
        Command("held by its finalizer", "get cm held -o json", check=lambda c: c["metadata"]["deletionTimestamp"] and c["metadata"]["finalizers"]),
        Command("let go", "patch cm held --type=merge -p '{\"metadata\":{\"finalizers\":null}}'", out="patched"),
        Command("gone", "get cm held", rc=1, err="NotFound"),
        Command("pod grace", "delete pod p1 --grace-period=7 --wait=false", out='pod "p1" deleted'),
        Command("pod ends", "get pod p1 -o json", check=lambda p: p["metadata"]["deletionGracePeriodSeconds"] == 7),
        Command("pod column", "get pod p1", out=r"^p1\s+0/1\s+Terminating"),
        Command("pod now", "delete pod p2 --now --wait=false", out="deleted"),
        Command("pod now grace", "get pod p2 -o json", check=lambda p: p["metadata"]["deletionGracePeriodSeconds"] == 1),
        Command("pod force", "delete pod p1 p2 p3 --force --grace-period=0", out=("p1", "p3"), err="Immediate deletion does not wait"),
        Command("pods gone", "get pods -l app=gone -o name", absent="p[123]$"),
        Command("pod unscheduled", "delete pod p4", out="deleted"),
        Command("raw", "delete --raw /api/v1/namespaces/{ns}/configmaps/d1", out="Success"),
        Command("several kinds", "delete cm,secret -l kind=e", out=("e1", "e2")),
        Command("all", "delete cm --all", out="deleted"),
        Command("all gone", "get cm -o name", absent="configmap/[a-jl-z]"),
    ),
    files={
        "objects.yaml": "\n---\n".join(
            [f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {n}, labels: {{kind: {n[0]}}}}}\n" for n in ("a1", "b1", "b2", "c1", "d1", "e1")]
            + ["apiVersion: v1\nkind: Secret\nmetadata: {name: e2, labels: {kind: e}}\n"]
            + ["apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n"]
            + [_POD % name for name in ("p1", "p2", "p3")]
            + [(_POD % "p4").replace("nodeName: quiet-1, ", "")]
        ),
        "c1.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c1}\n",
    },
)  # fmt: skip

NAMESPACES = Chapter(
    "namespaces",
    (
        Command("create", "create ns doomed", out="created"),
        Command("fill", "create cm inside -n doomed --from-literal=a=1", out="created"),
        Command("fill with a custom object", "apply -n doomed -f data.yaml", out="created"),
        Command("service account", "get sa default -n doomed --ignore-not-found"),
        Command("hold", "create -n doomed -f held.yaml", out="created"),
        Command("delete without waiting", "delete ns doomed --wait=false", out='namespace "doomed" deleted'),
        Command("terminating", "get ns doomed", out=r"^doomed\s+Terminating"),
        Command("no new content", "create cm late -n doomed", rc=1, err="because it is being terminated"),
        Command("let go", "patch cm held -n doomed --type=merge -p '{\"metadata\":{\"finalizers\":null}}'", out="patched"),
        Command("wait", "wait --for=delete ns/doomed --timeout=20s", since="1.21"),
        Command("gone", "get ns doomed", rc=1, err="NotFound", since="1.21"),
        Command("create again", "create ns doomed2", out="created"),
        Command("delete and wait", "delete ns doomed2 --timeout=20s", out='namespace "doomed2" deleted'),
        Command("content is gone", "get cm,domaindata -A -o name", absent="inside"),
        Command("quota", "create quota q --hard=configmaps=2,services=0", out="created"),
        Command("quota fill", "create cm one", out="created"),
        Command("quota exceeded", "create svc clusterip none --tcp=80", rc=1, err=r'exceeded quota: q, requested: services=1, used: services=0, limited: services=0'),
    ),
    files={
        "held.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n",
        "data.yaml": "apiVersion: kuscia.secretflow/v1alpha1\nkind: DomainDataSource\nmetadata: {name: local}\n"
        "spec: {type: localfs, name: local, uri: /tmp}\n",
    },
)  # fmt: skip
