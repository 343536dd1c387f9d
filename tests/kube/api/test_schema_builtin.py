"""The built-in kinds: what is loaded, what nodes say, and reading objects as Go does."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.resources import BUILTIN
from coterie.kube.api.schema import builtin
from coterie.kube.api.schema.decode import TOO_DEEP, check_types, decode_check
from coterie.kube.api.schema.node import Schema

SCHEMAS = builtin.load()
POD = SCHEMAS["v1/Pod"]


def at(schema: Schema, *path: str) -> Schema:
    """The node at a path; `*` steps into items or map values."""
    for step in path:
        found = (schema.items or schema.additional) if step == "*" else schema.properties[step]
        assert found is not None
        schema = found
    return schema


# -- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", BUILTIN, ids=lambda resource: resource.schema_name)
def test_every_kind_has_a_schema(resource: Any) -> None:
    schema = SCHEMAS[resource.schema_name]
    assert schema.type == "object"
    assert {"apiVersion", "kind"} <= set(schema.properties)


@pytest.mark.parametrize(
    "name",
    ["autoscaling/v1/Scale", "policy/v1/Eviction", "authentication.k8s.io/v1/TokenRequest", "v1/Binding",
     "v1/DeleteOptions", "meta.k8s.io/v1/DeleteOptions", "v1/Status"],
)  # fmt: skip
def test_kinds_of_subresources_and_options_are_known(name: str) -> None:
    assert SCHEMAS.get(name) is not None


def test_loading_does_not_import_the_package_of_the_schemas() -> None:
    program = "import sys; from coterie.kube.api.schema import builtin; builtin.load(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "coterie.kube.api.schema.builtin" in done.stdout.split()
    assert "kubernetes_validate" not in done.stdout.split()


def test_rare_kinds_are_compiled_when_they_are_asked_for() -> None:
    schemas = builtin.load.__wrapped__()
    assert not schemas.compiled
    assert schemas["v1/Pod"].type == "object"
    assert {"v1/ConfigMap", "policy/v1/Eviction", "apps/v1/Deployment"} <= set(schemas.compiled)
    assert not {name for name in schemas.compiled if name.startswith(("storage.k8s.io", "autoscaling/v2"))}
    stored = schemas["storage.k8s.io/v1/StorageClass"]
    assert stored.properties["metadata"] is schemas.object_meta, "nodes are shared with what was compiled before"
    assert "storage.k8s.io/v1/StorageClass" in schemas.compiled
    assert schemas.get("lab.io/v1/Widget") is None


def test_recursive_definitions_contain_themselves() -> None:
    props = at(
        SCHEMAS["apiextensions.k8s.io/v1/CustomResourceDefinition"],
        "spec",
        "versions",
        "*",
        "schema",
        "openAPIV3Schema",
    )
    assert at(props, "properties", "*") is props
    assert at(props, "default").preserve_unknown


def test_merge_rules_are_read() -> None:
    containers = at(POD, "spec", "containers")
    assert (containers.list_type, containers.list_keys) == ("map", ("name",))
    assert (containers.patch_strategy, containers.patch_merge_key) == ({"merge"}, "name")
    volumes = at(POD, "spec", "volumes")
    assert volumes.patch_strategy == {"merge", "retainKeys"}
    assert at(SCHEMAS["apps/v1/Deployment"], "spec", "strategy").patch_strategy == {"retainKeys"}
    assert at(POD, "metadata", "finalizers").list_type == "set"
    assert at(POD, "spec", "nodeSelector").atomic_map
    args = at(POD, "spec", "containers", "*", "args")
    assert (args.list_type, args.patch_strategy) == ("atomic", frozenset())


def test_special_definitions() -> None:
    assert at(POD, "spec", "containers", "*", "resources", "limits", "*").quantity
    assert at(SCHEMAS["v1/Service"], "spec", "ports", "*", "targetPort").int_or_string
    assert at(POD, "metadata", "managedFields", "*", "fieldsV1").preserve_unknown
    assert at(POD, "metadata", "creationTimestamp").format == "date-time"
    assert at(SCHEMAS["v1/Secret"], "data", "*").format == "byte"
    assert SCHEMAS.object_meta is at(POD, "metadata")


# -- decoding ---------------------------------------------------------------------------------------------------------


def pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", **spec.pop("container", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


def test_a_clean_object_is_left_alone() -> None:
    given_pod = pod(
        container={
            "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
            "livenessProbe": {"httpGet": {"port": "http"}},
        },
        nodeSelector={"a": "b"},
    )
    before = copy.deepcopy(given_pod)
    assert decode_check(given_pod, POD) == ([], [])
    assert given_pod == before


@pytest.mark.parametrize(
    ("given_pod", "unknown"),
    [
        (pod(foo=1), ["spec.foo"]),
        (pod(container={"imagee": "x"}), ["spec.containers[0].imagee"]),
        (pod(container={"env": [{"name": "a"}, {"nam": "b"}]}), ["spec.containers[0].env[1].nam"]),
        ({**pod(), "extra": None}, ["extra"]),
        (pod(foo={"bar": 1}, baz=[]), ["spec.foo", "spec.baz"]),
    ],
)
def test_unknown_fields_are_named_and_removed(given_pod: dict[str, Any], unknown: list[str]) -> None:
    assert decode_check(given_pod, POD) == ([], unknown)
    assert decode_check(given_pod, POD) == ([], [])


@pytest.mark.parametrize(
    ("given_pod", "error"),
    [
        (pod(terminationGracePeriodSeconds="x"), "json: cannot unmarshal string into Go struct field Pod.spec.terminationGracePeriodSeconds of type int64"),
        (pod(priority=99999999999), "json: cannot unmarshal number 99999999999 into Go struct field Pod.spec.priority of type int32"),
        (pod(priority=1.5), "json: cannot unmarshal number 1.5 into Go struct field Pod.spec.priority of type int32"),
        (pod(priority=True), "json: cannot unmarshal bool into Go struct field Pod.spec.priority of type int32"),
        (pod(hostname=5), "json: cannot unmarshal number into Go struct field Pod.spec.hostname of type string"),
        (pod(hostNetwork="yes"), "json: cannot unmarshal string into Go struct field Pod.spec.hostNetwork of type bool"),
        (pod(containers={}), "json: cannot unmarshal object into Go struct field Pod.spec.containers of type array"),
        (pod(nodeSelector=[]), "json: cannot unmarshal array into Go struct field Pod.spec.nodeSelector of type object"),
        (pod(nodeSelector={"a": 1}), "json: cannot unmarshal number into Go struct field Pod.spec.nodeSelector of type string"),
        (pod(container={"args": ["a", 1]}), "json: cannot unmarshal number into Go struct field Pod.spec.containers[0].args[1] of type string"),
        (pod(container={"resources": {"limits": {"cpu": "lots"}}}), "quantities must match the regular expression"),
        (pod(container={"resources": {"limits": {"cpu": {}}}}), "of type resource.Quantity"),
        (pod(container={"livenessProbe": {"httpGet": {"port": 1.5}}}), "of type intstr.IntOrString"),
        ({**pod(), "metadata": {"creationTimestamp": "now"}}, 'parsing time "now"'),
        ({**pod(), "metadata": {"creationTimestamp": "2023-02-30T00:00:00Z"}}, 'parsing time "2023-02-30T00:00:00Z"'),
        ({**pod(), "metadata": {"creationTimestamp": 7}}, "of type time.Time"),
        ({**pod(), "spec": "x"}, "json: cannot unmarshal string into Go struct field Pod.spec of type object"),
    ],
)  # fmt: skip
def test_types_are_checked_as_the_decoder_does(given_pod: dict[str, Any], error: str) -> None:
    (told,) = check_types(given_pod, POD)
    assert error in told


def test_secret_data_must_be_base64() -> None:
    secret = SCHEMAS["v1/Secret"]
    assert check_types({"kind": "Secret", "data": {"a": "aGk=", "b": "aG\nk="}}, secret) == []
    assert check_types({"kind": "Secret", "data": {"a": "%%"}}, secret) == ['illegal base64 data in field "data.a"']
    assert check_types({"kind": "Secret", "data": {"a": "aGk"}}, secret) != []


def test_values_get_the_form_in_which_go_writes_them() -> None:
    given_pod = pod(
        terminationGracePeriodSeconds=30.0,
        hostname=None,
        container={
            "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {"cpu": 2, "memory": None}},
            "args": ["a", None],
        },
        nodeSelector={"a": None},
    )
    given_pod["metadata"]["creationTimestamp"] = None
    assert decode_check(given_pod, POD) == ([], [])
    spec = given_pod["spec"]
    assert given_pod["metadata"] == {"name": "p"}
    assert spec["terminationGracePeriodSeconds"] == 30 and type(spec["terminationGracePeriodSeconds"]) is int
    assert "hostname" not in spec
    assert spec["nodeSelector"] == {"a": ""}
    container = spec["containers"][0]
    assert container["resources"] == {
        "limits": {"cpu": "500m", "memory": "1Gi"},
        "requests": {"cpu": "2", "memory": "0"},
    }
    assert container["args"] == ["a", ""]


def test_open_objects_keep_everything() -> None:
    given_pod = pod()
    given_pod["metadata"]["managedFields"] = [{"manager": "m", "fieldsV1": {"f:x": {"f:y": {}}, "k": None}}]
    assert decode_check(given_pod, POD) == ([], [])
    assert given_pod["metadata"]["managedFields"][0]["fieldsV1"] == {"f:x": {"f:y": {}}, "k": None}


def test_deep_nesting_is_refused() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(2000):
        deep = {"type": "object", "properties": {"a": deep}}
    crd = {"kind": "CustomResourceDefinition", "spec": {"versions": [{"schema": {"openAPIV3Schema": deep}}]}}
    schema = SCHEMAS["apiextensions.k8s.io/v1/CustomResourceDefinition"]
    assert decode_check(crd, schema) == ([TOO_DEEP], [])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "spec", "containers", "name", "ports", "resources", "limits", "cpu", "env", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(value=st.dictionaries(st.sampled_from(["metadata", "spec", "status", "kind", "zz"]), json_values, max_size=4))
def test_anything_decodes_or_is_refused_and_a_repaired_object_stays_clean(value: dict[str, Any]) -> None:
    errors, _ = decode_check(value, POD)
    if not errors:
        again = orjson.loads(orjson.dumps(value))
        assert decode_check(again, POD) == ([], [])
        assert again == value


def test_a_null_in_a_map_of_times_can_be_read_again() -> None:
    schema = SCHEMAS["policy/v1/PodDisruptionBudget"]
    budget = {"kind": "PodDisruptionBudget", "status": {"disruptedPods": {"a": None, "b": "2026-01-01T00:00:00Z"}}}
    before = copy.deepcopy(budget)
    assert decode_check(budget, schema) == ([], [])
    assert budget == before
