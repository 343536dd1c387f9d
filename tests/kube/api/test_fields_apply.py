"""Server-side apply: merging, ownership, conflicts, removal; laws for any configuration; the real built-in schemas."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.errors import ApplyConflict, BadRequest
from coterie.kube.api.fields.apply import apply
from coterie.kube.api.fields.ownership import track_update
from coterie.kube.api.schema import builtin
from coterie.kube.api.schema.node import Schema

M: dict[str, Any] = {}
T0, T1 = "2025-01-01T00:00:00Z", "2025-01-01T00:00:01Z"
STRING, INTEGER = Schema(type="string"), Schema(type="integer")
STRINGS = Schema(type="object", additional=STRING)


def struct(**properties: Schema) -> Schema:
    return Schema(type="object", properties=properties)


def keyed(*keys: str, **properties: Schema) -> Schema:
    items = Schema(type="object", properties=properties, required=keys[:1])
    return Schema(type="array", list_type="map", list_keys=keys, items=items)


SCHEMA = struct(
    data=STRINGS,
    spec=struct(
        replicas=INTEGER,
        paused=Schema(type="boolean"),
        items=keyed("name", name=STRING, image=STRING, env=STRINGS),
        ports=keyed("port", "protocol", port=INTEGER, protocol=STRING, name=STRING),
        tags=Schema(type="array", list_type="set", items=STRING),
        atomic=Schema(type="array", items=STRING),
        selector=Schema(type="object", additional=STRING, atomic_map=True),
        strategy=struct(kind=STRING, surge=Schema(int_or_string=True)),
        free=Schema(type="object", preserve_unknown=True),
    ),
    status=struct(phase=STRING, conditions=keyed("type", type=STRING, status=STRING)),
)


def config(**parts: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "t", "namespace": "n"}, **parts}


class World:
    """One live object and those who write to it."""

    def __init__(self, live: dict[str, Any] | None = None, schema: Schema = SCHEMA, api_version: str = "v1") -> None:
        self.live = live
        self.schema = schema
        self.api_version = api_version
        self.now = T0

    def apply(self, manager: str, configuration: dict[str, Any], force: bool = False, **more: Any) -> dict[str, Any]:
        before = copy.deepcopy((self.live, configuration))
        more = {"api_version": self.api_version, **more}
        new, managed = apply(self.live, configuration, self.schema, manager, force=force, now=self.now, **more)
        assert (self.live, configuration) == before
        return self._store(new, managed)

    def update(self, manager: str, new: dict[str, Any], **more: Any) -> dict[str, Any]:
        managed = track_update(
            self.managed, self.live, new, self.schema, manager, api_version=self.api_version, now=self.now, **more
        )
        return self._store(new, managed)

    def _store(self, new: dict[str, Any], managed: list[Any]) -> dict[str, Any]:
        self.live = {**new, "metadata": {**new["metadata"], "managedFields": managed}}
        return {key: value for key, value in new.items() if key not in ("apiVersion", "kind", "metadata")}

    @property
    def managed(self) -> list[Any]:
        return (self.live or {}).get("metadata", {}).get("managedFields") or []

    def owners(self) -> dict[str, Any]:
        return {f"{e['manager']}/{e['operation']}": e["fieldsV1"] for e in self.managed}

    def owned_by(self, manager: str) -> Any:
        return next((e["fieldsV1"] for e in self.managed if e["manager"] == manager), {})


def test_apply_creates() -> None:
    world = World()
    assert world.apply("a", config(spec={"replicas": 1, "paused": None}, status={"phase": "ignored"})) == {
        "spec": {"replicas": 1}
    }
    assert world.managed == [
        {"manager": "a", "operation": "Apply", "apiVersion": "v1", "time": T0, "fieldsType": "FieldsV1",
         "fieldsV1": {"f:spec": {"f:replicas": M, "f:paused": M}}}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        pytest.param({"replicas": 1}, {"replicas": 2}, {"replicas": 2}, id="change"),
        pytest.param({"replicas": 1, "paused": True}, {"replicas": 1}, {"replicas": 1}, id="drop-scalar"),
        pytest.param({"strategy": {"kind": "a"}, "replicas": 1}, {"replicas": 1}, {"replicas": 1}, id="drop-struct"),
        pytest.param({"selector": {"a": "1"}}, {"selector": {"b": "2"}}, {"selector": {"b": "2"}}, id="atomic-map"),
        pytest.param({"atomic": ["a", "b"]}, {"atomic": ["c"]}, {"atomic": ["c"]}, id="atomic-list"),
        pytest.param({"tags": ["a", "b"]}, {"tags": ["b", "c"]}, {"tags": ["b", "c"]}, id="set"),
        pytest.param(
            {"items": [{"name": "a"}, {"name": "b", "image": "1"}]},
            {"items": [{"name": "b", "image": "2"}]},
            {"items": [{"name": "b", "image": "2"}]},
            id="drop-item",
        ),
        pytest.param(
            {"items": [{"name": "a", "image": "1", "env": {"x": "1", "y": "2"}}]},
            {"items": [{"name": "a", "env": {"y": "2"}}]},
            {"items": [{"name": "a", "env": {"y": "2"}}]},
            id="drop-inside-item",
        ),
        pytest.param(
            {"items": [{"name": "a"}, {"name": "b"}]},
            {"items": [{"name": "b"}, {"name": "a"}]},
            {"items": [{"name": "b"}, {"name": "a"}]},
            id="reorder",
        ),
        pytest.param({"ports": [{"port": 1}]}, {"ports": [{"port": 1, "protocol": "TCP", "name": "x"}]},
                     {"ports": [{"port": 1, "protocol": "TCP", "name": "x"}]}, id="defaulted-key"),
        pytest.param({"ports": [{"port": 1}]}, {"ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}]},
                     {"ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}]}, id="two-keys"),
        pytest.param({"free": {"a": {"b": 1, "c": [1]}}}, {"free": {"a": {"c": [2]}}}, {"free": {"a": {"c": [2]}}}, id="deduced"),
        pytest.param({"replicas": 1}, {"replicas": None}, {}, id="null-clears"),
        pytest.param({"strategy": {"kind": "a"}}, {"strategy": {}}, {"strategy": {}}, id="empty-struct"),
    ],
)  # fmt: skip
def test_one_manager(first: dict[str, Any], second: dict[str, Any], merged: dict[str, Any]) -> None:
    world = World()
    world.apply("a", config(spec=first))
    assert world.apply("a", config(spec=second)) == {"spec": merged}


def test_what_others_own_stays() -> None:
    world = World()
    world.apply(
        "a", config(spec={"replicas": 1, "items": [{"name": "x", "image": "1"}], "tags": ["t"]}, data={"k": "1"})
    )
    world.apply(
        "b", config(spec={"replicas": 1, "items": [{"name": "x"}, {"name": "y"}], "tags": ["t", "u"]}, data={"l": "2"})
    )
    assert world.apply("a", config(data={"k": "1"})) == {
        "spec": {"replicas": 1, "items": [{"name": "x"}, {"name": "y"}], "tags": ["t", "u"]},
        "data": {"k": "1", "l": "2"},
    }
    assert world.owned_by("a") == {"f:data": {"f:k": M}}
    assert world.apply("b", config()) == {"data": {"k": "1"}}
    assert set(world.owners()) == {"a/Apply"}


def test_an_item_goes_with_its_owner_even_if_others_changed_fields_of_it() -> None:
    world = World()
    world.apply("a", config(spec={"items": [{"name": "x", "image": "1"}, {"name": "z"}]}))
    live = copy.deepcopy(world.live)
    assert live is not None
    live["spec"]["items"][0]["image"] = "2"
    world.update("b", live)
    assert world.owned_by("b") == {"f:spec": {"f:items": {'k:{"name":"x"}': {"f:image": M}}}}
    assert world.apply("a", config(spec={"items": [{"name": "z"}]})) == {"spec": {"items": [{"name": "z"}]}}
    assert set(world.owners()) == {"a/Apply"}


def test_unowned_fields_stay_beside_owned_ones() -> None:
    """Defaults belong to nobody: they stay while the container is owned and go with it."""
    world = World()
    world.apply("a", config(spec={"strategy": {"kind": "x"}, "replicas": 1}))
    assert world.live is not None
    world.live["spec"]["strategy"]["surge"] = 1
    assert world.apply("a", config(spec={"strategy": {"kind": "y"}, "replicas": 1}))["spec"]["strategy"] == {
        "kind": "y",
        "surge": 1,
    }
    assert world.apply("a", config(spec={"replicas": 1})) == {"spec": {"replicas": 1}}


def conflicted(live: dict[str, Any] | None = None) -> World:
    world = World()
    world.apply("a", config(spec={"replicas": 1}, data={"x": "1", "y": "1"}))
    return world


def test_one_conflict_is_worded_as_kubernetes_words_it() -> None:
    world = World()
    world.update("kubectl-client-side-apply", config(spec={"replicas": 1}))
    with pytest.raises(ApplyConflict) as caught:
        world.apply("me", config(spec={"replicas": 2}))
    error = caught.value
    assert (
        error.message
        == 'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using v1: .spec.replicas'
    )
    assert error.status()["details"]["causes"] == [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl-client-side-apply" using v1',
            "field": ".spec.replicas",
        }
    ]
    assert (error.code, error.status()["reason"]) == (409, "Conflict")


def test_several_conflicts_are_grouped_by_manager() -> None:
    world = World()
    world.apply("z", config(spec={"items": [{"name": "nginx", "image": "1"}]}))
    live = copy.deepcopy(world.live)
    assert live is not None
    world.update("x", {**live, "data": {"a": "1", "b": "1"}})
    with pytest.raises(ApplyConflict) as caught:
        world.apply("me", config(spec={"items": [{"name": "nginx", "image": "2"}]}, data={"a": "2", "b": "2"}))
    assert caught.value.message == (
        'Apply failed with 3 conflicts: conflicts with "x" using v1:\n- .data.a\n- .data.b\n'
        'conflicts with "z":\n- .spec.items[name="nginx"].image'
    )
    assert len(caught.value.causes) == 3


def test_conflict_with_a_subresource_names_it() -> None:
    world = World()
    world.apply("a", config(data={"a": "1"}))
    live = copy.deepcopy(world.live)
    assert live is not None
    live["status"] = {"phase": "A"}
    world.update("kubelet", live, subresource="status")
    with pytest.raises(
        ApplyConflict, match=r'conflict with "kubelet" with subresource "status" using v1: \.status\.phase'
    ):
        world.apply("me", config(status={"phase": "B"}), subresource="status")


def test_force_takes_over() -> None:
    world = conflicted()
    assert world.apply("b", config(spec={"replicas": 2}, data={"x": "2"}), force=True)["data"] == {"x": "2", "y": "1"}
    assert world.owners() == {
        "a/Apply": {"f:data": {"f:y": M}},
        "b/Apply": {"f:spec": {"f:replicas": M}, "f:data": {"f:x": M}},
    }


def test_the_same_value_is_shared() -> None:
    world = conflicted()
    world.apply("b", config(spec={"replicas": 1}))
    assert world.owned_by("a")["f:spec"] == world.owned_by("b")["f:spec"] == {"f:replicas": M}
    with pytest.raises(ApplyConflict):
        world.apply("b", config(spec={"replicas": 2}))


def test_a_manager_conflicts_with_its_own_updates() -> None:
    world = World()
    world.update("me", config(data={"a": "1"}))
    with pytest.raises(ApplyConflict, match=r'conflict with "me" using v1: \.data\.a'):
        world.apply("me", config(data={"a": "2"}))


def test_true_is_not_one() -> None:
    world = World()
    world.apply("a", config(spec={"free": {"x": 1}}))
    assert world.apply("a", config(spec={"free": {"x": True}}))["spec"]["free"]["x"] is True


def test_an_apply_that_changes_nothing_gives_back_what_is_there() -> None:
    world = World()
    wanted = config(
        spec={"replicas": 1, "ports": [{"port": 1}], "items": [{"name": "a", "env": {"x": "1"}}], "free": {"q": [1]}},
        data={"k": "v"},
    )
    world.apply("a", wanted)
    live = world.live
    assert live is not None
    live["spec"] = {**live["spec"], "ports": [{"port": 1, "protocol": "TCP"}], "replicas": 1}  # as defaulting leaves it
    new, managed = apply(live, wanted, SCHEMA, "a", force=False, api_version="v1", now=T1)
    assert new is live
    assert managed is live["metadata"]["managedFields"]


def test_an_apply_of_other_fields_with_the_same_values_moves_only_the_time() -> None:
    world = conflicted()
    world.apply("b", config(spec={"replicas": 1}))
    world.now = T1
    world.apply("b", config(data={"x": "1"}))
    assert {e["manager"]: e["time"] for e in world.managed} == {"a": T0, "b": T1}


def test_an_applier_keeps_its_entry_over_versions() -> None:
    world = conflicted()
    world.now = T1
    world.apply("a", config(spec={"replicas": 1}), api_version="v2")
    assert [(e["manager"], e["apiVersion"], e["time"]) for e in world.managed] == [("a", "v2", T1)]


def test_untracked_objects_belong_to_those_before_the_first_apply() -> None:
    world = World(config(data={"a": "1"}, status={"phase": "x"}))
    with pytest.raises(ApplyConflict, match=r'conflict with "before-first-apply" using v1: \.data\.a'):
        world.apply("me", config(data={"a": "2"}))
    world.apply("me", config(data={"a": "2"}), force=True)
    assert world.owners() == {"me/Apply": {"f:data": {"f:a": M}}, "before-first-apply/Update": {"f:data": M}}


def test_status_is_applied_through_its_subresource_only() -> None:
    world = World()
    world.apply("a", config(data={"a": "1"}))
    status = {"phase": "x", "conditions": [{"type": "Ready", "status": "True"}]}
    assert world.apply("s", config(data={"a": "9"}, status=status), subresource="status") == {
        "data": {"a": "1"},
        "status": status,
    }
    assert world.managed[1]["subresource"] == "status"
    assert world.owned_by("s") == {
        "f:status": {"f:phase": M, "f:conditions": {'k:{"type":"Ready"}': {".": M, "f:type": M, "f:status": M}}}
    }
    assert world.apply("a", config(data={"a": "2"}))["status"] == status
    assert world.apply("s", config(status={"phase": "x"}), subresource="status")["status"] == {"phase": "x"}


def test_server_set_metadata_survives_nulls() -> None:
    world = World()
    world.apply("a", config(data={"a": "1"}))
    assert world.live is not None
    world.live["metadata"]["creationTimestamp"] = T0
    wanted = config(data={"a": "2"})
    wanted["metadata"]["creationTimestamp"] = None
    world.apply("a", wanted)
    assert world.live["metadata"]["creationTimestamp"] == T0


@pytest.mark.parametrize(
    ("live", "applied", "merged"),
    [
        (["a", "b", "c"], ["c"], ["a", "b", "c"]),
        (["a", "b", "c"], ["c", "a"], ["b", "c", "a"]),
        (["a", "b"], ["n", "b"], ["a", "n", "b"]),
        (["a", "b"], ["b", "n"], ["a", "b", "n"]),
        (["a", "b", "x"], ["b", "a", "n"], ["b", "x", "a", "n"]),
        ([], ["b", "a"], ["b", "a"]),
        (["a", "b", "c"], [], ["a", "b", "c"]),
    ],
)
@pytest.mark.parametrize("field", ["items", "tags"])
def test_order_of_merged_lists(field: str, live: list[str], applied: list[str], merged: list[str]) -> None:
    def items(names: list[str]) -> list[Any]:
        return [{"name": name} for name in names] if field == "items" else list(names)

    world = World(config(spec={field: items(live)}))
    assert world.apply("a", config(spec={field: items(applied)}))["spec"][field] == items(merged)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (config(metadata={"managedFields": [{"manager": "x"}]}), "metadata.managedFields must be nil"),
        (config(spec={"items": [{"name": "a"}, {"name": "a"}]}), 'failed to create typed patch object (n/t; v1, Kind=Thing): .spec.items: duplicate entries for key [name="a"]'),
        (config(spec={"items": [{"image": "a"}]}), "omits key field"),
        (config(spec={"nope": 1}), ".spec.nope: field not declared in schema"),
        (config(spec=[]), ".spec: expected map, got list"),
        (config(metadata="x"), ".metadata: expected map, got string"),
    ],
)  # fmt: skip
def test_refusals(wanted: dict[str, Any], told: str) -> None:
    for live in (None, config(spec={"replicas": 1})):
        with pytest.raises(BadRequest) as caught:
            apply(live, wanted, SCHEMA, "a", force=True, api_version="v1", now=T0)
        assert told in caught.value.message


def test_live_duplicates_are_replaced_by_the_applied_item() -> None:
    world = World(config(spec={"items": [{"name": "a", "image": "1"}, {"name": "a", "image": "2"}, {"name": "b"}]}))
    assert world.apply("me", config(spec={"items": [{"name": "a", "image": "3"}]}), force=True) == {
        "spec": {"items": [{"name": "a", "image": "3"}, {"name": "b"}]}
    }


LAST = "kubectl.kubernetes.io/last-applied-configuration"


def client_side(applied: str) -> World:
    world = World()
    obj = config(spec={"replicas": 1}, data={"a": "1"})
    obj["metadata"]["annotations"] = {LAST: applied}
    world.update("kubectl-client-side-apply", obj)
    return world


def test_kubectl_takes_over_what_it_applied_client_side() -> None:
    world = client_side('{"apiVersion":"v1","kind":"Thing","metadata":{"name":"t"},"spec":{"replicas":1}}')
    world.apply("kubectl", config(spec={"replicas": 2}))
    assert world.live is not None
    assert world.live["metadata"]["annotations"][LAST] == (
        '{"apiVersion":"v1","kind":"Thing","metadata":{"name":"t","namespace":"n"},"spec":{"replicas":2}}\n'
    )
    assert world.owned_by("kubectl") == {"f:spec": {"f:replicas": M}}
    with pytest.raises(ApplyConflict, match=r"\.data\.a"):
        world.apply("kubectl", config(spec={"replicas": 2}, data={"a": "2"}))


@pytest.mark.parametrize(
    ("manager", "remembered"),
    [
        ("someone", '{"apiVersion":"v1","spec":{"replicas":1}}'),
        ("kubectl", '{"apiVersion":"v2","spec":{"replicas":1}}'),
        ("kubectl", '{"apiVersion":"v1","spec":{"replicas":7}}'),
        ("kubectl", '{"apiVersion":"v1","spec":{"nope":7}}'),
        ("kubectl", "no json"),
        ("kubectl", "[]"),
    ],
)
def test_others_and_other_values_conflict(manager: str, remembered: str) -> None:
    with pytest.raises(ApplyConflict):
        client_side(remembered).apply(manager, config(spec={"replicas": 2}))


def test_depth_is_no_crash() -> None:
    deep: Any = {}
    for _ in range(3000):
        deep = {"a": deep}
    with pytest.raises(BadRequest, match="too deep"):
        apply(None, config(spec={"free": deep}), SCHEMA, "a", force=False, api_version="v1", now=T0)


# Laws for any configuration.

_words = st.sampled_from(["a", "b", "c"])
_maps = st.dictionaries(_words, _words, max_size=3)
_items = st.lists(
    st.fixed_dictionaries({"name": _words}, optional={"image": _words, "env": _maps}),
    max_size=3,
    unique_by=lambda item: item["name"],
)
_free = st.recursive(
    st.integers(0, 2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(_words, inner, max_size=2),
    max_leaves=4,
)
_specs = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 2),
        "items": _items,
        "tags": st.lists(_words, unique=True, max_size=3),
        "atomic": st.lists(_words, max_size=2),
        "selector": _maps,
        "strategy": st.fixed_dictionaries({}, optional={"kind": _words, "surge": st.integers(0, 1)}),
        "free": st.dictionaries(_words, _free, max_size=2),
    },
)
_configs = st.builds(lambda spec, data: config(spec=spec, data=data), _specs, _maps)


def within(wanted: Any, found: Any) -> bool:
    """Does `found` hold all of `wanted`, lists of named things and sets by their members?"""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and within(value, found[key]) for key, value in wanted.items()
        )
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], dict):
        by_name = {item["name"]: item for item in found}
        return all(item["name"] in by_name and within(item, by_name[item["name"]]) for item in wanted)
    return wanted == found or (isinstance(wanted, list) and all(item in found for item in wanted))


@given(_configs, _configs)
@settings(max_examples=150, deadline=None)
def test_after_an_apply_the_object_holds_what_was_applied(first: dict[str, Any], second: dict[str, Any]) -> None:
    world = World()
    world.apply("a", first)
    world.apply("b", second, force=True)
    assert within(second, world.live)
    live = world.live
    assert live is not None
    new, managed = apply(live, second, SCHEMA, "b", force=False, api_version="v1", now=T1)
    assert new is live
    assert managed == live["metadata"]["managedFields"]


@given(_configs, _configs)
@settings(max_examples=150, deadline=None)
def test_a_new_configuration_replaces_the_old_one_of_the_same_manager(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    """One manager alone: whatever it applied before, the object is as if it had only applied the last one."""
    world, fresh = World(), World()
    world.apply("a", first)
    world.apply("a", second)
    fresh.apply("a", second)
    assert world.owners() == fresh.owners()
    assert bare(world.live) == bare(fresh.live)


def bare(value: Any) -> Any:
    """Without empty containers, whose presence nobody owns, and without the order of lists."""
    if isinstance(value, dict):
        cut = {key: bare(below) for key, below in value.items()}
        return {key: below for key, below in cut.items() if below not in ({}, [])}
    if isinstance(value, list) and value and isinstance(value[0], (dict, str)):
        return sorted((bare(item) for item in value), key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
    return value


@given(_maps, _maps)
@settings(max_examples=100, deadline=None)
def test_disjoint_managers_never_meet(left: dict[str, str], right: dict[str, str]) -> None:
    """Also when they give up their fields again: what one applied is gone, what the other applied is untouched."""
    left = {f"l-{key}": value for key, value in left.items()}
    right = {f"r-{key}": value for key, value in right.items()}
    world = World()
    world.apply("a", config(data=left))
    assert world.apply("b", config(data=right)).get("data", {}) == {**left, **right}
    assert world.apply("a", config()).get("data", {}) == right
    assert world.apply("b", config()).get("data", {}) == {}


@given(_configs, _configs)
@settings(max_examples=100, deadline=None)
def test_updates_and_applies_agree_on_owners(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Whatever an update leaves behind, the updater can be overruled only by force, and nothing gets lost."""
    world = World()
    world.apply("a", first)
    updated = {**second, "metadata": {**second["metadata"], "managedFields": world.managed}}
    if not world.managed:
        return
    world.update("b", updated)
    assert bare(world.live)["metadata"]["name"] == "t"
    world.apply("a", first, force=True)
    assert within(first, world.live)


