"""JSONPath of printer columns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.kube.apiserver.tables.jsonpath import PathError, compile_path

OBJ: dict[str, Any] = {
    "metadata": {"name": "x", "labels": {"app.kubernetes.io/name": "web", "a": "1"}},
    "spec": {"ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}], "on": True, "none": None},
    "status": {
        "conditions": [
            {"type": "Pending", "status": "False"},
            {"type": "Ready", "status": "True", "reason": "it's [ok]"},
        ],
        "nested": {"deep": [{"v": [1, 2]}, {"v": [3]}]},
    },
}

ROWS: list[tuple[str, list[Any]]] = [
    (".metadata.name", ["x"]),
    ("metadata.name", ["x"]),
    ("{.metadata.name}", ["x"]),
    ("$.metadata.name", ["x"]),
    (".metadata.missing.more", []),
    (".spec.none", [None]),
    (".spec.ports[0].port", [80]),
    (".spec.ports[-1].name", ["https"]),
    (".spec.ports[7].name", []),
    (".spec.ports[*].port", [80, 443]),
    (".spec.ports[0:1].port", [80]),
    (".spec.ports[:].port", [80, 443]),
    (".spec.ports[0,1].name", ["http", "https"]),
    (".metadata.labels.app\\.kubernetes\\.io/name", ["web"]),
    (".metadata.labels['app.kubernetes.io/name']", ["web"]),
    ('.metadata.labels["app.kubernetes.io/name"]', ["web"]),
    (".metadata.labels['a','app.kubernetes.io/name']", ["1", "web"]),
    (".metadata.labels.*", ["web", "1"]),
    ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
    (".status.conditions[?(@.type=='Ready')].status", ["True"]),
    ('.status.conditions[?( @.type == "Ready" )].reason', ["it's [ok]"]),
    ('.status.conditions[?(@.type!="Ready")].type', ["Pending"]),
    ('.status.conditions[?(@.type=="Gone")].status', []),
    (".status.conditions[?(@.reason)].type", ["Ready"]),
    (".spec.ports[?(@.port>100)].name", ["https"]),
    (".spec.ports[?(@.port<=80)].name", ["http"]),
    (".spec.ports[?(@.port==443)].name", ["https"]),
    (".spec.ports[?(@.name>100)].name", []),
    (".status.nested.deep[*].v[0]", [1, 3]),
    (".status..v", [[1, 2], [3]]),
    ("..deep[0].v[1]", [2]),
]


@pytest.mark.parametrize(("path", "values"), ROWS, ids=[row[0] for row in ROWS])
def test_find(path: str, values: list[Any]) -> None:
    assert compile_path(path)(OBJ) == values


@pytest.mark.parametrize(
    "path", [".a[", ".a[x]", ".a[?(type==1)]", ".a.[0", ".a]", ".a[?(@.b==c)]", ".a['b]", ".a[::0]", ".a b"]
)
def test_nonsense_is_refused(path: str) -> None:
    with pytest.raises(PathError):
        compile_path(path)


@given(st.text(alphabet=".[]*?()@'\"=ab01:,\\ {}", max_size=20))
def test_any_text_is_a_path_or_a_path_error(path: str) -> None:
    try:
        find = compile_path(path)
    except PathError:
        return
    assert isinstance(find({"a": [{"b": 1}], "b": {"a": "0"}}), list)
