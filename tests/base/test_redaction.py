"""What is cut out of a text, what stays, and that no text makes it slow."""

from __future__ import annotations

import base64
import html
import json
import random
import string
from urllib.parse import quote

import pytest

from coterie.base.redaction import LONGEST_LINE, Redactor, encodings_of, pattern_fault

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEAx7\nshort+/=\nab12\n-----END RSA PRIVATE KEY-----"  # not a real key
CUT = [
    ("GET https://bob:Pa55/w@rd@db.example/x", "Pa55"),
    ("connect mysql://root:x@10.0.0.1:3306/db", "root:x"),
    ("Authorization: Bearer abcdefgh.ijk", "abcdefgh"),
    ("header Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ('{"authorization": "Token zzz-yyy"}', "zzz-yyy"),
    ("Cookie: session=abc123; other=def", "def"),
    ("use bearer s3cr3t-value now", "s3cr3t-value"),
    ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl ok", "c2lnbmF0dXJl"),
    ("password=hunter2", "hunter2"),
    ("db_password: 'hun ter2'", "hun ter2"),
    ('{"api_key": "k-1", "x": 1}', "k-1"),
    ('"{\\"secretKey\\": \\"k-2\\"}"', "k-2"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEK1Y", "wJalrXUtnFEMI"),
    ("id AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    ("run --token abc --count 3", "abc"),
    ("the password is swordfish", "swordfish"),
    ("the token is abc-123-xyz", "abc-123"),
    ("deploy with Zx8QmW2vB7nK4rT9yH3jL6pS1dF5gA0c", "Zx8QmW2v"),
    ("aes 00112233445566778899aabbccddeeff", "00112233"),
    ("aes b64 ABEiM0RVZneImaq7zN3u/w==", "ABEiM0RV"),
    ("ghp_0123456789abcdefghij", "ghp_0123"),
    (PEM.replace("\n", "\\n"), "MIIEpAIB"),
    ('{"password": "ab\\"cd-rest"}', "rest"),
    ('{"passwords": ["hunter2", "other3"]}', "other3"),
    ('"password":{"value":"hunter2"}', "hunter2"),
    ("password:          hunter2", "hunter2"),
    ("\x1b[36mpassword\x1b[0m=\x1b[1mhunter2\x1b[0m", "hunter2"),
    ("\x1b[36mpassword\x1b[0m: hunter2", "hunter2"),
    ("pass\u200bword=hunter2", "hunter2"),
    ("数据库密码：hunter2", "hunter2"),
    ("<db:password>hunter2</db:password>", "hunter2"),
    ("open root:hunter2@tcp(127.0.0.1:3306)/db", "hunter2"),
    ("clone https://abcdefghijk12345@git.example/x", "abcdefghijk"),
    ("CREATE USER a IDENTIFIED BY 'hunter2'", "hunter2"),
]


@pytest.mark.parametrize(("text", "secret"), CUT, ids=[row[0][:30] for row in CUT])
def test_what_looks_like_a_secret_is_cut(text: str, secret: str) -> None:
    redactor = Redactor()
    assert secret not in redactor.line(text)
    assert redactor.total >= 1


KEPT = [
    "2026-01-02T03:04:05.678Z info scheduler: Pod bound pod=alice/common-customers-psi-0 node=alice-0",
    "/var/stdout/pods/alice_common-customers-8f3d2c1b-psi-0_0b9d4c52-6d61-4f4f-9d3c-2f0a6f7f1d2e/main/0.log",
    "image app@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "trace=4bf92f3577b34da6a3ce929d0e0e4736 span ended",
    "Traceback (most recent call last): ValueError: rows 12 != 13",
    "the token expired yesterday; https://host:8080/path",
    "basic authentication is off",
    "the token is valid; no secret was found",
    "kuscia.secretflow/task-id: psi-1 secretflow=1.11",
]


@pytest.mark.parametrize("text", KEPT, ids=[each[:30] for each in KEPT])
def test_what_is_needed_to_understand_a_failure_stays(text: str) -> None:
    assert Redactor().line(text) == text


def test_a_private_key_over_several_lines_is_cut_whole_also_between_lines_of_another_stream() -> None:
    redactor = Redactor()
    shown = []
    for line in PEM.split("\n"):
        shown.append(redactor.line(line, "a"))
        shown.append(redactor.line("ordinary", "b"))
    shown.append(redactor.line("after", "a"))
    text = "\n".join(shown)
    assert not any(piece in text for piece in ("MIIEpAIB", "short+", "ab12"))
    assert shown.count("ordinary") == 5 and shown[-1] == "after"


def test_a_key_without_an_end_does_not_hide_everything_for_ever() -> None:
    redactor = Redactor()
    redactor.line("-----BEGIN PRIVATE KEY-----")
    assert [redactor.line("x") for _ in range(500)][-1] == "x"


def test_a_known_value_is_found_in_every_encoding() -> None:
    secret = "pl4nted-secret/value?"
    texts = [
        secret,
        base64.b64encode(secret.encode()).decode(),
        base64.urlsafe_b64encode(secret.encode()).decode(),
        quote(secret, safe=""),
        secret.encode().hex(),
        json.dumps({"a": secret}),
    ]
    for before in range(7):
        inner = b"kubeconfig: "[:before] + secret.encode() + b" rest"
        texts.append(base64.b64encode(inner).decode())
    for text in texts:
        shown = Redactor([secret]).line(text)
        assert secret not in shown and not any(form in shown for form in encodings_of(secret)), text
        # What is left of the base64 does not decode to it either.
        for offset in range(4):
            piece = text[offset : offset + (len(text) - offset) // 4 * 4]
            assert piece not in shown or secret.encode() not in base64.b64decode(piece + "==", validate=False)


def test_a_known_value_is_found_as_programs_quote_it() -> None:
    secret = 'pl4nted"s\u00e9cret/\\value&'
    raw = secret.encode()
    for text in (
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        json.dumps(secret).replace("/", "\\/"),
        json.dumps(json.dumps(secret)),
        html.escape(secret),
        quote(secret, safe="").lower(),
        quote(quote(secret, safe=""), safe=""),
        raw.hex().upper(),
        raw.hex(":"),
        repr(raw),
        base64.b32encode(raw).decode(),
        "pl4nted\x1b[1m" + secret.removeprefix("pl4nted"),
    ):
        assert "[redacted:known]" in Redactor([secret]).line(f"x {text} y"), text


def test_short_known_values_do_not_cut_words() -> None:
    assert Redactor(["a", "test"]).line("a test") == "a test"


def test_lines_of_a_known_key_are_found_one_by_one() -> None:
    key = "-----BEGIN X-----\n0123456789abcdef\nqwertyuiopasdfgh\n-----END X-----\n"
    assert Redactor([key]).line("see qwertyuiopasdfgh") == "see [redacted:known]"


def test_rules_of_the_owner() -> None:
    assert Redactor(patterns=[r"customer-\d{4}"]).line("for customer-1234") == "for [redacted:own-rule]"


FAULTY = [
    "(a+)+",
    "(a*b?){2,}",
    "((a+)b)*",
    r"(a)\1",
    ".*x.*y",
    "",
    "a*",
    "[",
    "a" * 300,
    "a+b+c+d+e+",
    "(?P<x>a)(?P=x)",
    "(?:a|a)*b",
    "((a|aa)c?){3,}d",
]


@pytest.mark.parametrize("pattern", FAULTY)
def test_rules_that_could_take_for_ever_are_refused(pattern: str) -> None:
    assert pattern_fault(pattern)
    assert Redactor(patterns=[pattern]).line("aaab") == "aaab"


@pytest.mark.parametrize("pattern", [r"(?i)id\s*[:=]\s*\d+", r"[(+*]{3}x", r"(?:foo|bar)-\d{3}", r"\d{4}-\d{4}"])
def test_ordinary_rules_are_taken(pattern: str) -> None:
    assert pattern_fault(pattern) == ""


def test_a_long_line_is_cut_and_ends_with_no_half_of_a_secret() -> None:
    secret = "password=" + "q" * 40
    text = "x " * ((LONGEST_LINE - 20) // 2) + secret
    shown = Redactor().line(text)
    assert len(shown) <= LONGEST_LINE + 100 and "qqq" not in shown


def test_random_tokens_are_cut() -> None:
    chosen = random.Random(3)
    for _ in range(300):
        token = "".join(chosen.choices(string.ascii_letters + string.digits, k=32))
        assert token not in Redactor().line(f"got {token} from it")


HOSTILE = [
    "://" * 2000,
    "password" * 600,
    "token=" * 800,
    "a:" * 3000,
    "-----BEGIN PRIVATE KEY-----" * 300,
    "eyJ" + "a." * 3000,
    "A1b" * 2000,
    "--" * 3000,
    "bearer " * 900,
    "://a:" + "b" * 6000,
    "secret" + " " * 6000,
    '\\"' * 3000,
    "token=[" * 900,
    'token="\\' * 800,
    "<token>" * 900,
    "a:b@" * 1500,
    "\x1b[" * 3000,
    "0" * 6000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=[each[:12] for each in HOSTILE])
def test_hostile_text_ends(text: str) -> None:
    """A pattern with catastrophic backtracking would not come back before the test's time limit."""
    shown = Redactor(patterns=[r"id\s*=\s*\d+"]).line(text)
    assert len(shown) <= 10 * LONGEST_LINE
