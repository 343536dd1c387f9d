"""Collections in memory against a plain model: order, pages, rings, filters."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.state import collection as collection_module
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry, VersionView, encode, head_of, respliced, splice
from coterie.kube.apiserver.state.filters import ObjectFilter
from coterie.kube.apiserver.state.state import split_key
from coterie.kube.apiserver.state.watching import StoredChange, Watcher

HEAD = head_of("v1", "ConfigMap")


def value(name: str, **more: Any) -> bytes:
    return encode({"metadata": {"name": name, "uid": f"u-{name}", **more}, "data": {}}, "v1", "ConfigMap")


def fresh(*, namespaced: bool = True) -> Collection:
    return Collection(
        "/registry/core/configmaps", api_version="v1", kind="ConfigMap", namespaced=namespaced, revision=0
    )


def entry(revision: int = 1, **labels: str) -> ObjectEntry:
    raw = splice(value("a", labels=labels or None), len(HEAD), revision)
    return ObjectEntry("default", "a", raw, revision, revision)


# ---- bytes ----


def test_the_revision_is_spliced_in_and_exchanged():
    obj = {"kind": "x", "apiVersion": "y", "metadata": {"resourceVersion": "9", "name": "ä"}, "data": {"k": "v"}}
    stored = encode(obj, "v1", "ConfigMap")
    assert b"resourceVersion" not in stored and stored.startswith(HEAD)
    seen = splice(stored, len(HEAD), 12)
    assert orjson.loads(seen) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"resourceVersion": "12", "name": "ä"},
        "data": {"k": "v"},
    }
    assert respliced(seen, len(HEAD), 12, 12345) == splice(stored, len(HEAD), 12345)


def test_a_view_shows_bytes_under_another_head():
    resource = Resource("g", "v2", "things", "Thing", True, storage=("g", "v1"), custom=True)
    view = VersionView(resource, storage_head=head_of("g/v1", "Thing"))
    raw = splice(
        encode({"metadata": {"name": "a"}, "spec": {"x": 1}}, "g/v1", "Thing"), len(head_of("g/v1", "Thing")), 3
    )
    assert not view.is_storage
    assert orjson.loads(view.render(raw)) == {**orjson.loads(raw), "apiVersion": "g/v2"} == view.load(raw)


def test_selectable_fields_are_worked_out_once_for_each_way_of_asking():
    asked: list[str] = []

    def one(obj: dict) -> dict[str, str]:
        asked.append("one")
        return {"x": "1"}

    def two(obj: dict) -> dict[str, str]:
        asked.append("two")
        return {"x": "2"}

    subject = entry()
    assert [subject.fields(one)["x"], subject.fields(one)["x"], subject.fields(two)["x"]] == ["1", "1", "2"]
    assert asked == ["one", "two"]


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("/registry/core/pods/default/p", ("/registry/core/pods", "default", "p")),
        ("/registry/core/nodes/n", ("/registry/core/nodes", "", "n")),
        (
            "/registry/rbac.authorization.k8s.io/clusterroles/system:x",
            ("/registry/rbac.authorization.k8s.io/clusterroles", "", "system:x"),
        ),
    ],
)
def test_keys(key: str, parts: tuple[str, str, str]):
    assert split_key(key) == parts


# ---- order and pages ----

NAMES = st.sampled_from(["a", "a-b", "a.b", "b", "ab", "z0"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), NAMES, NAMES), max_size=40), st.integers(1, 7), NAMES)
def test_any_history_is_listed_as_the_store_sorts_it(steps: list[tuple[bool, str, str]], limit: int, namespace: str):
    subject, model, revision = fresh(), {}, 0
    for put, space, name in steps:
        if not put and (space, name) not in model:
            continue
        revision += 1
        subject.apply(space, name, value(name) if put else None, revision, revision)
        if put:
            model[space, name] = revision
        else:
            del model[space, name]
    keys = sorted(f"{space}/{name}" for space, name in model)
    assert [one.key for one in subject.entries()] == keys and len(subject) == len(keys)
    assert [one.key for one in subject.entries(namespace)] == [k for k in keys if k.startswith(f"{namespace}/")]
    assert {one.key: one.revision for one in subject} == {f"{s}/{n}": r for (s, n), r in model.items()}
    seen: list[str] = []
    after, left = "", 1
    while left:
        page, left = subject.page(ObjectFilter(), after, limit)
        seen += [one.key for one in page]
        assert left == len(keys) - len(seen)
        after = page[-1].key if page else ""
    assert seen == keys


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=20, unique_by=lambda pair: pair[0]), st.integers(1, 4))
def test_pages_of_a_selection(objects: list[tuple[str, bool]], limit: int):
    subject = fresh()
    for revision, (name, chosen) in enumerate(objects, 1):
        subject.apply("n", name, value(name, labels={"on": "1" if chosen else "0"}), revision, revision)
    wanted = ObjectFilter("n", labels=lambda labels: (labels or {}).get("on") == "1", text="on=1")
    seen: list[str] = []
    after, left = "", 1
    while left:
        page, left = subject.page(wanted, after, limit)
        seen += [one.name for one in page]
        after = page[-1].key if page else ""
    assert seen == sorted(name for name, chosen in objects if chosen)


def test_cluster_scope():
    subject = fresh(namespaced=False)
    for revision, name in enumerate(("b", "a"), 1):
        subject.apply("", name, value(name), revision, revision)
    assert [one.key for one in subject.entries()] == ["a", "b"]
    assert [one.key for one in subject.page(ObjectFilter(name="b"), "", 0)[0]] == ["b"]
    assert subject.page(ObjectFilter(name="b"), "b", 0)[0] == [], "a page behind the only one is empty"


# ---- the ring ----


def test_the_ring_forgets_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collection_module, "RING_EVENTS", 3)
    subject = fresh()
    for revision in range(1, 6):
        subject.apply("n", "a", value("a"), revision, 1)
    assert subject.floor == 2 and subject.changed == 5
    assert [change.revision for change in subject.changes_after(2)] == [3, 4, 5]
    assert [change.revision for change in subject.changes_after(4)] == [5]
    assert subject.changes_after(5) == []
    monkeypatch.setattr(collection_module, "RING_BYTES", 10)
    subject.apply("n", "a", value("a"), 6, 1)
    assert subject.floor == 6 and subject.changes_after(6) == []


def test_changes_know_what_was_before():
    subject = fresh()
    added = subject.apply("n", "a", value("a"), 1, 1)
    modified = subject.apply("n", "a", value("a", labels={"x": "y"}), 2, 1)
    deleted = subject.apply("n", "a", None, 3, 1)
    assert [(c.kind, c.revision) for c in (added, modified, deleted)] == [("ADDED", 1), ("MODIFIED", 2), ("DELETED", 3)]
    assert added.old is None and modified.old is added.entry and deleted.old is modified.entry
    assert deleted.entry.revision == 3 and deleted.entry.labels == {"x": "y"}
    assert orjson.loads(deleted.entry.raw)["metadata"]["resourceVersion"] == "3"


# ---- what a selection sees of a change ----


@pytest.mark.parametrize(
    ("kind", "before", "after", "seen"),
    [
        ("ADDED", None, "1", "ADDED"),
        ("ADDED", None, "0", None),
        ("MODIFIED", "1", "1", "MODIFIED"),
        ("MODIFIED", "0", "1", "ADDED"),
        ("MODIFIED", "1", "0", "DELETED"),
        ("MODIFIED", "0", "0", None),
        ("DELETED", "1", "1", "DELETED"),
        ("DELETED", "0", "0", None),
    ],
)
def test_selections(kind: str, before: str | None, after: str, seen: str | None):
    wanted = ObjectFilter(labels=lambda labels: (labels or {}).get("on") == "1")
    change = StoredChange(kind, 2, entry(2, on=after), entry(1, on=before) if before else None)
    told = change.seen_through(wanted, lambda old, revision: old)
    assert (told[0] if told else None) == seen


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (ObjectFilter(), True),
        (ObjectFilter("default"), True),
        (ObjectFilter("other"), False),
        (ObjectFilter(name="a"), True),
        (ObjectFilter(name="b"), False),
        (ObjectFilter(labels=lambda labels: labels == {"x": "y"}), True),
        (ObjectFilter(fields=lambda fields: fields == {"f": "1"}, selectable=lambda obj: {"f": "1"}), True),
        (ObjectFilter(fields=lambda fields: False, selectable=lambda obj: {"f": "1"}), False),
    ],
)
def test_filters(wanted: ObjectFilter, matches: bool):
    assert wanted.matches(entry(1, x="y")) is matches


# ---- watchers ----


class RecordedWatch:
    """A watch of a client, and what it got."""

    def __init__(self, wanted: ObjectFilter) -> None:
        self.wanted = wanted
        self.got: list[tuple[str, str, str, int]] = []
        self.watcher = Watcher(
            wanted=wanted,
            version="v1",
            encode=lambda kind, entry, first: (
                b"%s %s %s %d\n" % (kind.encode(), entry.namespace.encode(), entry.name.encode(), entry.revision)
            ),
            encoding="plain",
            gone=lambda entry, revision: ObjectEntry(entry.namespace, entry.name, entry.raw, revision, entry.created),
            bookmark=None,
            error=lambda error: b"",
            on_open=lambda watcher: None,
            on_close=lambda watcher: None,
        )
        self.watcher.opened(self)  # type: ignore[arg-type]

    pending = 0

    def write(self, lines: bytes) -> None:
        for line in lines.decode().splitlines():
            kind, namespace, name, revision = line.split(" ")
            self.got.append((kind, namespace, name, int(revision)))


@given(
    watches=st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["", "x", "y"])), max_size=12),
    steps=st.lists(
        st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.sampled_from("xyz")), max_size=4), max_size=8
    ),
    namespaced=st.booleans(),
)
def test_each_watcher_gets_what_it_asked_for_and_nothing_else(
    watches: list[tuple[str, str]], steps: list[list[tuple[bool, str, str]]], namespaced: bool
):
    collection = fresh(namespaced=namespaced)
    watching = [
        RecordedWatch(ObjectFilter(namespace=namespace if namespaced else "", name=name)) for namespace, name in watches
    ]
    for each in watching:
        collection.join(each.watcher)
    every, revision = RecordedWatch(ObjectFilter()), 0
    collection.join(every.watcher)
    for step in steps:
        changes = []
        for exists, letter, name in step:
            namespace = letter if namespaced else ""
            if exists or collection.get(namespace, name) is not None:
                revision += 1
                stored = value(name) if exists else None
                changes.append(collection.apply(namespace, name, stored, revision, revision))
        collection.publish(changes)
    for each in watching:
        wanted = each.wanted
        assert each.got == [
            event
            for event in every.got
            if wanted.namespace in ("", event[1]) and wanted.name in ("", event[2])
        ]  # fmt: skip
        collection.leave(each.watcher)
    collection.leave(every.watcher)
    assert not collection.watchers and not collection._groups_by_place
