"""The language of config templates: what is filled in, what is refused and with which words, and that nothing breaks it."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.base import pki
from coterie.kube.agent.pods.downward import ConfigProblem, NoSuchConfig
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeTransport, json_reply
from coterie.kuscia.api import labels
from coterie.kuscia.engine.templates import template, values
from coterie.kuscia.engine.templates.config_store import DomainConfig, NoConfigStore, SealedConfig, decrypted
from coterie.kuscia.engine.templates.errors import TemplateError
from coterie.kuscia.identity.sealing import encrypt_for

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

CLUSTER = {
    "parties": [
        {"name": "alice", "role": "", "services": [{"portName": "talk", "endpoints": ["t-0-talk.alice.svc"]}]},
        {"name": "bob", "role": "x", "services": []},
    ],
    "selfPartyIdx": 0,
    "ok": False,
    "half": 0.5,
    "none": None,
    "empty": "",
    "text": "0",
}
VALUES = {"DEF": json.dumps(CLUSTER), "ID": "t", "QUOTED": 'say "hi"\n\\ <b> é', "NOT_JSON": "{oops", "N": "1"}


def rendered(text: str) -> str:
    return template.render(template.parse(text), VALUES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain { } }} text", "plain { } }} text"),
        ("{{.ID}}", "t"),
        ("{{ .ID }}-{{.ID}}", "t-t"),
        ("[{{.MISSING}}]", "[]"),
        ("a \n {{- .ID -}} \n b", "atb"),
        ("a {{- .ID}} b", "at b"),
        ("a {{.ID -}}\n b", "a tb"),
        ("{{/* a {{.ID}} comment */}}x", "x"),
        ('{{"{{.ID}}"}}', "{{.ID}}"),
        ("{{`{{`}}", "{{"),
        ('{"a": {{.N}}}', '{"a": 1}'),
        ('{"a":{{.N}}}', '{"a":1}'),
        ("{{{{.ID}}}}", "{t}"),
        ("{{{.ID}}}", "t"),
        ("{{{ .DEF.selfPartyIdx }}}", "0"),
        ("{{{.DEF.ok}}}", "false"),
        ("{{{.DEF.half}}}", "0.5"),
        ("{{{.DEF.none}}}{{{.DEF.empty}}}", ""),
        ("{{{.DEF.parties[1].name}}}", "bob"),
        ("{{{.DEF.parties[.DEF.selfPartyIdx].name}}}", "alice"),
        ("{{{.DEF.parties[.DEF.text].name}}}", "alice"),
        ("{{{.DEF.parties[.N].name}}}", "bob"),
        ("{{{.DEF.parties[name=bob].role}}}", "x"),
        ("{{{.DEF.parties[name=alice].services[portName=talk].endpoints[0]}}}", "t-0-talk.alice.svc"),
        ("{{{.DEF.parties[role=].name}}}", "alice"),
        ("{{{.DEF.parties[name=carol].name}}}", ""),
        ("{{{.DEF.parties[9].name}}}{{{.DEF.parties.name}}}{{{.DEF.x.y[0]}}}", ""),
        ("{{{.DEF.parties[.DEF.half].name}}}{{{.DEF.parties[.MISSING.x].name}}}", ""),
        ("{{{.DEF.parties[1].services}}}", "[]"),
        ("{{{.NOT_JSON}}}", "{oops"),
        ("{{{.NOT_JSON.a}}}{{{.MISSING}}}", ""),
    ],
)
def test_what_is_filled_in(text: str, expected: str) -> None:
    assert rendered(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\nb {{if .ID}}x{{end}}", 'line 2: "if" is not supported in config templates; only {{.NAME}} is'),
        ("{{range .ID}}", '"range" is not supported'),
        ("{{ end }}", '"end" is not supported'),
        ("{{.ID | printf}}", "pipelines"),
        ('{{printf "%s" .ID}}', '"printf" is not supported'),
        ("{{$x := .ID}}", "is not supported in config templates"),
        ("{{.DEF.a}}", "written with three braces: {{{.DEF.a}}}"),
        ("{{}}", "names nothing"),
        ("{{.ID}", "line 1: {{ is never closed by }}"),
        ("{{/* x", "a comment is never closed"),
        ('{{"a" "b"}}', "is not supported"),
        ("{{{.DEF[x}}}", "neither .field nor [index]"),
        ("{{{.DEF[.ID}}}", "should be the ]"),
        ("{{{.DEF[-1]}}}", "neither .field nor [index]"),
        ("{{{.1}}}", "does not begin with .NAME"),
        ("{{{.A" + "[.A" * 20 + "]" * 20 + "}}}", "too many times over"),
        ("{{.KUSCIA_DOMAIN_KEY_DATA}}", "the domain's private key is not given to engines"),
        ("{{{.A[.KUSCIA_DOMAIN_KEY_DATA]}}}", "the domain's private key is not given to engines"),
    ],
)
def test_what_is_refused(text: str, told: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(text)
    assert told in str(caught.value)


@UNHURRIED
@given(st.text())
def test_a_value_between_quotes_is_that_value(value: str) -> None:
    made = template.render(template.parse('{"a": "{{.A}}"}'), {"A": value})
    assert json.loads(made) == {"a": value}


_PIECES = st.sampled_from(
    [
        "{",
        "{{",
        "{{{",
        "}",
        "}}",
        "}}}",
        ".A",
        ".A.b",
        "[0]",
        "[.A]",
        "[x=y]",
        "-",
        " - ",
        '"',
        "`",
        "/*",
        "*/",
        "if ",
        "\n",
    ]
)


@UNHURRIED
@given(
    st.lists(st.one_of(_PIECES, st.text(max_size=4))).map("".join),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("bxy"), inner, max_size=3),
        max_leaves=5,
    ).map(json.dumps)
    | st.text(),
)
def test_any_text_is_rendered_or_refused(text: str, value: str) -> None:
    try:
        parsed = template.parse(text)
    except TemplateError as problem:
        assert str(problem)
        return
    assert isinstance(template.render(parsed, {"A": value}), str)
    assert parsed.names <= {"A", *(name for name in parsed.names if name in text)}


def test_what_stands_in_a_value_is_never_read_as_a_template() -> None:
    assert template.render(template.parse("{{.A}} {{{.A}}}"), {"A": "{{.B}}", "B": "no"}) == "{{.B}} {{.B}}"


@pytest.mark.parametrize("text", ["{{" + " " * 20000, "{{" * 20000, "{" * 20000, "{{- " * 9000, "{{{" + " ." * 20000])
def test_a_hostile_template_is_read_in_no_time(text: str) -> None:
    with pytest.raises(TemplateError):
        template.parse(text)


def test_a_file_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "LONGEST_FILE", 100)
    with pytest.raises(TemplateError, match="once filled in"):
        template.render(template.parse("{{.A}}" * 20), {"A": "x" * 10})


# Values.


def config_map(data: dict[str, str], packed: dict[str, bytes], listed: str = "TASK_INPUT_CONFIG") -> dict[str, Any]:
    return {
        "metadata": {"name": "gen", "annotations": {labels.KUSCIA_CONFIG_VALUE_COMPRESS_FIELDS: listed}},
        "data": data,
        "binaryData": {key: base64.b64encode(value).decode() for key, value in packed.items()},
    }


def test_values_of_a_config_map() -> None:
    obj = config_map({"TASK_ID": "t", "OTHER": "x"}, {"TASK_INPUT_CONFIG": zlib.compress(b"{}"), "RAW": b"raw"})
    wanted = {"TASK_ID", "TASK_INPUT_CONFIG", "RAW"}
    assert values.of_config_map(obj, wanted) == {"TASK_ID": "t", "TASK_INPUT_CONFIG": "{}", "RAW": "raw"}


@pytest.mark.parametrize(
    ("packed", "told"),
    [
        (b"not zlib", "the value TASK_INPUT_CONFIG in configmap gen is damaged"),
        (zlib.compress(b"x" * 1000)[:-8], "damaged"),
        (zlib.compress(b"\xff"), "damaged"),
        (zlib.compress(bytes(values.LARGEST + 1)), "larger than 16 MiB"),
    ],
    ids=["nonsense", "cut", "not-text", "bomb"],
)
def test_values_that_cannot_be_opened(packed: bytes, told: str) -> None:
    with pytest.raises(TemplateError, match=told):
        values.of_config_map(config_map({}, {"TASK_INPUT_CONFIG": packed}), {"TASK_INPUT_CONFIG"})


def test_several_bombs_have_one_limit_together() -> None:
    half = zlib.compress(bytes(values.LARGEST // 2 + 1))
    with pytest.raises(TemplateError, match="larger than"):
        values.of_config_map(config_map({}, {"A": half, "B": half}, "A, B"), {"A", "B"})


def test_names_of_variables_are_in_capitals() -> None:
    assert values.of_variables({"Threads": "4"}) == {"THREADS": "4"}


# The config store.

KEY = pki.new_key("rsa")


@pytest.mark.parametrize("text", ["", "short", "x" * 1000, "é" * 190])
def test_the_config_store_opens_what_was_sealed(text: str) -> None:
    assert decrypted("K", encrypt_for(text, KEY.public_key()), KEY) == text


async def test_the_config_store_is_asked_once() -> None:
    data = {"A": encrypt_for("1", KEY.public_key()), "B": encrypt_for("2", KEY.public_key()), "domain-public-key": "x"}
    transport = FakeTransport(lambda _: json_reply({"metadata": {"name": "domain-config"}, "data": data}))
    store = DomainConfig(Client(transport), "alice", lambda: KEY)
    assert await store.look_up(["A", "B", "C"]) == {"A": "1", "B": "2"}
    assert transport.requests == ["GET /api/v1/namespaces/alice/configmaps/domain-config"]
    assert await NoConfigStore().look_up(["A"]) == {}


async def test_a_node_that_joined_tells_which_values_it_cannot_read() -> None:
    data = {"A": encrypt_for("1", KEY.public_key()), "B": "x"}
    transport = FakeTransport(lambda _: json_reply({"metadata": {"name": "domain-config"}, "data": data}))
    store = SealedConfig(Client(transport), "alice")
    assert await store.look_up(["C"]) == {}
    with pytest.raises(
        NoSuchConfig, match="needs A, B of the domain's config store, which the control plane's node has"
    ):
        await store.look_up(["B", "C", "A"])


@pytest.mark.parametrize(
    "text", ["***", base64.b64encode(b"x" * 256).decode(), encrypt_for("x", pki.new_key("rsa").public_key())]
)
def test_a_value_for_another_key_is_told(text: str) -> None:
    with pytest.raises(ConfigProblem, match="the value K in the domain's config store is not encrypted with"):
        decrypted("K", text, KEY)
