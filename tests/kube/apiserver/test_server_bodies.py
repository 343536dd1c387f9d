"""How bodies are read: depth, and words that only look like brackets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_kit import CMS, Api

from coterie.kube.api import errors
from coterie.kube.apiserver import bodies

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text('[]{}"\\\n ä'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[]{}"\\'), inner, max_size=4),
    max_leaves=30,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(item) for item in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(item) for item in value), default=0)
    return 0


@given(VALUES, st.integers(0, 6))
def test_depth_is_counted_as_the_parser_sees_it(value: object, limit: int):
    text = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "MAX_DEPTH", limit)
        if depth(value) > limit:
            with pytest.raises(errors.BadRequest):
                bodies.read_json(text)
        else:
            assert bodies.read_json(text) == value


@pytest.mark.parametrize("levels", [bodies.MAX_DEPTH, bodies.MAX_DEPTH + 1])
@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["lists", "objects"])
def test_the_limit(start: bytes, end: bytes, levels: int):
    body = start * levels + b"1" + end * levels
    if levels > bodies.MAX_DEPTH:
        with pytest.raises(errors.BadRequest):
            bodies.read_json(body)
    else:
        bodies.read_json(body)


def test_repeated_keys_at_any_depth():
    assert bodies.duplicate_fields(b'{"a":1,"b":{"c":1,"c":2},"a":3}') == ["c", "a"]
    assert bodies.duplicate_fields(b'{"a":1,"b":{"a":1}}') == []


@pytest.mark.parametrize(
    ("query", "agent", "indented"),
    [
        ("", "kubectl/v1.32", False),
        ("pretty=true", "kubectl/v1.32", True),
        ("pretty=1", "", True),
        ("", "curl/8.0", True),
        ("", "Wget/1.21", True),
        ("", "Mozilla/5.0 (X11)", True),
        ("pretty=false", "curl/8.0", False),
        ("pretty=0", "curl/8.0", False),
        ("pretty=nonsense", "x", False),
    ],
)
async def test_people_get_indented_json(api: Api, query: str, agent: str, indented: bool) -> None:
    await api.config_map("a")
    for path in (f"{CMS}/a", CMS, f"{CMS}/none", "/api/v1"):
        answer = await api.call("GET", path, query=query, headers={"user-agent": agent})
        assert answer.json
        assert (b'\n  "kind": ' in answer.body) == indented, path
