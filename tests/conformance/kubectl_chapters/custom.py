"""A user's own definition, from its first apply to its end: schema, CEL rules, versions, status, scale, columns."""

from __future__ import annotations

from kubectl_steps import Chapter, Command

_VERSION = """
  - name: %s
    served: true
    storage: %s
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Colour, type: string, jsonPath: .spec.colour, priority: 1}
    - {name: Phase, type: string, jsonPath: .status.phase}
    schema:
      openAPIV3Schema:
        type: object
        description: A thing with a size.
        required: [spec]
        properties:
          spec:
            type: object
            required: [size]
            x-kubernetes-validations:
            - {rule: "self.size <= self.max", message: "size may not be above max"}
            - {rule: "self.colour != 'red' || self.size > 1", messageExpression: "'red needs more than %%d'.format([self.size])"}
            properties:
              size: {type: integer, minimum: 1, description: How large it is.}
              max: {type: integer, default: 10}
              replicas: {type: integer, default: 1}
              colour: {type: string, enum: [red, green], default: green}
              owner:
                type: string
                maxLength: 20
                pattern: "^[a-z]+$"
                x-kubernetes-validations: [{rule: "self == oldSelf", message: "owner is immutable"}]
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, port: {type: integer, default: 80}}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status:
            type: object
            properties: {phase: {type: string}, replicas: {type: integer}, selector: {type: string}}
"""
_CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.lab.example}
spec:
  group: lab.example
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd], categories: [all, toys]}
  versions:"""
_ONE_VERSION = _CRD + _VERSION % ("v1", "true")
_TWO_VERSIONS = _ONE_VERSION + _VERSION % ("v2", "false")


def _widget(name: str, spec: str, version: str = "v1") -> str:
    return f"apiVersion: lab.example/{version}\nkind: Widget\nmetadata: {{name: {name}}}\nspec: {spec}\n"


CUSTOM = Chapter(
    "custom",
    (
        Command("before", "get widgets", rc=1, err="the server doesn't have a resource type"),
        Command("define", "apply -f crd.yaml", out="customresourcedefinition.apiextensions.k8s.io/widgets.lab.example created"),
        Command("established", "wait --for=condition=Established crd/widgets.lab.example --timeout=10s", out="condition met"),
        Command("names accepted", "wait --for=condition=NamesAccepted crd/widgets.lab.example --timeout=10s", out="met"),
        Command("definitions", "get crd widgets.lab.example", out=r"^widgets\.lab\.example\s+20\d\d-"),
        Command("api-resources", "api-resources --api-group=lab.example", out=r"^widgets\s+wd\s+lab.example/v1\s+true\s+Widget"),
        Command("explain", "explain widget.spec", out=(r"How large it is", r"size\s+<integer>")),
        Command("create", "apply -f w1.yaml", out="widget.lab.example/w1 created"),
        Command("defaults", "get widget w1 -o json", check=lambda w: w["spec"]["colour"] == "green" and w["spec"]["max"] == 10),
        Command("columns", "get wd", out=(r"^NAME\s+SIZE\s+PHASE$", r"^w1\s+3\s*$")),
        Command("wide columns", "get widgets.lab.example -o wide", out=(r"^NAME\s+SIZE\s+COLOUR\s+PHASE", r"^w1\s+3\s+green")),
        Command("category", "get toys", out=r"w1\s+3"),
        Command("unchanged", "apply -f w1.yaml", out="unchanged"),
        Command("configured", "apply -f w1b.yaml", out="configured"),
        Command("too large", "apply -f large.yaml", rc=1, err=r'The Widget "large" is invalid: (\* )?spec: Invalid value: .*size may not be above max'),
        Command("message expression", "apply -f red.yaml", rc=1, err=r"red needs more than 1"),
        Command("minimum", "apply -f small.yaml", rc=1, err=r"spec\.size: Invalid value: 0: spec\.size in body should be greater than or equal to 1"),
        Command("required", "apply -f none.yaml", rc=1, err=r"spec\.size: Required value|missing required field .size."),
        Command("enum", "apply -f blue.yaml", rc=1, err=r'spec\.colour: Unsupported value: "blue": supported values: "red", "green"'),
        Command("type", "apply -f text.yaml --validate=false", rc=1, err=r"spec\.size: Invalid value: \"string\": spec\.size in body must be of type integer"),
        Command("pattern", "apply -f pattern.yaml", rc=1, err=r"spec\.owner: Invalid value: \"Bob\": spec\.owner in body should match"),
        Command("map list", "apply -f twice.yaml", rc=1, err=r'spec\.ports\[1\]: Duplicate value'),
        Command("transition rule", "patch wd w1 --type=merge -p '{\"spec\":{\"owner\":\"eve\"}}'", rc=1, err=r"spec\.owner: Invalid value: .*owner is immutable"),
        Command("unknown field strict", "apply -f unknown.yaml", rc=1, err=r'unknown field "spec\.nope"|unknown field "nope"'),
        Command("unknown field warned", "apply -f unknown.yaml --validate=warn", out="created", err=r'[Ww]arning: unknown field "spec\.nope"', since="1.25"),
        Command("unknown field pruned", "apply -f unknown2.yaml --validate=false -o json", check=lambda w: "nope" not in w["spec"] and w["spec"]["free"] == {"any": {"thing": 1}} and w["spec"]["ports"] == [{"name": "a", "port": 80}]),
        Command("strategic refused", "patch wd w1 -p '{\"spec\":{\"size\":4}}'", rc=1, err="strategic merge patch is not supported|415|UnsupportedMediaType|unsupported|application/strategic-merge-patch"),
        Command("patch json", "patch wd w1 --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/size\",\"value\":4}]'", out="patched"),
        Command("generation", "get wd w1 -o 'jsonpath={.metadata.generation}'", out=r"\A3\Z"),
        Command("status", "patch wd w1 --type=merge --subresource=status -p '{\"status\":{\"phase\":\"Ready\",\"replicas\":1,\"selector\":\"app=w\"},\"spec\":{\"size\":9}}' -o json", since="1.24", check=lambda w: w["status"]["phase"] == "Ready" and w["spec"]["size"] == 4 and w["metadata"]["generation"] == 3),
        Command("status column", "get wd w1", out=r"^w1\s+4\s+Ready", since="1.24"),
        Command("wait jsonpath", "wait '--for=jsonpath={.status.phase}=Ready' wd/w1 --timeout=10s", out="met", since="1.24"),
        Command("status by the main door", "patch wd w1 --type=merge -p '{\"status\":{\"phase\":\"Lost\"}}' -o json", check=lambda w: w.get("status", {}).get("phase") != "Lost"),
        Command("scale", "scale wd/w1 --replicas=5", out="widget.lab.example/w1 scaled"),
        Command("scaled", "get wd w1 -o 'jsonpath={.spec.replicas}'", out=r"\A5\Z"),
        Command("get scale", "get wd w1 --subresource=scale -o json", check=lambda s: s["spec"]["replicas"] == 5 and s["status"]["selector"] == "app=w", since="1.24"),
        Command("autoscale", "autoscale wd w1 --max=3 --dry-run=server", out="autoscaled", since="1.22"),
        Command("server side", "apply --server-side -f w3.yaml", out="serverside-applied"),
        Command("server side list", "apply --server-side -f w3ports.yaml --field-manager=ports -o json", check=lambda w: [p["name"] for p in w["spec"]["ports"]] == ["web", "admin"]),
        Command("server side conflict", "apply --server-side -f w3conflict.yaml --field-manager=other", rc=1, err=(r"Apply failed with 2 conflicts", r"^- \.spec\.size")),
        Command("describe", "describe wd w1", out=(r"^Kind: +Widget", r"Size: +4")),
        Command("edit", "edit wd w1", env={"KUBE_EDITOR": "sed -i 's/size: 4/size: 6/'"}, out="edited"),
        Command("label", "label wd w1 team=red", out="labeled"),
        Command("select", "get wd -l team=red -o name", out=r"\Awidget.lab.example/w1\n\Z"),
        Command("field selector", "get wd --field-selector=metadata.name=w3 -o name", out=r"\Awidget.lab.example/w3\n\Z"),
        Command("second version", "apply -f crd2.yaml", out="configured"),
        Command("read in v2", "get widgets.v2.lab.example w1 -o json", check=lambda w: w["apiVersion"] == "lab.example/v2" and w["spec"]["size"] == 6),
        Command("write in v2", "apply -f v2.yaml", out="widget.lab.example/second created"),
        Command("stored as v1", "get widgets.v1.lab.example second -o json", check=lambda w: w["apiVersion"] == "lab.example/v1"),
        Command("bad rule", "apply -f badrule.yaml", rc=1, err=r"x-kubernetes-validations\[0\]\.rule: Invalid value"),
        Command("bad schema", "apply -f badschema.yaml", rc=1, err=r"openAPIV3Schema.*(Required|Unsupported|Invalid|Forbidden)"),
        Command("wrong name", "apply -f wrongname.yaml", rc=1, err=r"metadata\.name: Invalid value.*must be spec.names.plural"),
        Command("delete one", "delete wd w1", out='widget.lab.example "w1" deleted'),
        Command("delete all", "delete wd --all", out='"second" deleted'),
        Command("one more", "apply -f w3.yaml", out="created"),
        Command("delete the definition", "delete crd widgets.lab.example --timeout=20s", out="deleted"),
        Command("after", "get widgets", rc=1, err="the server doesn't have a resource type|could not find"),
    ),
    files={
        "crd.yaml": _ONE_VERSION,
        "crd2.yaml": _TWO_VERSIONS,
        "w1.yaml": _widget("w1", "{size: 3, owner: bob, ports: [{name: web, port: 80}]}"),
        "w1b.yaml": _widget("w1", "{size: 2, owner: bob, ports: [{name: web, port: 80}]}"),
        "w3.yaml": _widget("w3", "{size: 3, ports: [{name: web, port: 80}]}"),
        "w3ports.yaml": _widget("w3", "{size: 3, ports: [{name: admin, port: 81}]}"),
        "w3conflict.yaml": _widget("w3", "{size: 5}"),
        "large.yaml": _widget("large", "{size: 11}"),
        "red.yaml": _widget("red", "{size: 1, colour: red}"),
        "small.yaml": _widget("small", "{size: 0}"),
        "none.yaml": _widget("none", "{}"),
        "blue.yaml": _widget("blue", "{size: 2, colour: blue}"),
        "text.yaml": _widget("text", "{size: large}"),
        "pattern.yaml": _widget("pattern", "{size: 2, owner: Bob}"),
        "twice.yaml": _widget("twice", "{size: 2, ports: [{name: a}, {name: a}]}"),
        "unknown.yaml": _widget("unknown", "{size: 2, nope: 1}"),
        "unknown2.yaml": _widget("unknown2", "{size: 2, nope: 1, ports: [{name: a}], free: {any: {thing: 1}}}"),
        "v2.yaml": _widget("second", "{size: 2}", "v2"),
        "badrule.yaml": _ONE_VERSION.replace("widgets", "gadgets").replace("Widget", "Gadget").replace("self.size <= self.max", "self.sise <"),
        "badschema.yaml": _ONE_VERSION.replace("widgets", "gadgets").replace("Widget", "Gadget").replace("owner:\n                type: string", "owner:\n                type: strange"),
        "wrongname.yaml": _ONE_VERSION.replace("name: widgets.lab.example", "name: gadgets.lab.example"),
    },
)  # fmt: skip
