"""Any object that fits a kind's schema passes through the kind's rules without an exception, and defaults settle.

Objects are grown from the real schemas with values that are often right and often absurd; seeds keep it repeatable.
"""

from __future__ import annotations

import copy
import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from coterie.kube.api import rules
from coterie.kube.api.convert import from_storage, to_storage
from coterie.kube.api.errors import BadRequest, FieldError
from coterie.kube.api.names import validate_meta, validate_meta_update
from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.api.rules import RULES
from coterie.kube.api.schema import builtin
from coterie.kube.api.schema.node import Schema

SCHEMAS = builtin.load()
STORED = [resource for resource in BUILTIN if resource.storage == (resource.group, resource.version)]
TEXTS = [
    "", "a", "a-b", "A b", "example.com/x", "Always", "Never", "RollingUpdate", "ClusterIP", "ExternalName", "None",
    "Indexed", "Container", "Pod", "In", "Exists", "Resource", "TCP", "100%", "25%", "x%", "10.0.0.0/8", "10.0.0.1",
    "::1", "1Gi", "-1", "cpu", "*/5 * * * *", "..", "/a", "Webhook", "v1", "metadata.name", "2024-01-01T00:00:00Z",
    "\ud800", "é" * 70, "Local", "User", "Role", "IPv4", "true", "[]",
]  # fmt: skip


class Grower:
    """Grows one object; `left` bounds it, because some schemas contain themselves."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.left = 1500
        self.chance = self.rng.choice([0.35, 0.6, 0.9])

    def grow(self, schema: Schema) -> Any:
        rng = self.rng
        self.left -= 1
        if schema.quantity:
            return rng.choice(["1", "500m", "1Gi", "-1", "1e9", 2, 0.5])
        if schema.int_or_string:
            return rng.choice([0, 80, -1, 70000, "25%", "http", "", "x y", "200%"])
        match schema.type:
            case "object":
                return self.grow_object(schema)
            case "array":
                count = rng.choice([0, 1, 1, 2]) if self.left > 0 else 0
                return [self.grow(schema.items) for _ in range(count)] if schema.items else []
            case "integer":
                return rng.choice([0, 1, -1, 80, 30000, 2**40, 420])
            case "number":
                return rng.choice([0, 0.5, -1.5])
            case "boolean":
                return rng.random() < 0.5
            case "string":
                return rng.choice(TEXTS)
        return rng.choice([{}, {"a": 1}, "x", 3])

    def grow_object(self, schema: Schema) -> dict[str, Any]:
        rng = self.rng
        if not schema.properties:
            child = schema.additional
            names = rng.sample(TEXTS, rng.randint(0, 3))
            return {name: self.grow(child) for name in names} if child else {}
        out = {}
        for key in rng.sample(list(schema.properties), len(schema.properties)):
            if self.left > 0 and rng.random() < self.chance:
                out[key] = self.grow(schema.properties[key])
        return out


def grown(resource: Resource, seed: int) -> dict[str, Any]:
    obj: dict[str, Any] = Grower(f"{resource.schema_name} {seed}").grow(SCHEMAS[resource.schema_name])
    return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}


def all_errors(errors: list[FieldError]) -> bool:
    return all(isinstance(error, FieldError) and str(error) for error in errors)


@pytest.mark.parametrize("resource", STORED, ids=lambda resource: resource.schema_name)
def test_rules_are_total_and_defaults_settle(resource: Resource) -> None:
    rules = RULES[resource.group, resource.kind]
    old: dict[str, Any] = {}
    for seed in range(30):
        obj = grown(resource, seed)
        rules.default(obj)
        settled = copy.deepcopy(obj)
        rules.default(obj)
        assert obj == settled
        rules.prepare_create(obj)
        assert all_errors(validate_meta(obj, resource) + rules.validate_create(obj))
        new = copy.deepcopy(obj)
        rules.prepare_update(new, old)
        assert all_errors(validate_meta_update(new, old) + rules.validate_update(new, old))
        written = grown(resource, seed + 1000)
        rules.prepare_status_update(written, obj)
        assert all_errors(rules.validate_status_update(written, obj))
        if rules.has_status and "spec" in obj:
            assert written["spec"] == obj["spec"]
        old = obj


@pytest.mark.parametrize("resource", STORED, ids=lambda resource: resource.schema_name)
def test_an_update_that_changes_nothing_is_no_forbidden_change(resource: Resource) -> None:
    """What `validate_update` says of an object and itself is what it says of the object alone."""
    rules = RULES[resource.group, resource.kind]
    for seed in range(10):
        obj = grown(resource, seed)
        rules.default(obj)
        rules.prepare_create(obj)
        same = copy.deepcopy(obj)
        rules.prepare_update(same, obj)
        assert same == obj
        alone = {str(error) for error in rules.validate_create(obj)}
        told = {str(error) for error in rules.validate_update(same, obj)}
        assert told <= alone | {""}


@pytest.mark.parametrize(
    "resource", [resource for resource in BUILTIN if resource not in STORED and not resource.virtual],
    ids=lambda resource: resource.schema_name,
)  # fmt: skip
def test_converted_kinds(resource: Resource) -> None:
    for seed in range(50):
        obj = grown(resource, seed)
        try:
            stored = to_storage(resource, obj)
        except BadRequest:
            continue
        assert stored["apiVersion"] == resource.storage_api_version
        back = from_storage(resource, stored)
        assert back["apiVersion"] == resource.api_version
        assert to_storage(resource, back) == stored


def test_every_kind_has_rules() -> None:
    assert [resource for resource in BUILTIN if (resource.group, resource.kind) not in RULES] == []


def test_the_table_of_kinds_is_what_the_modules_have():
    """The modules are loaded on first use, so the table must name each of their kinds, and no other."""
    for path in Path(rules.__file__).parent.glob("*.py"):
        module = importlib.import_module(f"{rules.__name__}.{path.stem}") if path.stem != "__init__" else None
        if module is not None and hasattr(module, "RULES"):
            listed = {key for key in rules.RULES if rules._MODULES[key] == path.stem}
            assert set(module.RULES) == listed, path.stem
