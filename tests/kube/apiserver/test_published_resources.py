"""What is served against what Kubernetes 1.36 publishes: kinds, sub-resources, verbs, names, and what the page says of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.api.schema import builtin

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
Name = tuple[str, str, str]
"""Group, version, resource or resource/sub-resource."""


def read_published() -> dict[Name, list[str]]:
    rows: dict[Name, list[str]] = {}
    for line in (HERE / "published_resources.tsv").read_text().splitlines():
        if not line.startswith("#"):
            group, version, resource, *rest = line.split("\t")
            rows["" if group == "core" else group, version, resource] = rest
    return rows


PUBLISHED = read_published()
ALSO_SERVED = {("authentication.k8s.io", "v1beta1", "selfsubjectreviews")}
"""For clients older than 1.28."""


def served() -> dict[Name, tuple[Resource, str, tuple[str, ...]]]:
    """The kind that is exchanged, and the verbs."""
    found: dict[Name, tuple[Resource, str, tuple[str, ...]]] = {}
    for resource in BUILTIN:
        found[resource.group, resource.version, resource.plural] = resource, resource.kind, resource.verbs
        for sub in resource.subresources:
            kind = resource.kind
            if sub.kind:
                kind = f"{sub.group}/{sub.version}/{sub.kind}".lstrip("/")
            found[resource.group, resource.version, f"{resource.plural}/{sub.name}"] = resource, kind, sub.verbs
    return found


SERVED = served()


def missing_on_the_page() -> set[Name]:
    """The rows of the table `Not served`: `group/version` and resources."""
    section = PAGE.read_text().partition("### Not served")[2].partition("\n## ")[0]
    found: set[Name] = set()
    for group_version, resources in re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", section, re.MULTILINE):
        group, _, version = group_version.rpartition("/")
        found |= {(group, version, name) for name in re.findall(r"`([^`]+)`", resources)}
    return found


def test_everything_published_is_served_or_listed_on_the_page() -> None:
    missing = set(PUBLISHED) - set(SERVED)
    listed = missing_on_the_page()
    assert missing - listed == set(), "serve it, or add it to the table `Not served` of docs/compatibility.md"
    assert listed - missing == set(), "it is served now: remove it from the table `Not served` of docs/compatibility.md"


def test_nothing_else_is_served() -> None:
    assert set(SERVED) - set(PUBLISHED) == ALSO_SERVED


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) & set(SERVED)), ids=lambda name: "/".join(name))
def test_names_kinds_and_verbs_are_the_published_ones(name: Name) -> None:
    kind, scope, verbs, short, categories = PUBLISHED[name]
    resource, our_kind, our_verbs = SERVED[name]
    assert our_kind.rpartition("/")[2] == kind.rpartition("/")[2]
    assert "/" not in kind or our_kind == kind
    assert scope == ("Namespaced" if resource.namespaced else "Cluster")
    assert set(our_verbs) == set(verbs.split(","))
    if "/" not in name[2]:
        assert sorted(filter(None, short.split(","))) == sorted(resource.short_names)
        assert sorted(filter(None, categories.split(","))) == sorted(resource.categories)


def test_the_table_has_every_stable_kind_of_the_schemas() -> None:
    definitions = builtin.read_definitions()
    kinds: set[tuple[str, str, str]] = set()
    for raw in definitions.values():
        definition = orjson.loads(memoryview(raw))
        properties = definition.get("properties", {})
        if "metadata" not in properties or "items" in properties:
            continue
        for gvk in definition.get("x-kubernetes-group-version-kind", ()):
            if re.fullmatch(r"v\d+", gvk["version"]):
                kinds.add((gvk["group"], gvk["version"], gvk["kind"]))
    named = {(group, version, rest[0]) for (group, version, _), rest in PUBLISHED.items() if "/" not in rest[0]}
    named |= {tuple(f"/{rest[0]}".rsplit("/", 2)) for rest in PUBLISHED.values() if "/" in rest[0]}
    named = {(group.lstrip("/"), version, kind) for group, version, kind in named}
    meta = {("", "v1", "Status")}
    assert kinds - named - meta == set()