# The real schemas.


@pytest.fixture(scope="module")
def schemas() -> builtin.BuiltinSchemas:
    return builtin.load()


def deployment(image: str = "nginx:1", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "d", "labels": {"app": "web"}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "nginx", "image": image, "ports": [{"containerPort": 80}]}]},
            },
            **spec,
        },
    }


def test_deployment(schemas: builtin.BuiltinSchemas) -> None:
    world = World(schema=schemas["apps/v1/Deployment"], api_version="apps/v1")
    world.update(
        "kubectl-create", deployment(replicas=1, strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}})
    )
    port = 'k:{"containerPort":80,"protocol":"TCP"}'
    assert world.owned_by("kubectl-create") == {
        "f:metadata": {"f:labels": {".": M, "f:app": M}},
        "f:spec": {
            "f:replicas": M,
            "f:selector": M,
            "f:strategy": {".": M, "f:type": M, "f:rollingUpdate": {".": M, "f:maxSurge": M}},
            "f:template": {
                "f:metadata": {".": M, "f:labels": {".": M, "f:app": M}},
                "f:spec": {
                    ".": M,
                    "f:containers": {
                        'k:{"name":"nginx"}': {
                            ".": M, "f:name": M, "f:image": M, "f:ports": {".": M, port: {".": M, "f:containerPort": M}},
                        }
                    },
                },
            },
        },
    }  # fmt: skip
    with pytest.raises(ApplyConflict) as caught:
        world.apply("me", deployment("nginx:2"))
    assert caught.value.message == (
        'Apply failed with 1 conflict: conflict with "kubectl-create" using apps/v1: '
        '.spec.template.spec.containers[name="nginx"].image'
    )
    world.apply("me", deployment("nginx:2"), force=True)
    assert world.live is not None
    assert world.live["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
    with pytest.raises(BadRequest, match=r"\.spec\.replica: field not declared in schema"):
        world.apply("me", deployment(replica=1))


def test_service_ports(schemas: builtin.BuiltinSchemas) -> None:
    world = World(schema=schemas["v1/Service"])

    def service(*ports: dict[str, Any]) -> dict[str, Any]:
        return config(kind="Service", spec={"ports": list(ports)})

    world.apply("a", service({"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}))
    assert world.apply("b", service({"port": 53, "name": "dns"}))["spec"]["ports"] == [
        {"port": 53, "protocol": "TCP", "name": "dns"},
        {"port": 53, "protocol": "UDP"},
    ]
    assert world.apply("a", service())["spec"]["ports"] == [{"port": 53, "name": "dns"}]
    assert world.apply("b", service()) == {}


def test_every_built_in_schema_takes_an_object(schemas: builtin.BuiltinSchemas) -> None:
    for name in schemas:
        schema = schemas.get(name)
        if schema is None:
            assert name.endswith("Options"), "query parameters have no schema"
            continue
        world = World(schema=schema)
        world.apply("a", {"apiVersion": "v1", "kind": name, "metadata": {"name": "x", "labels": {"a": "b"}}})
        assert world.owned_by("a") == {"f:metadata": {"f:labels": {"f:a": M}}}
