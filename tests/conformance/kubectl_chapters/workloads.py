"""run, expose, scale, autoscale, set, rollout: the controllers are real, the test stands in for the agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kubectl_steps import Act, Chapter, Command, Scene
from server_process import ApiFailed


def _run_until_rolled_out(name: str) -> Callable[[Scene], None]:
    """What an agent would do: every pod of the deployment runs and is ready, until its controller is content."""

    def act(scene: Scene) -> None:
        base = f"/apis/apps/v1/namespaces/{scene.namespace}/deployments/{name}"
        deadline = time.monotonic() + 30
        while not _rolled_out(scene.server.api("GET", base)):
            assert time.monotonic() < deadline, f"deployment {name} was not rolled out"
            _run_pods(scene, name)
            time.sleep(0.05)

    return act


def _rolled_out(deployment: dict[str, Any]) -> bool:
    count, status = deployment["spec"]["replicas"], deployment.get("status", {})
    seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return seen and all(status.get(key) == count for key in ("replicas", "updatedReplicas", "availableReplicas"))


def _run_pods(scene: Scene, app: str) -> None:
    pods = f"/api/v1/namespaces/{scene.namespace}/pods"
    for pod in scene.server.api("GET", f"{pods}?labelSelector=app%3D{app}")["items"]:
        if pod["status"]["phase"] == "Running":
            continue
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "conditions": [condition]}
        try:
            path = f"{pods}/{pod['metadata']['name']}/status"
            scene.server.api("PATCH", path, {"status": status}, "application/merge-patch+json")
        except ApiFailed as failed:
            if failed.status != 404:  # The controller was quicker to remove it.
                raise


WORKLOADS = Chapter(
    "workloads",
    (
        Command("run", "run solo --image=busybox --labels=app=solo --env=A=b --port=80", out="pod/solo created"),
        Command("run dry", "run dry --image=busybox --dry-run=server -o json --command -- sleep 1", check=lambda p: p["spec"]["containers"][0]["command"] == ["sleep", "1"]),
        Command("run restart never", "run task --image=busybox --restart=Never", out="pod/task created"),
        Command("run defaults", "get pod task -o json", check=lambda p: p["spec"]["restartPolicy"] == "Never" and p["status"]["phase"] == "Pending" and p["status"]["qosClass"] == "BestEffort"),
        Command("deployment", "create deployment web --image=nginx:new --replicas=2", out="created"),
        Command("expose deployment", "expose deployment web --port=80 --target-port=8080", out="service/web exposed"),
        Command("expose pod", "expose pod solo --port=80 --name=solo-svc --type=NodePort", out="service/solo-svc exposed"),
        Command("exposed", "get svc web -o json", check=lambda s: s["spec"]["selector"] == {"app": "web"} and s["spec"]["ports"][0]["targetPort"] == 8080),
        Command("scale", "scale deployment web --replicas=4", out="deployment.apps/web scaled"),
        Command("scale when", "scale deployment web --current-replicas=4 --replicas=3", out="scaled"),
        Command("scale when not", "scale deployment web --current-replicas=9 --replicas=3", rc=1, err="Expected replicas to be 9, was 3"),
        Command("scaled", "get deploy web -o 'jsonpath={.spec.replicas}'", out=r"\A3\Z"),
        Command("autoscale", "autoscale deployment web --min=1 --max=5 --cpu-percent=80", out="horizontalpodautoscaler.autoscaling/web autoscaled"),
        Command("autoscaler", "get hpa", out=r"^web\s+Deployment/web\s+.*80%\s+1\s+5"),
        Command("autoscaler v1", "get horizontalpodautoscalers.v1.autoscaling web -o json", check=lambda h: h["spec"]["targetCPUUtilizationPercentage"] == 80),
        Command("describe autoscaler", "describe hpa web", out=r"Min replicas: +1"),
        Command("set image", "set image deployment/web nginx=nginx:newer", out="image updated"),
        Command("set env", "set env deployment/web COLOUR=blue", out="env updated"),
        Command("set env list", "set env deployment/web --list", out="COLOUR=blue"),
        Command("set env remove", "set env deployment/web COLOUR-", out="env updated"),
        Command("set resources", "set resources deployment web --limits=cpu=200m,memory=64Mi --requests=cpu=100m", out="resource requirements updated"),
        Command("serviceaccount", "create sa robot", out="created"),
        Command("set serviceaccount", "set serviceaccount deployment web robot", out="serviceaccount updated"),
        Command("set selector", "set selector svc web app=web,tier=front", out="selector updated"),
        Command("set subject", "create rolebinding rb --clusterrole=view --user=a", out="created"),
        Command("set subject user", "set subject rolebinding rb --user=b", out="subjects updated"),
        Command("set all", "get deploy web -o json", check=lambda d: d["spec"]["template"]["spec"]["serviceAccountName"] == "robot" and d["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "200m", "memory": "64Mi"}),
        Command("rollout status waits", "rollout status deployment/web --timeout=1s", rc=1, out="Waiting for"),
        Act("its pods run", _run_until_rolled_out("web")),
        Command("rollout status", "rollout status deployment/web --timeout=20s", out="successfully rolled out"),
        Command("wait available", "wait --for=condition=available deployment/web --timeout=10s", out="condition met"),
        Command("only one set of pods", "get rs -l app=web -o json", check=lambda r: sorted(s["spec"]["replicas"] for s in r["items"])[-2:] == [0, 3]),
        Command("history begins", "create deployment hist --image=nginx:old", out="created"),
        Act("revision 1 runs", _run_until_rolled_out("hist")),
        Command("revision 2", "set image deployment/hist nginx=nginx:new", out="image updated"),
        Act("revision 2 runs", _run_until_rolled_out("hist")),
        Command("rollout history", "rollout history deployment/hist", out=(r"^1\s+<none>", r"^2\s+<none>"), absent=r"^3\s"),
        Command("rollout history revision", "rollout history deployment/hist --revision=1", out="Image:.*nginx:old"),
        Command("rollout undo", "rollout undo deployment/hist", out="rolled back"),
        Command("rolled back", "get deploy hist -o 'jsonpath={.spec.template.spec.containers[0].image}'", out=r"\Anginx:old\Z"),
        Act("revision 3 runs", _run_until_rolled_out("hist")),
        Command("an old revision is new again", "rollout history deployment/hist", out=(r"^2\s+<none>", r"^3\s+<none>"), absent=r"^1\s"),
        Command("rollout undo to", "rollout undo deployment/hist --to-revision=2", out="rolled back"),
        Command("rolled forward", "get deploy hist -o 'jsonpath={.spec.template.spec.containers[0].image}'", out=r"\Anginx:new\Z"),
        Command("rollout undo missing", "rollout undo deployment/web --to-revision=9", rc=1, err="unable to find specified revision"),
        Command("rollout restart", "rollout restart deployment/web", out="restarted"),
        Command("restarted", "get deploy web -o json", check=lambda d: "kubectl.kubernetes.io/restartedAt" in d["spec"]["template"]["metadata"]["annotations"]),
        Command("rollout pause", "rollout pause deployment/web", out="paused"),
        Command("rollout restart paused", "rollout restart deployment/web", rc=1, err="can't restart paused deployment"),
        Command("rollout resume", "rollout resume deployment/web", out="resumed"),
        Command("generation", "get deploy web -o json", check=lambda d: d["metadata"]["generation"] > 5),
        Command("statefulset and daemonset", "apply -f others.yaml", out=("statefulset.apps/st created", "daemonset.apps/ds created", "limitrange/lim created", "networkpolicy.networking.k8s.io/np created", "persistentvolumeclaim/claim created")),
        Command("scale statefulset", "scale sts/st --replicas=2", out="scaled"),
        Command("others", "get sts,ds,pvc,limits,netpol", out=(r"statefulset.apps/st\s+0/2", r"daemonset.apps/ds\s+0", r"persistentvolumeclaim/claim\s+Pending", "limitrange/lim", r"np\s+app=web")),
        Command("limits apply", "run limited --image=busybox -o json", check=lambda p: p["spec"]["containers"][0]["resources"]["limits"] == {"memory": "32Mi"}),
        Command("rollout restart others", "rollout restart sts/st ds/ds", out=("statefulset.apps/st restarted", "daemonset.apps/ds restarted")),
        Command("storage", "apply -f storage.yaml", out=("storageclass.storage.k8s.io/t-slow created", "persistentvolume/t-vol created")),
        Command("storage columns", "get sc,pv", out=(r"t-slow\s+example.com/none\s+Delete", r"t-vol\s+1Gi\s+RWO")),
        Command("storage gone", "delete sc/t-slow pv/t-vol --wait=false", out="deleted"),
    ),
    files={
        "others.yaml": """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: st}
spec:
  serviceName: st
  selector: {matchLabels: {app: st}}
  template: {metadata: {labels: {app: st}}, spec: {containers: [{name: c, image: x}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ds}
spec:
  selector: {matchLabels: {app: ds}}
  template: {metadata: {labels: {app: ds}}, spec: {containers: [{name: c, image: x}]}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: lim}
spec: {limits: [{type: Container, default: {memory: 32Mi}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: np}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
""",
        "storage.yaml": """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: t-slow}
provisioner: example.com/none
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: t-vol}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /tmp/t-vol}}
""",
    },
)  # fmt: skip
