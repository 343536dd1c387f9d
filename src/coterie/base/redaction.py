"""Secrets are cut out of text before somebody else may read it. Pure.

Two kinds of rules. Patterns find what looks like a secret: private keys, tokens, passwords. Known values find what *is* one,
in plain text and in its usual encodings, however it looks. Every pattern takes time linear in the length of a line, and
lines are cut at `LONGEST_LINE`, because whoever writes the log chooses its text.

    Redactor(known=[token], patterns=[r"customer-\\d{4}"]).line("GET https://u:p@host customer-1234")
        ->  "GET https://[redacted:url]host [redacted:own-rule]"

Rather too much is cut than too little: a long identifier with capital letters, small letters and digits looks like a key.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final
from urllib.parse import quote, quote_plus

LONGEST_LINE: Final = 4096
"""Characters of a line that are kept."""
MOST_KNOWN_VALUES: Final = 2000
SHORTEST_KNOWN_VALUE: Final = 6
"""Shorter values are ordinary words, and would cut holes everywhere."""
MOST_PATTERNS: Final = 32
LONGEST_PATTERN: Final = 200
_MOST_REPEATS: Final = 4
_LONGEST_KEY: Final = 400
"""Lines of a private key at most; what follows is shown again, in case its end never comes."""
_CUT: Final = " [cut]"

_NAMES = (
    r"pass(?:word|wd|phrase)|pwd|secret(?!flow)|token|credential|api[-_]?key|access[-_]?key|account[-_]?key|private[-_]?key|"
    r"client[-_]?key(?:-data)?|encryption[-_]?key|sas[-_]?key|signature|密码|口令|令牌|密钥|秘钥"
)
_SIGN = r"\s{0,16}(?:[:=：＝]>?|->)\s{0,16}"
"""Between a name and its value."""
_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BEGIN_KEY = re.compile(_BEGIN)
_END_KEY = re.compile(_END)

_Rule = tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _mark(rule: str) -> str:
    return f"[redacted:{rule}]"


def _if_mixed(found: re.Match[str]) -> str:
    """Keys have capital and small letters and digits; paths, names and sentences rarely have all of them in one piece."""
    text = found[0]
    mixed = any(each.isdigit() for each in text) and text.lower() != text and text.upper() != text
    return _mark("key") if mixed else text


_RULES: Final[tuple[_Rule, ...]] = (
    ("private-key", re.compile(rf"{_BEGIN}.*?(?:{_END}|$)"), _mark("private-key")),
    (
        "authorization",
        re.compile(rf"""(?i)((?:authorization|cookie)\\?["']?{_SIGN}\\?["']?)[^\r\n"']{{1,4096}}"""),
        rf"\1{_mark('authorization')}",
    ),
    ("bearer", re.compile(r"(?i)\b(bearer\s{1,4})[\w.~+/=-]{6,4096}"), rf"\1{_mark('bearer')}"),
    ("jwt", re.compile(r"\beyJ[\w-]{8,4096}(?:\.[\w-]{0,4096}){1,4}"), _mark("jwt")),
    (
        "url",
        re.compile(
            r"""(?<=://)(?:[^\s/:@"'<>]{0,128}:[^\s"'<>]{0,256}|[^\s/:@"'<>]{16,512})@"""
            # A data source name of MySQL.
            r"""|(?<![\w.@:/-])[\w.-]{1,64}:[^\s"'<>@]{1,128}@(?=(?:tcp|unix|udp)?\()"""
        ),
        _mark("url"),
    ),
    (
        "secret",
        re.compile(
            rf"""(?i)((?:{_NAMES})[\w.-]{{0,32}}\\?["']?{_SIGN})"""
            r"""(?:\[[^\]]{0,4096}|\{[^}]{0,4096}|\\"[^"]{0,4096}|"(?:[^"\\]|\\.){0,4096}"""
            r"""|\\'[^']{0,4096}|'(?:[^'\\]|\\.){0,4096}|[^\s,;&"']{1,4096})"""
        ),
        rf"\1{_mark('secret')}",
    ),
    (
        "option",
        re.compile(rf"(?i)((?<!\w)--?[\w-]{{0,32}}(?:{_NAMES})[\w-]{{0,16}}\s{{1,4}})[^\s-]\S{{0,4095}}"),
        rf"\1{_mark('secret')}",
    ),
    (
        "sentence",
        re.compile(
            r"(?i)\b(pass(?:word|wd|phrase)\s{1,4}(?:is|was)\s{1,4})\S{1,4096}"
            rf"|\b((?:{_NAMES})\s{{1,4}}(?:is|was)\s{{1,4}})(?=\S{{0,64}}\d)\S{{6,4096}}"
        ),
        rf"\1\2{_mark('secret')}",
    ),
    (
        "element",
        re.compile(rf"(?i)(<[\w:.-]{{0,32}}(?:{_NAMES})[\w.-]{{0,32}}>)[^<]{{1,4096}}"),
        rf"\1{_mark('secret')}",
    ),
    ("sql", re.compile(r"(?i)\b(identified\s{1,4}by\s{1,4})['\"][^'\"]{1,4096}"), rf"\1{_mark('secret')}"),
    (
        "vendor-key",
        re.compile(
            r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA|LTAI)[A-Za-z0-9]{12,64}\b"
            r"|\b(?:gh[opsu]|github_pat|glpat|xox[abeoprs]|sk|rk|hf|pypi)[-_][\w-]{16,512}"
        ),
        _mark("vendor-key"),
    ),
    # Digests of images and trace ids are no secrets, and needed to find one's way.
    ("hex", re.compile(r"(?<!sha256:)(?<!trace=)(?<![0-9A-Za-z])[0-9a-fA-F]{32,4096}(?![0-9A-Za-z])"), _mark("hex")),
    ("key", re.compile(r"(?<![\w+/])(?:[A-Za-z0-9+/]{22}==|[A-Za-z0-9+/]{43}=)(?![\w+/=])"), _mark("key")),
    ("key", re.compile(r"(?<!sha256:)[A-Za-z0-9+/_-]{28,4096}={0,2}"), _if_mixed),
)


