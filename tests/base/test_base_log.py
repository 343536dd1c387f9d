"""Log lines: their shape, and what must never be in them."""

import io
import json
import logging

import pytest

from coterie.base.log import LogSettings, configure, log_context, logger, redact
from coterie.base.secret import SecretValue

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"


@pytest.fixture
def lines():
    """A function that configures logging and answers what was written since."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()

    def start(**settings):
        configure(LogSettings(**settings), stream)
        return lambda: stream.getvalue().splitlines()

    yield start
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
    root.setLevel(level)
    for name in ("coterie", "coterie.part"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_plain_line(lines):
    read = lines()
    log = logger("part").bind(job="alice/job-1")
    log.info("Phase changed", old="Pending", n=3, ok=True, none=None, ratio=0.25, text='two "words"\nand a line')
    (line,) = read()
    stamp, rest = line.split(" ", 1)
    assert stamp.endswith("Z") and len(stamp) == 24
    assert rest == (
        "info  part: Phase changed job=alice/job-1 old=Pending n=3 ok=true none=null ratio=0.25"
        ' text="two \\"words\\"\\nand a line"'
    )


def test_binding_does_not_change_the_parent(lines):
    read = lines()
    parent = logger("part")
    parent.bind(a=1).bind(b=2).info("child")
    parent.info("parent")
    assert [line.split(": ", 1)[1] for line in read()] == ["child a=1 b=2", "parent"]


def test_json_line(lines):
    read = lines(format="json")
    logger("part").warning("Odd thing", error=ValueError("bad"), count=2, message="clash", password="p")
    entry = json.loads(read()[0])
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "warn",
        "logger": "part",
        "message": "Odd thing",
        "count": 2,
        "field_message": "clash",
        "password": "******",
        "error": "ValueError: bad",
    }


def test_levels_of_parts(lines):
    read = lines(level="warn", levels={"part": "debug"})
    logger("part").debug("seen")
    logger("other").info("not seen")
    assert [line.split(": ")[1] for line in read()] == ["seen"]
    assert logger("part").enabled(10) and not logger("other").enabled(20)


@pytest.mark.parametrize("shape", ["plain", "json"])
@pytest.mark.parametrize(
    "fields",
    [
        {"value": SecretValue("hunter2")},
        {"password": "hunter2"},
        {"bearer_token": "hunter2"},
        {"headers": {"Authorization": "hunter2", "cookie": "hunter2"}},
        {"items": [SecretValue("hunter2")]},
        {"body": b"hunter2"},
        {"text": "Authorization: Bearer hunter2hunter2"},
        {"pem": "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----"},
        {"token_count": 424242},
    ],
    ids=["type", "key", "key-part", "mapping", "list", "bytes", "bearer", "pem", "number"],
)
def test_secrets_are_kept_back(lines, shape, fields):
    read = lines(format=shape)
    logger("part").info("Something", **fields)
    written = "\n".join(read())
    assert "hunter2" not in written and "424242" not in written


def test_tokens_are_cut_out_of_sentences_and_traces(lines):
    read = lines()
    try:
        raise RuntimeError(f"refused {JWT}")
    except RuntimeError as error:
        logger("part").error("Broken", error=error, trace=True)
    logging.getLogger("somebody.else").warning("header Bearer %s", "abcdefghijkl")
    written = "\n".join(read())
    assert "eyJ" not in written and "abcdefghijkl" not in written
    assert "    Traceback" in written


def test_foreign_line_breaks_cannot_forge_lines(lines):
    read = lines()
    logging.getLogger("somebody.else").warning("a\n2026-01-01T00:00:00.000Z error forged")
    assert len(read()) == 1


def test_colour_only_when_asked(lines):
    read = lines(colour=True)
    logger("part").error("Red")
    assert "\x1b[31m" in read()[0]


def test_configure_twice_writes_once(lines):
    lines()
    read = lines()
    logger("part").info("once")
    assert len(read()) == 1


def test_long_values_are_cut(lines):
    read = lines()
    logger("part").info("Long", text="x" * 10_000)
    assert len(read()[0]) < 2300


@pytest.mark.parametrize("bad", [{"format": "xml"}, {"level": "loud"}])
def test_configure_refuses(bad):
    with pytest.raises(ValueError):
        configure(LogSettings(**bad), io.StringIO())


def test_redact_leaves_the_rest():
    assert redact(f"a {JWT} b") == "a ****** b"
    assert redact("nothing here") == "nothing here"


def test_facts_of_a_context_are_on_every_line_inside_and_on_none_outside(lines):
    asked = []

    def facts():
        asked.append(1)
        return {"job": "j-1", "task": "t-1"}

    written = lines(level="info")
    log = logger("part")
    with log_context(facts):
        log.debug("Not written")
        assert asked == [], "nothing is computed for lines that are not written"
        log.info("Inside", task="t-2", phase="Running")
    log.info("Outside")
    inside, outside = written()
    assert inside.endswith("part: Inside task=t-2 phase=Running job=j-1")
    assert outside.endswith("part: Outside")
