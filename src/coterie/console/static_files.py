"""The files of the page, from memory, with the headers that keep everything else out of it."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from coterie.http.messages import Response

ROOT: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_COMPRESSED: Final = (".html", ".js", ".css", ".svg")
_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "worker-src": "'self'",
    "form-action": "'none'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
TERMINAL_PAGE: Final = "terminal.html"
"""The only page with styles that a script writes: the terminal's library colours its text so."""


def security_headers(page: str = "") -> list[tuple[str, str]]:
    policy = _POLICY | ({"style-src": "'self' 'unsafe-inline'"} if page == TERMINAL_PAGE else {})
    return [
        ("Content-Security-Policy", "; ".join(f"{name} {value}" for name, value in policy.items())),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    ]


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    compressed: bytes
    """Empty: it would not become smaller."""
    content_type: str
    etag: str


class StaticFiles:
    """Read once, when the process starts: nobody who can write a file later gets it into a page."""

    def __init__(self, root: Path = ROOT) -> None:
        self._files = {
            str(PurePosixPath(path.relative_to(root))): _read(path)
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.suffix in _TYPES
        }

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def answer(self, name: str, *, accepts: str = "", known: str = "") -> Response:
        """`accepts`: the encodings that the browser reads; `known`: the tag of what it has."""
        file = self._files[name]
        headers = [*security_headers(name), ("ETag", file.etag), ("Cache-Control", "no-cache")]
        if known == file.etag:
            return Response(304, b"", file.content_type, headers)
        if file.compressed and "gzip" in accepts:
            return Response(200, file.compressed, file.content_type, [*headers, ("Content-Encoding", "gzip")])
        return Response(200, file.body, file.content_type, headers)


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    compressed = gzip.compress(body, 9, mtime=0) if path.suffix in _COMPRESSED else b""
    tag = hashlib.sha256(body).hexdigest()[:20]
    return StaticFile(body, compressed, _TYPES[path.suffix], f'"{tag}"')
