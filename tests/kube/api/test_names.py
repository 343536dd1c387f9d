"""Names, labels, annotations, finalizers and owners, in Kubernetes' words."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.kube.api import names
from coterie.kube.api.resources import BUILTIN, Resource

RESOURCES = {(resource.group, resource.plural): resource for resource in BUILTIN}
POD = RESOURCES["", "pods"]
NODE = RESOURCES["", "nodes"]
CUSTOM = Resource("example.com", "v1", "widgets", "Widget", True, custom=True)


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (names.dns_label_faults, ["a", "a-b", "0", "a" * 63], ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n"]),
        (names.dns_subdomain_faults, ["a", "a.b", "a-b.c"], ["", ".a", "a..b", "A", "a_b", "a" * 254]),
        (names.dns1035_label_faults, ["a", "a-0"], ["", "0a", "a-", "a.b", "a" * 64]),
        (names.qualified_name_faults, ["a", "A.b_c", "x.io/a"], ["", "/a", "x.io/", "a/b/c", "-a", "X/a", "a" * 64]),
        (names.label_value_faults, ["", "a", "A_b.c-1"], ["-a", "a-", "a b", "a" * 64, "é"]),
        (names.config_key_faults, ["a", "A.b_c-d", ".a"], ["", "a/b", "a b", ".", "..", "..a", "a" * 254]),
        (names.env_name_faults, ["A", "a.b", "1a", "a b"], ["", "a=b", "é"]),
        (names.port_name_faults, ["http", "a1", "a-b"], ["", "123", "A", "a--b", "-a", "a-", "a" * 16]),
        (names.path_segment_faults, ["system:node", "A b"], [".", "..", "a/b", "a%b"]),
        (names.finalizer_faults, ["kubernetes", "x.io/y"], ["y", "", "a b"]),
        (names.wildcard_subdomain_faults, ["*.a.b"], ["*", "a", "*.*.a"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rules_of_names(rule: names.NameRule, good: list[str], bad: list[str]) -> None:
    assert {text: rule(text) for text in good} == dict.fromkeys(good, ())
    assert [text for text in bad if not rule(text)] == []


def test_wording_is_that_of_kubernetes() -> None:
    assert names.dns_subdomain_faults("A") == (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
        "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
        "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
    )
    assert names.qualified_name_faults("a b") == (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
        "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
        "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
    )
    assert names.dns_label_faults("a" * 64) == ("must be no more than 63 characters",)


OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}


@pytest.mark.parametrize(
    ("meta", "resource", "told"),
    [
        ({"name": "a", "namespace": "b"}, POD, []),
        ({"name": "a"}, NODE, []),
        ({"namespace": "b"}, POD, ["metadata.name: Required value: name or generateName is required"]),
        ({"name": "a"}, POD, ["metadata.namespace: Required value"]),
        ({"name": "a", "namespace": "b"}, NODE, ["metadata.namespace: Forbidden: not allowed on this type"]),
        ({"name": "0a", "namespace": "b"}, RESOURCES["", "services"], ["metadata.name: Invalid value"]),
        ({"name": "system:x", "namespace": "b"}, RESOURCES["rbac.authorization.k8s.io", "roles"], []),
        ({"name": "a.b"}, RESOURCES["", "namespaces"], ["metadata.name: Invalid value"]),
        ({"name": "a", "generateName": "A-", "namespace": "b"}, POD, ["metadata.generateName: Invalid value"]),
        ({"name": "ab-x", "generateName": "ab-", "namespace": "b"}, POD, []),
        ({"name": "a", "namespace": "b", "labels": {"a b": "c"}}, POD, ['metadata.labels: Invalid value: "a b"']),
        ({"name": "a", "namespace": "b", "labels": {"a": "c d"}}, POD, ['metadata.labels: Invalid value: "c d"']),
        ({"name": "a", "namespace": "b", "annotations": {"A.io/B": "c d"}}, POD, []),
        ({"name": "a", "namespace": "b", "annotations": {"a b": ""}}, POD, ["metadata.annotations: Invalid value"]),
        (
            {"name": "a", "namespace": "b", "annotations": {"a": "x" * 262144}},
            POD,
            ["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
        ({"name": "a", "namespace": "b", "annotations": {"a": "x" * 262143}}, POD, []),
        ({"name": "a", "namespace": "b", "annotations": {"a": "é" * 140000}}, POD, ["metadata.annotations: Too long"]),
        (
            {"name": "a", "namespace": "b", "finalizers": ["foo"]},
            POD,
            ['metadata.finalizers: Invalid value: "foo": name is neither a standard finalizer name nor is it fully'],
        ),
        ({"name": "a", "namespace": "b", "finalizers": ["foo"]}, CUSTOM, []),
        ({"name": "a", "namespace": "b", "finalizers": ["orphan", "foregroundDeletion"]}, POD, ["metadata.finalizers"]),
        ({"name": "a", "namespace": "b", "ownerReferences": [OWNER]}, POD, []),
        (
            {"name": "a", "namespace": "b", "ownerReferences": [{}]},
            POD,
            [
                'metadata.ownerReferences[0].apiVersion: Invalid value: "": version must not be empty',
                'metadata.ownerReferences[0].kind: Invalid value: "": must not be empty',
                "metadata.ownerReferences[0].name",
                "metadata.ownerReferences[0].uid",
            ],
        ),
        (
            {"name": "a", "namespace": "b", "ownerReferences": [OWNER, OWNER]},
            POD,
            ['metadata.ownerReferences: Invalid value: "array": Only one reference can have Controller set to true.'],
        ),
    ],
)
def test_metadata(meta: dict[str, Any], resource: Resource, told: list[str]) -> None:
    errors = [str(error) for error in names.validate_meta({"metadata": meta}, resource)]
    assert len(errors) == len(told), errors
    assert all(error.startswith(text) for error, text in zip(errors, told, strict=True)), errors


@pytest.mark.parametrize(
    ("new", "old", "told"),
    [
        ({"name": "a", "uid": "1", "labels": {"x": "y"}}, {"name": "a", "uid": "1"}, []),
        (
            {"name": "a", "uid": "2"},
            {"name": "a", "uid": "1"},
            ['metadata.uid: Invalid value: "2": field is immutable'],
        ),
        (
            {"finalizers": ["a/b"], "deletionTimestamp": "t"},
            {"finalizers": ["a/b", "c/d"], "deletionTimestamp": "t"},
            [],
        ),
        (
            {"finalizers": ["a/b"], "deletionTimestamp": "t"},
            {"deletionTimestamp": "t"},
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, "
                'found new finalizers []string{"a/b"}'
            ],
        ),
        ({"generation": 1}, {"generation": 2}, ["metadata.generation: Invalid value: 1: must not be decremented"]),
    ],
)
def test_changes_of_metadata(new: dict[str, Any], old: dict[str, Any], told: list[str]) -> None:
    errors = names.validate_meta_update({"metadata": new}, {"metadata": old})
    assert [str(error) for error in errors] == told
