"""No kind is accepted in silence and ignored: something acts on it, or who writes one is warned."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from server_kit import APPLY, MERGE, Api, config_map

from coterie.kube.api.resources import BUILTIN
from coterie.kube.apiserver.stored_only import ACTED_ON, STORED_ONLY, STORED_ONLY_VALUES, warnings_for
from coterie.kuscia.api.definitions import crds
from coterie.kuscia.extensions import kinds

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
SERVICES = "/api/v1/namespaces/default/services"
WARNING = f'299 - "{STORED_ONLY["", "PodTemplate"]}"'


def served() -> set[tuple[str, str]]:
    builtin = {(resource.group, resource.kind) for resource in BUILTIN if not resource.virtual}
    custom = {(crd["spec"]["group"], crd["spec"]["names"]["kind"]) for crd in crds.load(crds.hashes())}
    return builtin | custom


def test_every_kind_is_acted_on_or_warned_about() -> None:
    acted, stored = {**ACTED_ON, **kinds.ACTED_ON}, {**STORED_ONLY, **kinds.STORED_ONLY}
    assert set(acted) | set(stored) == served()
    assert not set(acted) & set(stored)


@pytest.mark.parametrize("module", sorted({*ACTED_ON.values(), *kinds.ACTED_ON.values()}))
def test_who_acts_exists(module: str) -> None:
    assert find_spec(module) is not None


def test_the_page_lists_them() -> None:
    text = PAGE.read_text()
    for _, kind in {**STORED_ONLY, **kinds.STORED_ONLY}:
        assert kind in text, kind
    for values in STORED_ONLY_VALUES.values():
        for each in values:
            assert each.value in text


def template(**metadata: Any) -> dict[str, Any]:
    pods = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t", **metadata}, "template": pods}


async def test_each_way_of_writing_warns(api: Api) -> None:
    made = await api.call("POST", TEMPLATES, template())
    assert (made.status, made.warnings()) == (201, [WARNING])
    replaced = await api.call("PUT", f"{TEMPLATES}/t", template(labels={"a": "b"}))
    assert (replaced.status, replaced.warnings()) == (200, [WARNING])
    patch = {"metadata": {"labels": {"a": "c"}}}
    patched = await api.call("PATCH", f"{TEMPLATES}/t", patch, headers={"content-type": MERGE})
    assert (patched.status, patched.warnings()) == (200, [WARNING])
    applied = await api.call(
        "PATCH", f"{TEMPLATES}/u?fieldManager=m", template(name="u"), headers={"content-type": APPLY}
    )
    assert (applied.status, applied.warnings()) == (201, [WARNING])
    for read in (f"{TEMPLATES}/t", TEMPLATES):
        assert (await api.call("GET", read)).warnings() == []
    assert (await api.call("DELETE", f"{TEMPLATES}/t")).warnings() == []


async def test_others_do_not(api: Api) -> None:
    made = await api.call("POST", "/api/v1/namespaces/default/configmaps", config_map("a"))
    assert (made.status, made.warnings()) == (201, [])


async def test_a_value_without_effect_warns(api: Api) -> None:
    def service(name: str, type_: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"type": type_, "ports": [{"port": 80}]}}

    balanced = await api.call("POST", SERVICES, service("a", "LoadBalancer"))
    assert balanced.status == 201 and "there is no load balancer" in balanced.warnings()[0]
    assert (await api.call("POST", SERVICES, service("b", "ClusterIP"))).warnings() == []


@pytest.mark.parametrize("kind", ["PersistentVolume", "PersistentVolumeClaim"])
def test_block_volumes_warn(kind: str) -> None:
    (found,) = warnings_for("", kind, {"spec": {"volumeMode": "Block"}}, {})
    assert "pods cannot use this" in found
    assert warnings_for("", kind, {"spec": {"volumeMode": "Filesystem"}}, {}) == []


def test_tables_of_extensions_count() -> None:
    (group, kind), sentence = next(iter(kinds.STORED_ONLY.items()))
    assert warnings_for(group, kind, {}, kinds.STORED_ONLY) == [sentence]
    assert warnings_for(group, kind, {}, {}) == []
    assert warnings_for("", "Service", {"spec": None}, {}) == []


def test_a_group_that_is_not_given_away_says_so() -> None:
    def told(group: str, **spec: object) -> list[str]:
        return warnings_for("apiregistration.k8s.io", "APIService", {"spec": {"group": group, **spec}}, {})

    service = {"namespace": "default", "name": "other"}
    assert "always answered by this server" in told("apps", service=service)[0]
    assert told("apps") == told("metrics.k8s.io", service=service) == told("example.com", service=service) == []
