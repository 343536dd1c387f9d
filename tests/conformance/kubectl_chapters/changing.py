"""apply in both ways, diff, edit, patch, label, annotate, replace."""

from __future__ import annotations

from kubectl_steps import Chapter, Command

_DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d1, labels: {set: pruned}}
spec:
  replicas: %s
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      containers:
      - {name: main, image: "%s"%s}
"""
_CM = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, labels: {set: pruned}}\ndata: %s\n"

APPLY = Chapter(
    "apply",
    (
        Command("create", "apply -f d1.yaml", out="deployment.apps/d1 created"),
        Command("unchanged", "apply -f d1.yaml", out="deployment.apps/d1 unchanged"),
        Command("diff nothing", "diff -f d1.yaml", out=r"\A\Z"),
        Command("diff", "diff -f d2.yaml", rc=1, out=(r"^-\s+- image: nginx:1$", r"^\+\s+image: nginx:2$")),
        Command("diff of something new", "diff -f cm.yaml", rc=1, out=r"^\+kind: ConfigMap"),
        Command("diff server side", "diff --server-side -f d2.yaml --force-conflicts", rc=1, out=r"^\+\s+image: nginx:2$"),
        Command("configured", "apply -f d2.yaml", out="deployment.apps/d1 configured"),
        Command("merged by name", "get deploy d1 -o json", check=lambda d: [c["image"] for c in d["spec"]["template"]["spec"]["containers"]] == ["nginx:2"] and d["spec"]["replicas"] == 3),
        Command("field removed", "apply -f d1.yaml -o json", check=lambda d: "env" not in d["spec"]["template"]["spec"]["containers"][0]),
        Command("view last applied", "apply view-last-applied deploy d1 -o json", check=lambda d: d["spec"]["replicas"] == 2),
        Command("set last applied", "apply set-last-applied -f d2.yaml", out="configured"),
        Command("view last applied again", "apply view-last-applied deploy/d1", out="replicas: 3"),
        Command("dry run server", "apply -f d2.yaml --dry-run=server", out=r"configured \(server dry run\)"),
        Command("dry run client", "apply -f cm.yaml --dry-run=client", out=r"created \(dry run\)"),
        Command("several files", "apply -f cm.yaml -f cm-other.yaml", out=("configmap/c1 created", "configmap/c2 created")),
        Command("directory", "apply -f many/ -R", out=("configmap/m1 created", "configmap/m2 created")),
        Command("prune dry", "apply -f cm.yaml -l set=pruned --prune {allow}=core/v1/ConfigMap --dry-run=server", out=("configmap/c1", r"configmap/c2 pruned \(server dry run\)")),
        Command("prune", "apply -f cm.yaml -l set=pruned --prune {allow}=core/v1/ConfigMap", out=r"configmap/c2 pruned"),
        Command("pruned", "get cm c2", rc=1, err="NotFound"),
        Command("kustomize", "apply -k overlay", out=r"configmap/pre-settings-\w{10} created"),
        Command("kustomize print", "kustomize overlay", out="name: pre-settings-"),
        Command("server side", "apply --server-side -f ssa1.yaml", out="configmap/ssa serverside-applied"),
        Command("server side again", "apply --server-side -f ssa1.yaml", out="serverside-applied"),
        Command("server side removes", "apply --server-side -f ssa2.yaml -o json", check=lambda c: c["data"] == {"a": "1", "c": "3"}),
        Command("conflict", "apply --server-side -f ssa3.yaml --field-manager=other", rc=1, err=(r'conflict with "kubectl"', r"\.data\.a")),
        Command("force", "apply --server-side -f ssa3.yaml --field-manager=other --force-conflicts", out="serverside-applied"),
        Command("owners", "get cm ssa -o json --show-managed-fields", since="1.21", check=lambda c: {(m["manager"], m["operation"]) for m in c["metadata"]["managedFields"]} == {("kubectl", "Apply"), ("other", "Apply")} and c["data"]["a"] == "9"),
        Command("server side over client side", "apply --server-side --force-conflicts -f cm.yaml", out="configmap/c1 serverside-applied"),
        Command("server side list", "apply --server-side -f d3.yaml --field-manager=sidecar --force-conflicts -o json", check=lambda d: [c["name"] for c in d["spec"]["template"]["spec"]["containers"]] == ["main", "side"]),
        Command("server side dry run", "apply --server-side --dry-run=server -f ssa1.yaml --force-conflicts", out=r"serverside-applied \(server dry run\)"),
        Command("invalid", "apply -f bad.yaml", rc=1, err=r'The Deployment "d1" is invalid: spec\.replicas: Invalid value: -1: must be greater than or equal to 0'),
        Command("stdin", "apply -f -", stdin=_CM % ("piped", "{a: b}"), out="configmap/piped created"),
    ),
    files={
        "d1.yaml": _DEPLOYMENT % (2, "nginx:1", ""),
        "d2.yaml": _DEPLOYMENT % (3, "nginx:2", ", env: [{name: A, value: b}]"),
        "d3.yaml": _DEPLOYMENT % (3, "nginx:2", "") + "      - {name: side, image: envoy}\n",
        "bad.yaml": _DEPLOYMENT % (-1, "nginx:1", ""),
        "cm.yaml": _CM % ("c1", "{a: '1'}"),
        "cm-other.yaml": _CM % ("c2", "{a: '1'}"),
        "many/m1.yaml": (_CM % ("m1", "{}")).replace("pruned", "kept"),
        "many/deep/m2.yaml": (_CM % ("m2", "{}")).replace("pruned", "kept"),
        "ssa1.yaml": (_CM % ("ssa", "{a: '1', b: '2'}")).replace("pruned", "kept"),
        "ssa2.yaml": (_CM % ("ssa", "{a: '1', c: '3'}")).replace("pruned", "kept"),
        "ssa3.yaml": (_CM % ("ssa", "{a: '9'}")).replace("pruned", "kept"),
        "overlay/kustomization.yaml": "namePrefix: pre-\nconfigMapGenerator:\n- {name: settings, literals: [k=v]}\n",
    },
)  # fmt: skip

# Nobody looks after a pod that waits for its gate, so a status written by hand stays as it was written.
_GATED = """
apiVersion: v1
kind: Pod
metadata: {name: s}
spec:
  schedulingGates: [{name: example.com/wait}]
  containers: [{name: main, image: %s}]
