"""The pure parts: words to targets, files to objects, objects to text, errors to sentences."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coterie.cli import manifests, resource_arguments
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.error_messages import refusal, unreachable
from coterie.cli.output import as_json, as_list, as_yaml, without_managed_fields
from coterie.kube.api import errors
from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.client.discovery import RestMapper, UnknownResource
from coterie.kube.client.transport import CredentialsError, Disconnected, NotSent, ResponseTimeout

CATALOGUE = RestMapper(BUILTIN)


def app(folder: Path = Path(), stdin: str = "") -> App:
    return App(io.StringIO(), io.StringIO(), {}, io.StringIO(stdin), folder)


# Words.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pods", [("pods", ())]),
        ("po,svc", [("pods", ()), ("services", ())]),
        ("po,pods,pod", [("pods", ())]),
        ("deploy web api web", [("deployments", ("web", "api"))]),
        ("pods,svc web", [("pods", ("web",)), ("services", ("web",))]),
        ("pod/a svc/b pod/c", [("pods", ("a", "c")), ("services", ("b",))]),
        ("deployments.apps", [("deployments", ())]),
        ("deployments.v1.apps/web", [("deployments", ("web",))]),
    ],
)
def test_words_become_targets(words, expected):
    found = resource_arguments.parse(words.split(), CATALOGUE, "get")
    assert [(t.resource.plural, t.names) for t in found] == expected


def test_categories_hold_their_types():
    found = [t.resource.plural for t in resource_arguments.parse(["all"], CATALOGUE, "get")]
    assert {"pods", "services", "deployments", "jobs"} <= set(found)
    assert "configmaps" not in found
    assert len(found) == len(set(found))


@pytest.mark.parametrize("words", ["", "pod/a web", "pods a/b", "pod/", "/a", "pod/a/b"])
def test_words_that_make_no_sense(words):
    with pytest.raises(UsageError):
        resource_arguments.parse(words.split(), CATALOGUE, "get")


def test_a_type_that_is_not_there():
    with pytest.raises(UnknownResource, match="frobs"):
        resource_arguments.parse(["pods,frobs"], CATALOGUE, "get")


def test_names_of_kinds():
    core = Resource("", "v1", "pods", "Pod", True)
    grouped = Resource("apps", "v1", "deployments", "Deployment", True)
    assert (resource_arguments.kind_name(core), resource_arguments.kind_name(grouped)) == ("pod", "deployment.apps")


# Files.

ONE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


def names(text: str) -> list[str]:
    return [m.name for m in manifests.parse(text, "x.yaml")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ONE, ["a"]),
        (f"---\n{ONE}---\n# only a comment\n---\n{ONE.replace('a}', 'b}')}", ["a", "b"]),
        ('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j"}}', ["j"]),
        ("{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: i}}]}", ["i"]),
        ("{apiVersion: v1, kind: PodList, items: [{metadata: {name: p}}, {metadata: {name: q}}]}", ["p", "q"]),
        ("", []),
    ],
    ids=["one", "several", "json", "list", "typed-list", "empty"],
)
def test_files_hold_objects(text, expected):
    assert names(text) == expected


def test_items_of_a_typed_list_get_their_kind():
    (found,) = manifests.parse("{apiVersion: apps/v1, kind: DeploymentList, items: [{metadata: {name: d}}]}", "x")
    assert (found.api_version, found.kind) == ("apps/v1", "Deployment")


def test_dates_stay_text():
    (found,) = manifests.parse(ONE + "data: {since: 2026-01-02, at: 2026-01-02T03:04:05Z}\n", "x")
    assert found.object["data"] == {"since": "2026-01-02", "at": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2", r"x.yaml is not valid YAML: .* \(line 2, column 2\)"),
        (ONE + "data: {k: 1, k: 2}", r'the key "k" stands twice \(line 4'),
        ("- a", "must be a mapping"),
        ("kind: Pod\nmetadata: {}", "apiVersion is missing"),
        ("apiVersion: v1\nmetadata: {}", "kind is missing"),
        ("apiVersion: v1\nkind: Pod", "metadata is missing"),
        (f"{ONE}---\njust text", "x.yaml, document 2"),
        ("{apiVersion: v1, kind: List, items: [7]}", r"items\[0\]"),
        ("a: !!python/object:os.system {}", "is not valid YAML"),
    ],
)
def test_files_that_cannot_be_sent_name_the_place(text, said):
    with pytest.raises(CliError, match=said):
        names(text)


def test_anchors_and_merges_are_understood():
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: &m {name: a}\nx: {<<: *m, b: c}\n"
    (found,) = manifests.parse(text, "x")
    assert found.object["x"] == {"name": "a", "b": "c"}


def test_directories_are_read_in_order(tmp_path):
    (tmp_path / "sub").mkdir()
    for path, name in (("b.yaml", "b"), ("a.yml", "a"), ("c.json", "c"), ("notes.txt", "n"), ("sub/d.yaml", "d")):
        (tmp_path / path).write_text(ONE.replace("a}", f"{name}}}"))
    flat = manifests.read([str(tmp_path)], app())
    deep = manifests.read(["."], app(tmp_path), recursive=True)
    assert [m.name for m in flat] == ["a", "b", "c"]
    assert [m.name for m in deep] == ["a", "b", "c", "d"]


def test_standard_input_is_a_file():
    (found,) = manifests.read(["-"], app(stdin=ONE))
    assert (found.name, found.place) == ("a", "standard input")


def test_missing_and_unreadable_files(tmp_path):
    (tmp_path / "latin").write_bytes(b"a: \xe9")
    (tmp_path / "empty").write_text("# nothing\n")
    for name, said in (("none", "there is no file none"), ("latin", "not text in UTF-8"), ("empty", "no objects in")):
        with pytest.raises(CliError, match=said):
            manifests.read([name], app(tmp_path))


# Text.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])) | st.sampled_from(["a\nb", "a \nb\n", "\n", "yes", "2026-01-01", "1e3", "~", "- x: |\n  y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.-/", min_size=1, max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(VALUES)
def test_yaml_says_what_the_object_says(value):
    assert yaml.safe_load(as_yaml({"v": value})) == {"v": value}


def test_yaml_is_readable():
    text = as_yaml({"b": "line\nnext\n", "a": 1, "c": {"d": []}})
    assert text == "a: 1\nb: |\n  line\n  next\nc:\n  d: []\n"


def test_yaml_has_no_anchors():
    same = {"k": ["v"]}
    assert "&" not in as_yaml({"a": same, "b": same})


def test_json_is_sorted_and_keeps_letters():
    assert as_json({"b": "ü", "a": 1}) == '{\n    "a": 1,\n    "b": "ü"\n}\n'


def test_managed_fields_are_left_out():
    obj = {"kind": "Pod", "metadata": {"name": "a", "managedFields": [{}]}}
    assert without_managed_fields(obj) == {"kind": "Pod", "metadata": {"name": "a"}}
    assert without_managed_fields(obj, managed=True) is obj
    assert as_list([obj])["kind"] == "List"


# Errors.


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.NotFound('pods "x" not found'), 'Error from server (NotFound): pods "x" not found'),
        (errors.Forbidden("no"), "Error from server (Forbidden): no"),
        (
            errors.invalid_object("Pod", "", "x", [errors.required("spec.a"), errors.invalid("spec.b", 1, "no")]),
            'Error from server (Invalid): Pod "x" is invalid, correct these fields and try again:\n'
            "  spec.a: Required value\n  spec.b: Invalid value: 1: no",
        ),
        (
            errors.ApplyConflict("c", causes=[errors.StatusCause("FieldManagerConflict", 'conflict with "other"', ".spec.a")]),
            "Error from server (Conflict): others manage what the file sets; apply with --force-conflicts to take these "
            'fields over, or leave them out of the file:\n  .spec.a: conflict with "other"',
        ),
    ],
    ids=["not-found", "forbidden", "invalid", "conflict"],
)  # fmt: skip
def test_refusals(error, expected):
    assert refusal(error) == expected


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotSent("x"), "no control plane answers at https://s; start it with `coterie start -c FILE`"),
        (ResponseTimeout("x"), "did not answer in time"),
        (Disconnected("cut"), "broke (cut); try again"),
        (CredentialsError("no token"), "no token; repair the kubeconfig's user"),
    ],
    ids=["refused", "silent", "cut", "credentials"],
)
def test_transport_failures_are_one_sentence(error, said):
    told = unreachable(error, "https://s")
    assert said in told
    assert "\n" not in told
