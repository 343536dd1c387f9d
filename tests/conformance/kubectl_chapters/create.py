"""Every generator of `kubectl create`, and what the server must refuse and how it must say so."""

from __future__ import annotations

import base64

from kubectl_steps import Chapter, Command


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


CREATE = Chapter(
    "create",
    (
        Command("namespace", "create namespace made-by-create", out="namespace/made-by-create created"),
        Command("configmap literal", "create configmap lit --from-literal=a=1 --from-literal=b=two", out="configmap/lit created"),
        Command("configmap file", "create cm file --from-file=app.conf --from-file=other=app.conf", out="created"),
        Command("configmap env", "create cm env --from-env-file=my.env", out="created"),
        Command("configmap content", "get cm env -o json", check=lambda c: c["data"] == {"COLOUR": "blue", "SIZE": "3"}),
        Command("secret generic", "create secret generic pass --from-literal=word=xyzzy", out="secret/pass created"),
        Command("secret content", "get secret pass -o json", check=lambda s: _decoded(s["data"]["word"]) == "xyzzy" and s["type"] == "Opaque"),
        Command("secret registry", "create secret docker-registry reg --docker-server=registry.example --docker-username=u --docker-password=p", out="secret/reg created"),
        Command("secret tls", "create secret tls pair --cert=tls.crt --key=tls.key", out="secret/pair created"),
        Command("secrets", "get secrets", out=(r"^pair\s+kubernetes.io/tls\s+2", r"^reg\s+kubernetes.io/dockerconfigjson\s+1")),
        Command("serviceaccount", "create serviceaccount robot", out="serviceaccount/robot created"),
        Command("role", "create role reader --verb=get,list --resource=pods,deployments.apps", out="created"),
        Command("role content", "get role reader -o json", check=lambda r: {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]} in r["rules"]),
        Command("clusterrole", "create clusterrole made-reader --verb=get --resource=nodes", out="created"),
        Command("clusterrole paths", "create clusterrole made-paths --verb=get --non-resource-url=/made", out="created"),
        Command("clusterrole aggregated", "create clusterrole made-sum --aggregation-rule=made=true", out="created"),
        Command("rolebinding", "create rolebinding reads --role=reader --serviceaccount={ns}:robot --user=eve", out="created"),
        Command("clusterrolebinding", "create clusterrolebinding made-reads --clusterrole=made-reader --group=made", out="created"),
        Command("rolebindings", "get rolebindings -o wide", out=r"^reads\s+Role/reader\s+\d+s\s+eve\s+\S+/robot"),
        Command("quota", "create quota small --hard=count/secrets=50,pods=20", out="resourcequota/small created"),
        Command("priorityclass", "create priorityclass made-high --value=1000 --description=high", out="created"),
        Command("priorityclasses", "get pc", out=r"^made-high\s+1000\s+false"),
        Command("poddisruptionbudget", "create pdb keep --selector=app=web --min-available=1", out="created", since="1.22"),
        Command("poddisruptionbudgets", "get pdb", out=r"^keep\s+1\s+N/A\s+0", since="1.22"),
        Command("ingress", "create ingress web --rule=web.example/api*=web:80,tls=pair", out="ingress.networking.k8s.io/web created"),
        Command("ingresses", "get ing", out=r"^web\s+<none>\s+web.example\s+80, 443"),
        Command("job", "create job once --image=busybox -- sh -c 'echo hi'", out="job.batch/once created"),
        Command("job columns", "get jobs -o wide", out=r"^once\s+.*0/1.*busybox\s+batch.kubernetes.io/controller-uid="),
        Command("cronjob", "create cronjob nightly --image=busybox '--schedule=0 3 * * *'", out="created", since="1.21"),
        Command("job from cronjob", "create job by-hand --from=cronjob/nightly", out="job.batch/by-hand created", since="1.21"),
        Command("job is owned", "get job by-hand -o json", check=lambda j: j["metadata"]["ownerReferences"][0]["kind"] == "CronJob", since="1.21"),
        Command("deployment", "create deployment web --image=nginx --replicas=2 --port=80", out="deployment.apps/web created"),
        Command("deployment is taken up", "wait '--for=jsonpath={.status.updatedReplicas}=2' deploy/web --timeout=20s", out="condition met", since="1.23"),
        Command("deployments", "get deploy -o wide", out=r"^web\s+0/2\s+2\s+0\s+\d+s\s+nginx\s+nginx\s+app=web"),
        Command("service clusterip", "create service clusterip web --tcp=80:8080", out="service/web created"),
        Command("service nodeport", "create service nodeport open --tcp=80", out="service/open created"),
        Command("service loadbalancer", "create service loadbalancer lb --tcp=443:8443", out="service/lb created"),
        Command("service externalname", "create service externalname far --external-name=far.example", out="created"),
        Command("services", "get svc", out=(r"^web\s+ClusterIP\s+\S+\s+<none>\s+80/TCP", r"^far\s+ExternalName\s+<none>\s+far.example\s+<none>")),
        Command("token", "create token robot --duration=10m", out=r"\A[\w-]+\.[\w-]+\.[\w-]+\n?\Z", since="1.24"),
        Command("token missing account", "create token nobody", rc=1, err=r'serviceaccounts? "nobody" not found', since="1.24"),
        Command("dry run client", "create deployment dry --image=x --dry-run=client -o yaml", out=r"^kind: Deployment"),
        Command("dry run server", "create deployment dry --image=x --dry-run=server -o json", check=lambda d: d["metadata"]["uid"] and d["spec"]["progressDeadlineSeconds"] == 600),
        Command("dry run left nothing", "get deploy dry", rc=1, err=r'deployments.apps "dry" not found'),
        Command("from stdin", "create -f -", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: many-}\n", out=r"configmap/many-\w{5} created"),
        Command("list of objects", "create -f list.yaml", out=("configmap/one created", "configmap/two created")),
        Command("save config", "create -f one-more.json --save-config", out="configmap/three created"),
        Command("saved config", "get cm three -o json", check=lambda c: "kubectl.kubernetes.io/last-applied-configuration" in c["metadata"]["annotations"]),
        Command("clean up", "delete clusterrole/made-reader clusterrole/made-paths clusterrole/made-sum clusterrolebinding/made-reads priorityclass/made-high", out="deleted"),
    ),
    files={
        "app.conf": "colour = blue\n",
        "my.env": "COLOUR=blue\nSIZE=3\n",
        "list.yaml": "apiVersion: v1\nkind: List\nitems:\n"
        "- {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}\n"
        "- {apiVersion: v1, kind: ConfigMap, metadata: {name: two}}\n",
        "one-more.json": '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "three"}}',
    },
)  # fmt: skip

_POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  containers: [{name: c, image: busybox%s}]
"""

REFUSALS = Chapter(
    "refusals",
    (
        Command("create", "create cm first --from-literal=a=1", out="created"),
        Command("already exists", "create cm first", rc=1, err='configmaps "first" already exists'),
        Command("already exists by file", "create -f first.yaml", rc=1, err=r'Error from server \(AlreadyExists\): .*configmaps "first" already exists'),
        Command("not found", "get cm nope", rc=1, err=r'Error from server \(NotFound\): configmaps "nope" not found'),
        Command("no namespace", "create cm x -n nowhere", rc=1, err=r'namespaces "nowhere" not found'),
        Command("bad name", "create cm Bad_Name", rc=1, err=r'ConfigMap "Bad_Name" is invalid: metadata.name: Invalid value: "Bad_Name"'),
        Command("bad label", "label cm first -- 'x=a b'", rc=1, err="a valid label must|Invalid value|invalid label"),
        Command("several faults", "create -f faults.yaml", rc=1, err=(r'The Pod "faults" is invalid', r"\* spec\.containers\[0\]\.image: Required value", r"\* spec\.restartPolicy: Unsupported value")),
        Command("field path", "create -f nameless.yaml", rc=1, err=r"spec\.containers\[0\]\.name: Required value"),
        Command("no containers", "create -f empty.yaml", rc=1, err=r"spec\.containers: Required value"),
        Command("strict unknown field", "create -f typo.yaml", rc=1, err=r'(strict decoding error: unknown field "spec\.containers\[0\]\.imagePullPolcy"|unknown field "imagePullPolcy")'),
        Command("validate warn", "create -f typo.yaml --validate=warn", out="pod/typo created", err=r'[Ww]arning: unknown field "spec\.containers\[0\]\.imagePullPolcy"', since="1.25"),
        Command("validate ignore", "create -f typo2.yaml --validate=ignore", out="pod/typo2 created", since="1.25"),
        Command("validate off", "create -f typo3.yaml --validate=false", out="pod/typo3 created"),
        Command("duplicate field", "create --raw /api/v1/namespaces/{ns}/configmaps?fieldValidation=Strict -f twice.json", rc=1, err=r'strict decoding error: duplicate field "data"'),
        Command("wrong type", "create -f wrong.yaml --validate=false", rc=1, err=r"BadRequest|cannot be handled|unmarshal|must be"),
        Command("unknown kind", "create -f unknown.yaml", rc=1, err=r'no matches for kind "Nope" in version "v1"'),
        Command("immutable pod field", "patch pod typo3 --type=merge -p '{\"spec\":{\"containers\":[{\"name\":\"d\",\"image\":\"y\"}]}}'", rc=1, err=r"Forbidden: pod updates may not change fields other than|may not add or remove containers"),
        Command("immutable selector", "create deployment fixed --image=x", out="created"),
        Command("immutable selector refused", "patch deploy fixed --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/selector/matchLabels/app\",\"value\":\"y\"},{\"op\":\"replace\",\"path\":\"/spec/template/metadata/labels/app\",\"value\":\"y\"}]'", rc=1, err=r"spec\.selector: Invalid value: .*field is immutable"),
        Command("immutable secret type", "create secret generic typed --from-literal=a=b", out="created"),
        Command("immutable secret type refused", "patch secret typed --type=merge -p '{\"type\":\"other\"}'", rc=1, err=r"type: Invalid value: .*field is immutable"),
        Command("immutable configmap", "patch cm first --type=merge -p '{\"immutable\":true}'", out="patched"),
        Command("immutable configmap refused", "patch cm first --type=merge -p '{\"data\":{\"a\":\"2\"}}'", rc=1, err=r"data: Forbidden: field is immutable when `immutable` is set"),
        Command("optimistic lock", "replace -f stale.yaml", rc=1, err=r"\(Conflict\).*the object has been modified; please apply your changes to the latest version"),
        Command("bad patch", "patch cm first --type=json -p '[{\"op\":\"remove\",\"path\":\"/data/zzz\"}]'", rc=1, err="The request is invalid"),
        Command("patch tests", "patch cm first --type=json -p '[{\"op\":\"test\",\"path\":\"/data/a\",\"value\":\"9\"}]'", rc=1, err="The request is invalid"),
        Command("bad selector", "get pods -l 'a in (b'", rc=1, err=r"unable to parse|found .*expected|invalid"),
        Command("bad field selector", "get pods --field-selector=spec.nope=1", rc=1, err=r'(field label not supported|spec\.nope)'),
        Command("bad cron", "create cronjob bad --image=x '--schedule=61 * * * *'", rc=1, err=r'spec\.schedule: Invalid value: "61', since="1.21"),
        Command("role reference is fixed", "create rolebinding b1 --clusterrole=view --user=u", out="created"),
        Command("role reference refused", "patch rolebinding b1 --type=merge -p '{\"roleRef\":{\"name\":\"edit\"}}'", rc=1, err=r"roleRef: Invalid value: .*cannot change roleRef"),
        Command("protected namespace", "delete ns default", rc=1, err=r"Forbidden.*may not be deleted"),
        Command("certificate", "certificate approve nobody", rc=1, err='certificatesigningrequests.certificates.k8s.io "nobody" not found'),
        Command("top nodes", "top nodes", rc=1, err="[Mm]etrics (API )?not available"),
        Command("top pods", "top pods", rc=1, err="[Mm]etrics (API )?not available"),
    ),
    files={
        "faults.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: faults}\nspec: {restartPolicy: Sometimes, containers: [{name: c}]}\n",
        "nameless.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: nameless}\nspec: {containers: [{image: x, name: ''}]}\n",
        "empty.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: empty}\nspec: {containers: []}\n",
        "typo.yaml": _POD % ("typo", ", imagePullPolcy: Never"),
        "typo2.yaml": _POD % ("typo2", ", imagePullPolcy: Never"),
        "typo3.yaml": _POD % ("typo3", ", imagePullPolcy: Never"),
        "first.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first}\n",
        "twice.json": '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"twice"},"data":{"a":"1"},"data":{"b":"2"}}',
        "wrong.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: wrong}\ndata: [1, 2]\n",
        "unknown.yaml": "apiVersion: v1\nkind: Nope\nmetadata: {name: x}\n",
        "stale.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first, resourceVersion: '1'}\ndata: {a: '1'}\n",
    },
)  # fmt: skip
