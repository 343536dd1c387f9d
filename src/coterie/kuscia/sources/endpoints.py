"""Where a database is, as sources spell it: `host:port?option=value`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from coterie.kuscia.sources.protocol import SourceError

_HIGHEST = 65535


@dataclass(frozen=True, slots=True)
class SourceEndpoint:
    host: str
    """Or the path of a socket."""
    port: int
    options: Mapping[str, str]


def address_of(text: str) -> str:
    """Without options, for people."""
    return text.partition("?")[0]


def endpoint_of(text: str, usual_port: int) -> SourceEndpoint:
    """SourceError when it names no place."""
    options = dict(parse_qsl(text.partition("?")[2]))
    address = address_of(text)
    if address.startswith("/"):
        return SourceEndpoint(address, usual_port, options)
    host, colon, port = address.rpartition(":")
    bare = address.count(":") > 1 and not address.startswith("[")  # an address of version 6 alone
    if not colon or bare or address.endswith("]"):
        host, port = address, ""
    port = port or str(usual_port)
    good = port.isascii() and port.isdecimal() and 0 < int(port[:6]) <= _HIGHEST
    if not good or not host.strip("[]") or "@" in host:
        raise SourceError("the endpoint of the source is no host:port; set it anew, user and password apart")
    return SourceEndpoint(host.removeprefix("[").removesuffix("]"), int(port), options)


def without(text: str, user: str) -> str:
    """The words of a server, which may name the user that the source keeps to itself."""
    for quote in "'\"":
        text = text.replace(f"{quote}{user}{quote}", "the source's user") if user else text
    return text
