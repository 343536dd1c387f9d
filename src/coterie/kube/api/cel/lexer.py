"""Source text to tokens; literals are decoded here, so the parser sees values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from coterie.kube.api.cel.errors import CelIssue, CompileError
from coterie.kube.api.cel.values import INT64_MAX, UINT64_MAX, UInt

RESERVED: Final = frozenset(
    {
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    }
)
"""Words no identifier may be; as a field after a dot they are written `__namespace__`."""

_TOKEN: Final = re.compile(
    r"""
    (?P<space>(?:[ \t\r\n\f]|//[^\n]*)+)
  | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<int>0x[0-9a-fA-F]+[uU]?|\d+[uU]?)
  | (?P<string>(?P<prefix>[rR][bB]?|[bB][rR]?)?
      (?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n\r]|\\.)*"|'(?:[^'\\\n\r]|\\.)*'))
  | (?P<ident>[_a-zA-Z][_a-zA-Z0-9]*)
  | `(?P<quoted>[_a-zA-Z0-9./\- ]+)`
  | (?P<op>\.\?|\[\?|&&|\|\||<=|>=|==|!=|[-+*/%!<>?:,.()\[\]{}])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_RAW: Final = re.compile(
    r"(?P<prefix>[rR][bB]?|[bB][rR])"
    r"(?:\"{3}(?P<a>.*?)\"{3}|'{3}(?P<b>.*?)'{3}|\"(?P<c>[^\"\n\r]*)\"|'(?P<d>[^'\n\r]*)')",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|X(?P<X>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})"
    r"|(?P<o>[0-3][0-7]{2})|(?P<s>.))",
    re.DOTALL,
)
_SIMPLE: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "?": "?",
    '"': '"',
    "'": "'",
    "`": "`",
}
_KEYWORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class CelToken:
    kind: str
    """literal, ident, quoted, op or end; `in` is an op."""
    text: str
    pos: int
    value: Any = None


def tokens(source: str) -> list[CelToken]:
    out: list[CelToken] = []
    at = 0
    while at < len(source):
        found = _raw_string(source, at) or _TOKEN.match(source, at)
        if found is None:
            raise CompileError(source, [CelIssue(at, f"Syntax error: token recognition error at: '{source[at]}'")])
        token = _token(source, found, at)
        if token is not None:
            out.append(token)
        at = found.end()
    out.append(CelToken("end", "<EOF>", len(source)))
    return out


def _raw_string(source: str, at: int) -> re.Match[str] | None:
    """Raw strings first: in them a backslash is no escape, so `r'\\'` ends where the general pattern would go on."""
    return _RAW.match(source, at) if source[at] in "rRbB" else None


def _token(source: str, found: re.Match[str], at: int) -> CelToken | None:
    if found.re is _RAW:
        body = next(part for part in found.group("a", "b", "c", "d") if part is not None)
        value = body.encode() if "b" in found["prefix"].lower() else body
        return CelToken("literal", found[0], at, value)
    kind = found.lastgroup if found.lastgroup != "prefix" else "string"
    text = found[0]
    if kind == "space":
        return None
    if kind == "ident":
        if text in _KEYWORDS:
            return CelToken("literal", text, at, _KEYWORDS[text])
        return CelToken("op" if text == "in" else "ident", text, at)
    if kind == "quoted":
        return CelToken("quoted", found["quoted"], at)
    if kind == "op":
        return CelToken("op", text, at)
    if kind == "string":
        return CelToken("literal", text, at, _string(source, found, at))
    return CelToken("literal", text, at, float(text) if kind == "float" else _integer(source, text, at))


def _integer(source: str, text: str, at: int) -> int:
    unsigned = text[-1] in "uU"
    digits = text.rstrip("uU")
    # A text this long is out of range; Python would also refuse to read thousands of digits.
    value = int(digits, 16 if digits.startswith("0x") else 10) if len(digits) < 32 else UINT64_MAX + 1
    # The one integer beyond int64 that may be written, since its minus sign is a token of its own.
    if value > (UINT64_MAX if unsigned else INT64_MAX + 1):
        raise CompileError(source, [CelIssue(at, f"Syntax error: invalid {'uint' if unsigned else 'int'} literal")])
    return UInt(value) if unsigned else value


def _string(source: str, found: re.Match[str], at: int) -> str | bytes:
    prefix = (found["prefix"] or "").lower()
    body = found[0][len(prefix) :]
    fence = 3 if body[:3] in ("'''", '"""') and len(body) >= 6 else 1
    body = body[fence:-fence]
    if "b" in prefix:
        return _unescape_bytes(source, body, at)
    if "\\" not in body:
        return body
    return _ESCAPE.sub(lambda escape: _char(source, escape, at), body)


def _unescape_bytes(source: str, body: str, at: int) -> bytes:
    out = bytearray()
    last = 0
    for escape in _ESCAPE.finditer(body):
        out += body[last : escape.start()].encode()
        octet = escape["x"] or escape["X"]
        if octet is not None:
            out.append(int(octet, 16))
        elif escape["o"] is not None:
            out.append(int(escape["o"], 8))
        else:
            out += _char(source, escape, at).encode()
        last = escape.end()
    return bytes(out + body[last:].encode())


def _char(source: str, escape: re.Match[str], at: int) -> str:
    digits = escape["x"] or escape["X"] or escape["u"] or escape["U"]
    if digits is not None:
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise CompileError(source, [CelIssue(at, "Syntax error: invalid unicode code point")])
        return chr(code)
    if escape["o"] is not None:
        return chr(int(escape["o"], 8))
    simple = _SIMPLE.get(escape["s"])
    if simple is None:
        raise CompileError(source, [CelIssue(at, f"Syntax error: token recognition error at: '\\{escape['s']}'")])
    return simple
