"""What a user asks first: versions, which kinds there are, what their fields mean, and kubectl's own configuration."""

from __future__ import annotations

from kubectl_steps import Chapter, Command

KUSCIA_SHORT_NAMES = ("dr", "cdr", "gw", "kj", "kjs", "kt", "kts", "kd", "kds", "trg", "tr", "daimg", "kdd",
                      "dds", "ddg", "interop")  # fmt: skip

_REGISTRATION = """
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.down.example.com}
spec:
  group: down.example.com
  version: v1
  groupPriorityMinimum: 10
  versionPriority: 10
  insecureSkipTLSVerify: true
  service: {namespace: default, name: nobody}
"""

DISCOVERY = Chapter(
    "discovery",
    (
        Command("version", "version", out=r"Server Version: .*v?1\.\d+"),
        Command("version json", "version -o json", check=lambda v: v["serverVersion"]["gitVersion"].startswith("v1.")),
        Command("cluster-info", "cluster-info", out=r"is running at .*https://127\.0\.0\.1:\d+"),
        Command("cluster-info dump", "cluster-info dump --namespaces {ns}", out=r'"kind": "(Node|Event)List"'),
        Command("api-versions", "api-versions", out=(r"^v1$", r"^apps/v1$", r"^kuscia\.secretflow/v1alpha1$")),
        Command(
            "api-resources",
            "api-resources",
            out=(r"^pods +po .*true +Pod$", r"^deployments +deploy ", r"^kusciajobs +kj "),
        ),
        Command("api-resources wide", "api-resources -o wide", out=r"^pods .*create.*deletecollection.*watch"),
        Command(
            "api-resources verbs",
            "api-resources --verbs=list,watch -o name",
            out=(r"^pods$", r"^kusciajobs\.kuscia\.secretflow$"),
            absent=r"^subjectaccessreviews",
        ),
        Command(
            "api-resources cluster",
            "api-resources --namespaced=false -o name",
            out=(r"^nodes$", r"^domains\.kuscia\.secretflow$"),
            absent=r"^pods$",
        ),
        Command(
            "api-resources group",
            "api-resources --api-group=kuscia.secretflow --no-headers -o name",
            out=r"\A([a-z]+\.kuscia\.secretflow\n){22}\Z",
        ),
        Command(
            "api-resources categories",
            "api-resources --categories=all -o name",
            out=r"^deployments\.apps$",
            since="1.22",
        ),
        Command("explain", "explain pod", out=(r"KIND: +Pod", r"spec\s+<(PodSpec|Object)>")),
        Command("explain field", "explain pod.spec.containers", out=(r"image\s+<string>", r"-required-")),
        Command(
            "explain recursive", "explain deployment --recursive", out=r"terminationGracePeriodSeconds\s+<integer>"
        ),
        Command("explain api-version", "explain hpa --api-version=autoscaling/v1", out=r"VERSION: +(autoscaling/)?v1"),
        Command("explain kuscia", "explain kj.spec", out=(r"KIND: +KusciaJob", r"maxParallelism\s+<integer>")),
        Command(
            "explain openapi v2",
            "explain pod.spec --output=plaintext-openapiv2",
            out=r"nodeName\s+<string>",
            since="1.27",
        ),
        Command("explain nothing", "explain pod.spec.nope", rc=1, err=r'field "nope" does not exist'),
        Command("explain no kind", "explain nopes", rc=1, err=r"the server doesn't have a resource type"),
        Command("raw readyz", "get --raw /readyz", out=r"\Aok\n?\Z"),
        Command("raw version", "get --raw /version", check=lambda v: v["major"] == "1"),
        Command("raw metrics", "get --raw /metrics", out=r"^apiserver_request_total\{"),
        Command(
            "raw openapi", "get --raw /openapi/v3", check=lambda d: "apis/kuscia.secretflow/v1alpha1" in d["paths"]
        ),
        Command(
            "register",
            "apply -f registration.yaml",
            out="apiservice.apiregistration.k8s.io/v1.down.example.com created",
        ),
        Command("register again", "apply -f registration.yaml", out="unchanged"),
        Command(
            "registered",
            "get apiservice v1.down.example.com",
            out=r"^v1.down.example.com\s+default/nobody\s+False \(ServiceNotFound\)",
        ),
        Command("others unharmed", "get deployments", err="No resources found"),
        Command("its group only", "get --raw /apis/down.example.com/v1", rc=1, err="ServiceNotFound"),
        Command("deregister", "delete apiservice v1.down.example.com", out="deleted"),
        Command("raw missing", "get --raw /apis/no.such/v1", rc=1, err="NotFound"),
        Command("unknown kind", "get nopes", rc=1, err=r"the server doesn't have a resource type"),
        Command("config view", "config view -o json", check=lambda c: c["current-context"] and c["users"]),
        Command("config get-contexts", "config get-contexts", out=r"^\* .*conformance"),
        Command("config get-clusters", "config get-clusters", out="conformance"),
        Command("config set-context", "config set-context other --cluster=conformance --namespace=x", out="created"),
        Command("config contexts names", "config get-contexts -o name", out="^other$"),
        Command("config delete-context", "config delete-context other", out="deleted context other"),
        Command("config current-context", "config current-context", out="conformance"),
    ),
    files={"registration.yaml": _REGISTRATION},
)