def pattern_fault(pattern: str) -> str:
    """Why a rule of an owner cannot be used; empty when it can. Repeats inside repeats may take time without end."""
    if not pattern or len(pattern) > LONGEST_PATTERN:
        return f"a rule has 1 to {LONGEST_PATTERN} characters"
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as problem:
        return f"{pattern!r} is no regular expression: {problem}"
    if compiled.search("") is not None:
        return f"{pattern!r} matches the empty text"
    if re.search(r"\\[1-9]|\(\?P=", pattern):
        return f"{pattern!r} refers back to a group, which may take time without end"
    return _repeat_fault(pattern)


def _repeat_fault(pattern: str) -> str:
    nested, choices = [False], [False]
    closed = False
    repeats = wildcards = position = 0
    while position < len(pattern):
        each = pattern[position]
        group_closed, closed = closed, False
        if each == "\\":
            position += 2
            continue
        if each == "[":
            position = _end_of_class(pattern, position)
            continue
        if each == "(":
            nested.append(False)
            choices.append(False)
        elif each == "|":
            choices[-1] = True
        elif each == ")":
            closed = True
            inner, chosen = nested.pop(), choices.pop()
            nested[-1] = nested[-1] or inner
            choices[-1] = choices[-1] or (chosen and len(choices) > 1)
            if (inner or chosen) and pattern[position + 1 : position + 2] in ("*", "+", "{"):
                return f"{pattern!r} repeats a repeat, which may take time without end"
        elif each in "*+" or (each == "{" and re.match(r"\{\d*,\d*\}", pattern[position:])):
            nested[-1] = True
            repeats += 1
            wildcards += position > 0 and pattern[position - 1] == "." and not group_closed
        position += 1
    if repeats > _MOST_REPEATS or wildcards > 1:
        return f"{pattern!r} has more than {_MOST_REPEATS} repeats or more than one .*"
    return ""


def _end_of_class(pattern: str, begin: int) -> int:
    position = begin + 1
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position + 1