"""

_EDITOR = {"KUBE_EDITOR": "sed -i s/before/after/"}

CHANGE = Chapter(
    "change",
    (
        Command("create", "create -f objects.yaml", out="configmap/cm created"),
        Command("edit", "edit cm cm", env=_EDITOR, out="configmap/cm edited"),
        Command("edited", "get cm cm -o 'jsonpath={.data.word}'", out=r"\Aafter\Z"),
        Command("edit nothing", "edit cm cm", env={"KUBE_EDITOR": "true"}, err="Edit cancelled, no changes made"),
        Command("edit json", "edit cm cm -o json", env={"KUBE_EDITOR": "sed -i s/after/later/"}, check=lambda c: c["data"] == {"word": "later"}),
        Command("edit invalid", "edit deploy d", env={"KUBE_EDITOR": "sed -i 's/replicas: 1/replicas: -1/'"}, rc=1, err=r"spec\.replicas: Invalid value|is invalid"),
        Command("edit status", "edit pod s --subresource=status", env={"KUBE_EDITOR": "sed -i 's/^  phase: Pending/  phase: Unknown/'"}, out="pod/s edited", since="1.24"),
        Command("status edited", "get pod s -o 'jsonpath={.status.phase}'", out=r"\AUnknown\Z", since="1.24"),
        Command("patch strategic", "patch deploy d -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"side\",\"image\":\"envoy\"}]}}}}'", out="deployment.apps/d patched"),
        Command("patch strategic merged", "get deploy d -o json", check=lambda d: {c["name"] for c in d["spec"]["template"]["spec"]["containers"]} == {"main", "side"}),
        Command("patch strategic delete", "patch deploy d -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"side\",\"$patch\":\"delete\"}]}}}}' -o json", check=lambda d: len(d["spec"]["template"]["spec"]["containers"]) == 1),
        Command("patch merge", "patch cm cm --type=merge -p '{\"data\":{\"word\":null,\"new\":\"1\"}}' -o json", check=lambda c: c["data"] == {"new": "1"}),
        Command("patch json", "patch cm cm --type=json -p '[{\"op\":\"test\",\"path\":\"/data/new\",\"value\":\"1\"},{\"op\":\"add\",\"path\":\"/metadata/labels\",\"value\":{}},{\"op\":\"add\",\"path\":\"/metadata/labels/a.example~1b\",\"value\":\"2\"}]' -o json", check=lambda c: c["metadata"]["labels"] == {"a.example/b": "2"}),
        Command("patch nothing", "patch cm cm --type=merge -p '{\"data\":{\"new\":\"1\"}}'", out=r"patched \(no change\)"),
        Command("patch file", "patch cm cm --type=merge --patch-file=patch.yaml", out="patched"),
        Command("patch dry run", "patch cm cm --type=merge --dry-run=server -p '{\"data\":{\"dry\":\"1\"}}'", out=r"patched( \(server dry run\))?"),
        Command("patch status", "patch pod s --subresource=status --type=merge -p '{\"status\":{\"phase\":\"Pending\",\"message\":\"by hand\"}}'", out="patched", since="1.24"),
        Command("status patched", "get pod s -o json", check=lambda p: p["status"]["message"] == "by hand" and p["spec"]["containers"][0]["image"] == "nginx", since="1.24"),
        Command("patch local", "patch -f objects.yaml --local --type=merge -p '{\"metadata\":{\"labels\":{\"l\":\"1\"}}}' -o name", out="configmap/cm"),
        Command("label", "label cm cm team=red", out="configmap/cm labeled"),
        Command("label refuses", "label cm cm team=blue", rc=1, err=r"already has a value \(red\)"),
        Command("label overwrite", "label cm cm team=blue --overwrite", out="labeled"),
        Command("label locked", "label cm cm team=green --overwrite --resource-version=1", rc=1, err="Conflict|the object has been modified"),
        Command("label remove", "label cm cm team-", out="(labeled|unlabeled)"),
        Command("label list", "label cm cm --list", absent="team"),
        Command("label all", "label cm --all seen=yes", out="configmap/cm labeled"),
        Command("annotate", "annotate cm cm note='hello world'", out="annotated?"),
        Command("annotate overwrite", "annotate --overwrite cm cm note=bye", out="annotated?"),
        Command("annotated", "get cm cm -o 'jsonpath={.metadata.annotations.note}'", out=r"\Abye\Z"),
        Command("annotate remove", "annotate cm cm note-", out="annotated?"),
        Command("annotate by label", "annotate cm -l seen=yes by=label", out="annotated?"),
        Command("replace", "replace -f replaced.yaml", out="configmap/cm replaced"),
        Command("replaced", "get cm cm -o json", check=lambda c: c["data"] == {"only": "this"} and "labels" not in c["metadata"]),
        Command("replace force", "replace --force -f replaced.yaml", out=r'"cm" deleted[\s\S]*configmap/cm replaced'),
        Command("replace missing", "replace -f missing.yaml", rc=1, err="NotFound"),
        Command("replace status", "replace --subresource=status -f status.yaml", out="pod/s replaced", since="1.24"),
        Command("replaced status", "get pod s -o json", check=lambda p: p["status"]["message"] == "seven" and p["spec"]["containers"][0]["image"] == "nginx", since="1.24"),
        Command("patch scale", "patch deploy d --subresource=scale --type=merge -p '{\"spec\":{\"replicas\":2}}'", out="patched", since="1.24"),
        Command("create kustomized", "create -k base", out="configmap/from-base created"),
        Command("diff kustomized", "diff -k base", out=r"\A\Z"),
    ),
    files={
        "objects.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {word: before}\n---\n" + _DEPLOYMENT.replace("d1", "d") % (1, "nginx", "") + "---" + _GATED % "nginx",
        "patch.yaml": "data: {from: file}\n",
        "status.yaml": _GATED % "other" + "status: {phase: Pending, message: seven}\n",
        "base/kustomization.yaml": "resources: [cm.yaml]\nnamePrefix: from-\n",
        "base/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: base}\n",
        "replaced.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {only: this}\n",
        "missing.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: missing}\n",
    },
)  # fmt: skip