_SHORT = (
    *(Command(f"get {short}", f"get {short} -A", err="No resources found") for short in KUSCIA_SHORT_NAMES),
    Command("get aimg", "get aimg", out=r"^sample "),
)

_DOMAIN = """
apiVersion: kuscia.secretflow/v1alpha1
kind: Domain
metadata: {name: carol}
spec: {cert: "", role: partner, authCenter: {authenticationType: Token, tokenGenMethod: RSA-GEN}}
"""
_ROUTE = """
apiVersion: kuscia.secretflow/v1alpha1
kind: ClusterDomainRoute
metadata: {name: alice-carol}
spec:
  source: alice
  destination: carol
  authenticationType: Token
  tokenConfig: {tokenGenMethod: RSA-GEN}
  endpoint: {host: carol.example, ports: [{name: http, port: 1080, protocol: HTTP}]}
"""
_JOB = """
apiVersion: kuscia.secretflow/v1alpha1
kind: KusciaJob
metadata: {name: psi}
spec:
  initiator: alice
  maxParallelism: 2
  scheduleMode: BestEffort
  tasks:
    - alias: psi
      appImage: secretflow-image
      taskID: psi-1
      priority: 100
      taskInputConfig: '{}'
      parties: [{domainID: alice}, {domainID: carol, role: guest}]
"""

KUSCIA = Chapter(
    "kuscia",
    (
        *_SHORT,
        Command("apply domain", "apply -f domain.yaml", out="domain.kuscia.secretflow/carol created"),
        Command("get domain", "get domain carol", out=r"^carol\s+\d+s"),
        Command("apply route", "apply --server-side -f route.yaml", out="clusterdomainroute.kuscia.secretflow/alice-carol serverside-applied"),
        Command(
            "route columns",
            "get cdr",
            out=(r"^NAME\s+SOURCE\s+DESTINATION\s+HOST\s+AUTHENTICATION\s+READY", r"^alice-carol\s+alice\s+carol\s+carol.example\s+Token"),
        ),
        Command("route enum", "patch cdr alice-carol --type=merge -p '{\"spec\":{\"authenticationType\":\"Magic\"}}'", rc=1, err=r'spec\.authenticationType: Unsupported value: "Magic"'),
        Command("create job", "create -f job.yaml", out="kusciajob.kuscia.secretflow/psi created"),
        Command("job columns", "get kj", out=r"^NAME\s+STARTTIME\s+COMPLETIONTIME\s+LASTRECONCILETIME\s+PHASE"),
        Command("job status", "patch kj psi --subresource=status --type=merge -p '{\"status\":{\"phase\":\"Running\"}}'", out="patched", since="1.24"),
        Command("job phase", "get kj psi", out=r"^psi .*Running$", since="1.24"),
        Command("job keeps its status", "patch kj psi --type=merge -p '{\"status\":{\"phase\":\"Failed\"}}' -o json", check=lambda j: j.get("status", {}).get("phase") != "Failed"),
        Command("describe job", "describe kj psi", out=(r"^Kind: +KusciaJob", r"Max Parallelism: +2")),
        Command("job required", "create -f badjob.yaml", rc=1, err=r"KusciaJob.*(spec\.tasks\[0\]\.parties: Required value|missing required field)"),
        Command("delete job", "delete kj psi", out=r'"psi" deleted'),
        Command("delete several", "delete cdr/alice-carol domain/carol", out=(r'"alice-carol" deleted', r'"carol" deleted')),
    ),
    files={
        "domain.yaml": _DOMAIN,
        "route.yaml": _ROUTE,
        "job.yaml": _JOB,
        "badjob.yaml": _JOB.replace("name: psi}", "name: bad}").replace("      parties: [{domainID: alice}, {domainID: carol, role: guest}]\n", ""),
    },
)  # fmt: skip