def encodings_of(value: str) -> tuple[str, ...]:
    """How a secret may stand in a text: plain, in URLs, in JSON, in hexadecimal, in base64 (also in the middle of something else)."""
    raw = value.encode("utf-8", "surrogatepass")
    percent = quote(raw, safe="")
    out = [value, percent, quote_plus(raw), _lower_percent(percent), quote(percent, safe="")]
    out += [raw.hex(), raw.hex().upper(), raw.hex(":"), value.encode("unicode_escape").decode(), repr(raw)[2:-1]]
    out += [html.escape(value), base64.b32encode(raw).decode().rstrip("=")]
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        out += [escaped, escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1]]
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        out.append(encode(raw).decode().rstrip("="))
        for before in range(3):
            # Characters that also depend on what stands before or after are left out.
            first = (before * 8 + 5) // 6
            last = (before + len(raw)) * 8 // 6
            out.append(encode(b"\0" * before + raw + b"\0\0").decode()[first:last])
    found = dict.fromkeys(each for each in out if len(each) >= SHORTEST_KNOWN_VALUE)
    return tuple(sorted(found, key=len, reverse=True))


def _lower_percent(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), text)


class Redactor:
    """For one text: it remembers, for each stream of lines, whether it stands inside a private key."""

    def __init__(self, known: Iterable[str] = (), patterns: Sequence[str] = ()) -> None:
        """`patterns`: rules of the owner; those with a fault are left out (`pattern_fault`)."""
        self.counts: Counter[str] = Counter()
        self._known = _known_texts(known)
        self._own = tuple(re.compile(each) for each in patterns[:MOST_PATTERNS] if not pattern_fault(each))
        self._inside: dict[str, int] = {}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def line(self, text: str, stream: str = "") -> str:
        """One line of a log. `stream`: lines of the same stream follow each other, such as those of one container."""
        inside = self._inside.get(stream, 0)
        if inside:
            end = _END_KEY.search(text)
            self._inside[stream] = 0 if end is not None else inside - 1
            self.counts["private-key"] += 1
            rest = self._plain(text[end.end() :]) if end is not None else ""
            return _mark("private-key") + rest
        begin = _last(_BEGIN_KEY, text)
        if begin is not None and _END_KEY.search(text, begin.end()) is None and "\\n" not in text[begin.end() :]:
            self._inside[stream] = _LONGEST_KEY
        return self._plain(text)

    def text(self, text: str) -> str:
        """Several lines, such as a file."""
        return "\n".join(self.line(each, "text") for each in text.split("\n"))

    def _plain(self, text: str) -> str:
        text = _INVISIBLE.sub("", text)
        # Before the line is cut: half a secret is not found any more.
        for value in self._known:
            if value in text:
                self.counts["known"] += text.count(value)
                text = text.replace(value, _mark("known"))
        if len(text) > LONGEST_LINE:
            text = text[:LONGEST_LINE]
            # The last piece may be half of something.
            text = text[: len(text) - len(_LAST_PIECE.search(text)[0])] + _CUT  # type: ignore[index]
        for pattern in self._own:
            text, number = pattern.subn(_mark("own-rule"), text)
            self.counts["own-rule"] += number
        for rule, pattern, put in _RULES:
            before = text.count(_mark("key"))
            text, number = pattern.subn(put, text)
            self.counts[rule] += number if put is not _if_mixed else text.count(_mark("key")) - before
        return text


# Colours of terminals and characters without width stand between a name and its value, or inside of either.
_INVISIBLE: Final = re.compile("\x1b\\[[0-?]{0,32}[ -/]{0,4}[@-~]|[\u00ad\u200b-\u200d\u2060\ufeff]")
_LAST_PIECE = re.compile(r"\S{0,512}\Z")


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007 - the last is wanted
        pass
    return found


def _known_texts(values: Iterable[str]) -> tuple[str, ...]:
    """The longest first, so that a value inside another leaves no rest of it."""
    chosen: Collection[str] = dict.fromkeys(each for each in values if len(each) >= SHORTEST_KNOWN_VALUE)
    forms = {form for value in list(chosen)[:MOST_KNOWN_VALUES] for form in _forms(value)}
    return tuple(sorted(forms, key=lambda each: (-len(each), each)))


def _forms(value: str) -> Iterable[str]:
    """Of a value of several lines each line counts too: a log shows it line by line."""
    yield from encodings_of(value)
    if "\n" in value:
        for line in value.splitlines():
            if len(line) >= 16 and not line.startswith("-----"):
                yield from encodings_of(line)
