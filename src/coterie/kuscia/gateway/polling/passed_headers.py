"""Which headers of a call go through a frame, and back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from coterie.kuscia.gateway.names import (
    ENCRYPT_IV,
    ENCRYPT_SCHEME,
    ENCRYPT_VERSION,
    ORIGIN,
    SESSION,
    SOURCE,
    TOKEN_REVISION,
)

_OF_THE_CONNECTION = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length",
     "expect", "date", "server")
)  # fmt: skip
_END_TO_END = frozenset((ENCRYPT_VERSION, ENCRYPT_IV, ENCRYPT_SCHEME, SESSION, TOKEN_REVISION))
_OURS = ("x-coterie-", "x-envoy-", ":")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_BAD_VALUE = re.compile(r"[\r\n\0]")


def call_headers(headers: Mapping[str, str], *, to_partner: bool) -> dict[str, str]:
    """Without what belongs to a connection, and without what only gateways say: tokens never leave in a frame, and who calls
    is not for a frame to say. To a partner go the two names of the source, by which Kuscia's gateways know it."""
    kept = _END_TO_END | ({SOURCE, ORIGIN} if to_partner else set())
    return {name: value for name, value in _clean(headers) if not name.startswith("kuscia-") or name in kept}


def answer_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return dict(_clean(headers))


def _clean(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        key = name.lower()
        ours = key.startswith(_OURS) and key not in _END_TO_END
        if _NAME.fullmatch(key) and not _BAD_VALUE.search(value) and not ours and key not in _OF_THE_CONNECTION:
            yield key, value
