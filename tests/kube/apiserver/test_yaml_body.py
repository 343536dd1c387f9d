"""YAML in requests: what JSON can say comes out, everything else is refused in bounded time and space."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.kube.api import errors
from coterie.kube.apiserver import bodies, yaml_body

GOOD: dict[str, tuple[str, Any]] = {
    "an object": ("a: 1\nb: [x, 2.5, yes, ~, '7', 0x1f]\nc:\n- d: {}\n", {"a": 1, "b": ["x", 2.5, True, None, "7", 31], "c": [{"d": {}}]}),
    "nothing": ("", None),
    "a date stays text": ("a: 2020-01-01", {"a": "2020-01-01"}),
    "a key is text": ("1: 2\ntrue: 3\n~: 4", {"1": 2, "true": 3, "~": 4}),
    "a merge key is a key": ("<<: {a: 1}", {"<<": {"a": 1}}),
    "a tag that JSON knows": ("a: !!str 5\nb: !!int '6'", {"a": "5", "b": 6}),
    "an integer too large": ("a: 99999999999999999999", {"a": 1e20}),
    "a block of text": ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
    "the last of equal keys": ("a: 1\na: 2", {"a": 2}),
}  # fmt: skip

BAD = {
    "an anchor": "a: &x 1",
    "an alias": "a: *x",
    "a bomb": "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]",
    "a collection as key": "? [a]\n: b",
    "a tag of Python": "a: !!python/object/apply:os.system [x]",
    "a tag of a collection": "a: !!set {b}",
    "a tag of its own": "a: !x 5",
    "binary": "a: !!binary AAAA",
    "not a number": "a: .nan",
    "infinity": "a: .inf",
    "a number beyond all bounds": "a: " + "9" * 5000,
    "what the tag does not fit": "a: !!int x",
    "two documents": "a\n---\nb",
    "an open bracket": "[",
    "a tab": "a:\n\t- b",
    "half a character": 'a: "\\ud800"',
    "deep flow": "[" * 1_000_000,
    "deep maps": "{a: " * 300_000,
    "deep blocks": "- " * 300_000,
}


@pytest.mark.parametrize(("text", "value"), GOOD.values(), ids=GOOD)
def test_yaml_is_read_as_json_would_have_it(text: str, value: Any) -> None:
    assert yaml_body.read(text, 200) == value


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_other_yaml_is_refused(text: str) -> None:
    with pytest.raises(errors.BadRequest, match="not valid YAML"):
        bodies.read_yaml(text.encode())


def test_depth_is_counted_exactly() -> None:
    assert yaml_body.read("[" * 5 + "]" * 5, 5) == [[[[[]]]]]
    with pytest.raises(yaml_body.BadYaml, match="deeper than 5"):
        yaml_body.read("[" * 6 + "]" * 6, 5)


def test_bad_text_is_refused() -> None:
    with pytest.raises(errors.BadRequest, match="UTF-8"):
        bodies.read_yaml(b"a: \xff")
