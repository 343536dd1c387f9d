"""Who may do what: can-i, whoami, reconcile, tokens; and the work of a node's keeper: cordon, drain, taint."""

from __future__ import annotations

import yaml
from kubectl_steps import Act, Chapter, Command, Scene


def _note_token(scene: Scene) -> None:
    path = f"/api/v1/namespaces/{scene.namespace}/serviceaccounts/robot/token"
    token = scene.server.api("POST", path, {"spec": {"expirationSeconds": 600}})["status"]["token"]
    config = yaml.safe_load(scene.kubectl.kubeconfig.read_text())
    for name, used in (("robot", token), ("stranger", "not.a.token")):
        # Nothing but the token: the operator's certificate must not speak for it.
        config["users"][0]["user"] = {"token": used}
        (scene.kubectl.directory / f"{name}.kubeconfig").write_text(yaml.safe_dump(config))


AUTH = Chapter(
    "auth",
    (
        Command("can-i", "auth can-i create pods", out=r"\Ayes\n\Z"),
        Command("can-i as", "auth can-i create pods --as=eve", rc=1, out="^no"),
        Command("can-i quiet", "auth can-i get pods --as=eve --quiet", rc=1, out=r"\A\Z"),
        Command("can-i group", "auth can-i delete nodes --as=eve --as-group=system:masters", out="^yes"),
        Command("can-i list", "auth can-i --list", out=r"^\*\.\*\s+\[\]\s+\[\]\s+\[\*\]"),
        Command("can-i path", "auth can-i get /readyz --as=eve --as-group=system:authenticated", out="^yes"),
        Command("can-i subresource", "auth can-i get pods --subresource=log --as=eve", rc=1, out="^no"),
        Command("whoami", "auth whoami", out=r"Username\s+\S+", since="1.27"),
        Command("whoami json", "auth whoami -o json --as=eve --as-group=g", check=lambda w: w["status"]["userInfo"]["username"] == "eve" and "g" in w["status"]["userInfo"]["groups"], since="1.27"),
        Command("account", "create sa robot", out="created"),
        Command("before", "auth can-i list pods --as=system:serviceaccount:{ns}:robot", rc=1, out="^no"),
        Command("grant", "create rolebinding robot --clusterrole=view --serviceaccount={ns}:robot", out="created"),
        Command("after", "auth can-i list pods --as=system:serviceaccount:{ns}:robot", out="^yes"),
        Command("after elsewhere", "auth can-i list pods -n default --as=system:serviceaccount:{ns}:robot", rc=1, out="^no"),
        Command("list as", "auth can-i --list --as=system:serviceaccount:{ns}:robot", out=(r"^configmaps\s.*\[get list watch\]", r"^selfsubject\S+\s.*\[create\]")),
        Act("take a token", _note_token),
        Command("with a token", "--kubeconfig=robot.kubeconfig get pods", err="No resources found"),
        Command("token whoami", "--kubeconfig=robot.kubeconfig auth whoami -o json", check=lambda w: w["status"]["userInfo"]["username"].endswith(":robot"), since="1.27"),
        Command("token refused", "--kubeconfig=robot.kubeconfig create cm no", rc=1, err=r'configmaps is forbidden: User "system:serviceaccount:t-auth:robot" cannot create resource "configmaps" in API group "" in the namespace "t-auth"'),
        Command("token unknown", "--kubeconfig=stranger.kubeconfig get pods", rc=1, err="Unauthorized|must be logged in"),
        Command("impersonation refused", "--kubeconfig=robot.kubeconfig get pods --as=admin", rc=1, err=r"cannot impersonate resource"),
        Command("no right at all", "create role strong --verb=* --resource=secrets --as=eve", rc=1, err=r'User "eve" cannot create resource "roles"'),
        Command("may make roles", "create role maker --verb=create,get --resource=roles", out="created"),
        Command("eve may make roles", "create rolebinding maker --role=maker --user=eve", out="created"),
        Command("escalation refused", "create role strong --verb=* --resource=secrets --as=eve", rc=1, err="attempting to grant RBAC permissions not currently held"),
        Command("reconcile", "auth reconcile -f rbac.yaml", out=("role.rbac.authorization.k8s.io/rec reconciled", "rolebinding.rbac.authorization.k8s.io/rec reconciled")),
        Command("reconcile more", "auth reconcile -f rbac2.yaml", out="reconciled"),
        Command("reconciled", "get role rec -o json", check=lambda r: sum(len(rule["verbs"]) for rule in r["rules"]) >= 2),
    ),
    files={
        "rbac.yaml": """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: rec, namespace: t-auth}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: rec, namespace: t-auth}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: rec}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}]
""",
        "rbac2.yaml": """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: rec, namespace: t-auth}
rules: [{apiGroups: [""], resources: [pods], verbs: [list]}]
""",
    },
)  # fmt: skip

_POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: drained}}
spec: {nodeName: keep-1, terminationGracePeriodSeconds: 0, containers: [{name: c, image: x}]}
"""


def _run_pods(scene: Scene) -> None:
    """A budget covers only pods that run."""
    for name in ("n1", "n2"):
        path = f"/api/v1/namespaces/{scene.namespace}/pods/{name}/status"
        scene.server.api("PATCH", path, {"status": {"phase": "Running"}}, "application/merge-patch+json")


NODES = Chapter(
    "nodes",
    (
        Command("create", "create -f node.yaml", out="node/keep-1 created"),
        Command("pods", "create -f pods.yaml", out=("pod/n1 created", "pod/n2 created")),
        Act("run the pods", _run_pods),
        Command("get nodes", "get nodes", out=r"^keep-1\s+\S+\s+worker\s+\d+s"),
        Command("get nodes wide", "get nodes -o wide", out=r"CONTAINER-RUNTIME"),
        Command("describe node", "describe node keep-1", out=(r"^Taints: +<none>", r"^Unschedulable: +false", r"t-nodes\s+n1")),
        Command("cordon", "cordon keep-1", out="node/keep-1 cordoned"),
        Command("cordon again", "cordon keep-1", out="already cordoned"),
        Command("cordoned", "get node keep-1", out=r"SchedulingDisabled"),
        Command("uncordon", "uncordon keep-1", out="node/keep-1 uncordoned"),
        Command("taint", "taint node keep-1 dedicated=gpu:NoSchedule", out="node/keep-1 tainted"),
        Command("taint refuses", "taint node keep-1 dedicated=cpu:NoSchedule", rc=1, err="already has dedicated taint"),
        Command("taint overwrite", "taint node keep-1 dedicated=cpu:NoSchedule --overwrite", out="modified"),
        Command("taint remove", "taint node keep-1 dedicated-", out="untainted"),
        Command("drain refuses", "drain keep-1", rc=1, err="cannot delete|unable to drain"),
        Command("drain dry", "drain keep-1 --force --dry-run=server", out="node/keep-1 drained"),
        Command("budget", "create -f budget.yaml", out="poddisruptionbudget.policy/all created"),
        Command("drain blocked", "drain keep-1 --force --timeout=2s", rc=1, err="violate the pod's disruption budget"),
        Command("budget gone", "delete pdb all", out="deleted"),
        Command("drain", "drain keep-1 --force --timeout=20s", out=r"node/keep-1 (drained|evicted)"),
        Command("drained", "get pods -l app=drained", err="No resources found"),
        Command("leave", "delete node keep-1", out='node "keep-1" deleted'),
    ),
    files={
        "node.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: keep-1, labels: {node-role.kubernetes.io/worker: ''}}\n",
        "pods.yaml": _POD % "n1" + "---" + _POD % "n2",
        "budget.yaml": "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: all}\n"
        "spec: {maxUnavailable: 0, selector: {matchLabels: {app: drained}}}\n",
    },
)  # fmt: skip
