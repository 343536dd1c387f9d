"""get, describe, apply, delete and the small commands against the real API server, over HTTP."""

from __future__ import annotations

import json
import threading
import time

import pytest
import yaml

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.cli.example}
spec:
  group: cli.example
  scope: Namespaced
  names: {plural: PLURAL, singular: KIND, kind: KIND}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {low: {type: integer}, high: {type: integer}}
            x-kubernetes-validations: [{rule: self.low <= self.high, message: low is above high}]
"""


def config_map(name: str, labels: str = "{}", **data: str) -> str:
    return f"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {labels}}}\ndata: {json.dumps(data)}\n"


def namespace_of(live) -> str:
    document = yaml.safe_load((live.folder / "live-kubeconfig").read_text())
    return document["contexts"][0]["context"]["namespace"]


# apply


def test_apply_says_what_became_of_each_object(live):
    first = live("apply", "-f", "-", stdin=config_map("a", k="1") + config_map("b"))
    assert (first.code, first.lines) == (0, ["configmap/a created", "configmap/b created"])
    again = live("apply", "-f", "-", stdin=config_map("a", k="2") + config_map("b"))
    assert again.lines == ["configmap/a configured", "configmap/b unchanged"]


def test_dry_run_tells_and_keeps_nothing(live):
    live("apply", "-f", "-", stdin=config_map("a", k="1"))
    text = config_map("a", k="2") + config_map("new")
    told = live("apply", "-f", "-", "--dry-run", stdin=text)
    assert told.lines == ["configmap/a configured (server dry run)", "configmap/new created (server dry run)"]
    same = live("apply", "-f", "-", "--dry-run=server", stdin=config_map("a", k="1"))
    assert same.lines == ["configmap/a unchanged (server dry run)"]
    assert yaml.safe_load(live("get", "cm", "a", "-o", "yaml").out)["data"] == {"k": "1"}
    assert live("get", "cm", "new").code == 1


def test_apply_goes_on_after_a_refusal_and_lists_every_field(live):
    bad = "---\napiVersion: v1\nkind: Service\nmetadata: {name: BAD}\nspec: {ports: [{port: 0}]}\n"
    told = live("apply", "-f", "-", stdin=bad + config_map("fine"))
    assert told.code == 1
    assert told.lines == ["configmap/fine created"]
    head, *fields = told.err.splitlines()
    assert head.startswith('Error from server (Invalid): Service "BAD" is invalid')
    assert any(line.startswith("  metadata.name: ") for line in fields)
    assert any(line.startswith("  spec.ports[0].port: ") for line in fields)
    assert fields[-1] == "  (from standard input, document 1)"


def test_apply_meets_fields_of_others(live):
    live("apply", "-f", "-", "--field-manager", "other", stdin=config_map("a", k="1"))
    refused = live("apply", "-f", "-", stdin=config_map("a", k="2"))
    assert refused.code == 1
    assert 'conflict with "other"' in refused.err
    assert "--force-conflicts" in refused.err
    assert live("apply", "-f", "-", "--force-conflicts", stdin=config_map("a", k="2")).lines == [
        "configmap/a configured"
    ]


def test_a_new_type_and_its_objects_in_one_file(live):
    crd = CRD.replace("PLURAL", "ranges").replace("KIND", "range")
    good = "---\napiVersion: cli.example/v1\nkind: range\nmetadata: {name: good}\nspec: {low: 1, high: 2}\n"
    (live.folder / "types.yaml").write_text(crd + good + good.replace("good", "bad").replace("low: 1", "low: 3"))
    told = live("apply", "-f", "types.yaml")
    assert told.lines[-1] == "range.cli.example/good created"
    assert told.code == 1
    assert "low is above high" in told.err
    assert "(from types.yaml, document 3)" in told.err
    assert live("delete", "crd", "ranges.cli.example", "--no-wait").code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: x/v1\nkind: Frob\nmetadata: {name: a}\n", 'no matches for kind "Frob" in version "x/v1"'),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n", "metadata.name is missing"),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: nowhere}\n",
            'namespaces "nowhere" not found',
        ),
    ],
    ids=["unknown-kind", "no-name", "no-namespace"],
)
def test_apply_of_what_cannot_be(live, text, said):
    told = live("apply", "-f", "-", stdin=text)
    assert told.code == 1
    assert said in told.err
    assert "Traceback" not in told.err


def test_two_namespaces_at_once_are_refused(live):
    text = config_map("a").replace("name: a", "name: a, namespace: default")
    told = live("apply", "-n", "other", "-f", "-", stdin=text)
    assert told.code == 1
    assert 'says namespace "default" but -n says "other"' in told.err


def test_apply_prints_the_objects_when_asked(live):
    one = live("apply", "-f", "-", "-o", "json", stdin=config_map("a", k="1"))
    assert json.loads(one.out)["data"] == {"k": "1"}
    two = live("apply", "-f", "-", "-o", "yaml", stdin=config_map("a") + config_map("b"))
    assert [item["metadata"]["name"] for item in yaml.safe_load(two.out)["items"]] == ["a", "b"]
    assert live("apply", "-f", "-", "-o", "name", stdin=config_map("a")).out == "configmap/a\n"


# get


@pytest.fixture
def three(live):
    text = config_map("a", "{app: web, tier: x}", k="1") + config_map("b", "{app: web}") + config_map("c", k="1", l="2")
    assert live("apply", "-f", "-", stdin=text).code == 0
    return live


def test_get_prints_the_servers_columns(three):
    header, *rows = three("get", "cm").lines
    assert header.split() == ["NAME", "DATA", "AGE"]
    assert [row.split()[:2] for row in rows] == [["a", "1"], ["b", "0"], ["c", "2"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("get cm -l app=web", ["a", "b"]),
        ("get cm -l app=web,tier!=x", ["b"]),
        ("get cm --field-selector metadata.name=c", ["c"]),
        ("get cm c a", ["c", "a"]),
        ("get cm/c cm/a", ["c", "a"]),
        ("get cm --sort-by .data.k", ["b", "a", "c"]),
        ("get cm --sort-by {.metadata.name}", ["a", "b", "c"]),
    ],
)
def test_get_chooses_and_orders(three, words, expected):
    assert [line.split()[0] for line in three(*words.split(), "--no-headers").lines] == expected
    named = three(*words.split(), "-o", "name")
    assert named.lines == [f"configmap/{name}" for name in expected]


def test_get_with_labels(three):
    header, first, *_ = three("get", "cm", "--show-labels", "-L", "app,tier").lines
    assert header.split() == ["NAME", "DATA", "AGE", "APP", "TIER", "LABELS"]
    assert first.split()[3:] == ["web", "x", "app=web,tier=x"]


def test_get_in_all_namespaces_shows_them(three):
    header, *rows = three("get", "cm", "-A", "-l", "app=web").lines
    assert header.split()[0] == "NAMESPACE"
    assert [namespace_of(three), "a"] in [row.split()[:2] for row in rows]


def test_get_of_several_types_names_them(three):
    told = three("get", "cm,ns", "-A").out
    first, second = told.split("\n\n")
    assert "configmap/a" in first
    assert "namespace/default" in second
    assert "NAMESPACE" not in second


def test_get_whole_objects(three):
    one = yaml.safe_load(three("get", "cm", "a", "-o", "yaml").out)
    assert (one["kind"], one["data"]) == ("ConfigMap", {"k": "1"})
    assert "managedFields" not in one["metadata"]
    assert "managedFields" in three("get", "cm", "a", "-o", "yaml", "--show-managed-fields").out
    listed = json.loads(three("get", "cm", "-o", "json", "-l", "app=web").out)
    assert (listed["kind"], [item["kind"] for item in listed["items"]]) == ("List", ["ConfigMap", "ConfigMap"])


def test_a_long_list_comes_in_pages(live):
    text = "".join(config_map(f"n{i:04}") for i in range(520))
    assert live("apply", "-f", "-", "-o", "name", stdin=text).code == 0
    assert len(live("get", "cm", "--no-headers").lines) == 520
    assert len(live("get", "cm", "-o", "name").lines) == 520


def test_missing_objects_fail_and_the_others_are_shown(three):
    told = three("get", "cm", "a", "nope", "--no-headers")
    assert told.code == 1
    assert [line.split()[0] for line in told.lines] == ["a"]
    assert told.err == 'Error from server (NotFound): configmaps "nope" not found\n'
    quiet = three("get", "cm", "nope", "--ignore-not-found")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert three("get", "cm", "nope", "-o", "yaml").out == ""


def test_nothing_there_is_no_failure(live):
    told = live("get", "secrets")
    assert (told.code, told.out) == (0, "")
    assert told.err == f"No resources found in {namespace_of(live)} namespace.\n"
    assert live("get", "pv").err == "No resources found\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("get frobs", 1, 'the server doesn\'t have a resource type "frobs"; `coterie api-resources`'),
        ("get", 2, "say which type of object is meant"),
        ("get cm a -l x=y", 2, "names and selectors cannot be used together"),
        ("get cm a -A", 2, "use -n instead of -A"),
        ("get cm,svc -w", 2, "--watch follows one type"),
        ("get cm -l =", 1, "Error from server (BadRequest)"),
    ],
)
def test_get_of_what_cannot_be(live, words, code, said):
    told = live(*words.split())
    assert (told.code, told.out) == (code, "")
    assert said in told.err
    assert told.err.count("\n") == 1


# describe


def test_describe_tells_an_object_with_its_events(three):
    uid = json.loads(three("get", "cm", "a", "-o", "json").out)["metadata"]["uid"]
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "a.1"}, "type": "Normal", "reason": "Noted",
        "message": "somebody looked", "involvedObject": {"kind": "ConfigMap", "name": "a", "namespace": namespace_of(three), "uid": uid},
    }  # fmt: skip
    assert three("apply", "-f", "-", stdin=json.dumps(event)).code == 0
    told = three("describe", "cm/a")
    assert told.out.startswith("Name:         a\n")
    assert "somebody looked" in told.out
    assert "somebody looked" not in three("describe", "cm/a", "--no-events").out
    assert "somebody looked" not in three("describe", "cm", "b").out


def test_describe_by_prefix_selector_and_all(live):
    live("apply", "-f", "-", stdin=config_map("web-1", "{app: web}") + config_map("web-2") + config_map("db"))
    assert live("describe", "cm", "web").out.count("Name:  ") == 2
    assert live("describe", "cm", "-l", "app=web").out.count("Name:  ") == 1
    assert live("describe", "cm").out.count("Name:  ") == 3
    missing = live("describe", "cm", "zzz")
    assert (missing.code, missing.err) == (1, 'Error from server (NotFound): configmaps "zzz" not found\n')


# delete


def test_delete_by_name_and_again(three):
    told = three("delete", "cm", "a", "b")
    assert (told.code, told.lines) == (0, ['configmap "a" deleted', 'configmap "b" deleted'])
    again = three("delete", "cm/a")
    assert (again.code, again.err) == (1, 'Error from server (NotFound): configmaps "a" not found\n')
    assert three("delete", "cm/a", "--ignore-not-found").code == 0


def test_delete_by_label_and_all(three):
    assert three("delete", "cm", "-l", "app=web", "-o", "name").lines == ["configmap/a", "configmap/b"]
    assert three("delete", "cm", "--all").lines == ['configmap "c" deleted']
    assert three("delete", "cm", "--all").err == "No resources found\n"


def test_delete_what_a_file_names_last_first(live):
    (live.folder / "f.yaml").write_text(config_map("a") + config_map("b"))
    live("apply", "-f", "f.yaml")
    assert live("delete", "-f", "f.yaml", "--dry-run").lines[0] == 'configmap "b" deleted (server dry run)'
    assert live("delete", "-f", "f.yaml").lines == ['configmap "b" deleted', 'configmap "a" deleted']


def test_delete_waits_and_says_for_what(live):
    freed = config_map("held", "{a: b}")
    text = freed.replace("name: held", "name: held, finalizers: [cli.example/hold]")
    assert live("apply", "-f", "-", stdin=text).code == 0
    told = live("delete", "cm", "held", "--timeout", "0.3")
    assert told.code == 1
    assert 'configmap "held" is still there after 0.3 s: it waits for the finalizers cli.example/hold' in told.err
    assert live("delete", "cm", "held", "--wait=false").code == 0
    assert live("apply", "-f", "-", stdin=freed).code == 0
    assert live("get", "cm", "held").code == 1


def test_delete_ends_when_the_last_finalizer_goes(live):
    freed = config_map("freed", "{a: b}")
    text = freed.replace("name: freed", "name: freed, finalizers: [cli.example/hold]")
    assert live("apply", "-f", "-", stdin=text).code == 0

    def free() -> None:
        for _ in range(500):
            if "deletionTimestamp" in live("get", "cm", "freed", "-o", "json").out:
                break
            time.sleep(0.02)
        live("apply", "-f", "-", stdin=freed)

    helper = threading.Thread(target=free)
    helper.start()
    assert live("delete", "cm", "freed", "--timeout", "30s").code == 0
    helper.join()
    assert live("get", "cm", "freed").code == 1


# the small ones


def test_api_resources(live):
    header, *rows = live("api-resources", "--api-group", "kuscia.secretflow").lines
    assert header.split() == ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]
    assert len(rows) == 22
    assert "kusciajobs kj kuscia.secretflow/v1alpha1 true KusciaJob" in [" ".join(row.split()) for row in rows]
    assert "VERBS" in live("api-resources", "-o", "wide").lines[0]
    names = live("api-resources", "--namespaced=false", "-o", "name").lines
    assert "namespaces" in names
    assert "pods" not in names
    assert {"name", "kind", "shortNames"} <= json.loads(live("api-resources", "-o", "json").out)[0].keys()


def test_version_of_both(live):
    assert [line.split()[0] for line in live("version").lines] == ["Client:", "Server:"]
    assert json.loads(live("version", "-o", "json").out)["server"]["major"] == "1"
    assert "Server" not in live("version", "--client").out


def test_status(live):
    told = live("status")
    assert told.code == 0
    assert [line.split()[0] for line in told.lines[:4]] == ["Server:", "Health:", "Version:", "Namespaces:"]
    value = json.loads(live("status", "-o", "json").out)
    assert value["ready"] is True
    assert value["objects"]["namespaces"]["total"] >= 5


def test_bad_credentials_are_told(live, server):
    file = live.folder / "bad"
    file.write_text((live.folder / "live-kubeconfig").read_text().replace("a-token-for-tests", "wrong"))
    told = live("--kubeconfig", str(file), "get", "cm")
    assert told.code == 1
    assert "the credentials of this kubeconfig are not accepted" in told.err
