"""How a node speaks with its relay: one packet each way on a Unix socket (SOCK_SEQPACKET), with descriptors attached.

    configure                          ok
    listen 127.0.1.1:1080              pid 4711
    listen [::1]:1080                  ...
    target /path/of/envoy.sock
    target-of [::1]:1080 /path/of/another.sock

The first line says what is asked for, or `ok` or `error`; the others are a name and a value, and names may repeat.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 2
"""Grows when an old relay could not do what a new node asks."""
SOCKET_NAME = "relay.sock"
LOCK_NAME = "relay.lock"


class MessageError(Exception):
    """The other side does not speak as agreed."""


def encode(verb: str, fields: Iterable[tuple[str, object]] = ()) -> bytes:
    lines = [verb, *(f"{name} {value}" for name, value in fields)]
    if any("\n" in line for line in lines):
        raise MessageError("a value has more than one line")
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def decode(data: bytes) -> tuple[str, list[tuple[str, str]]]:
    verb, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    pairs = []
    for line in lines:
        name, space, value = line.partition(" ")
        if not name or not space:
            raise MessageError("a line without a value")
        pairs.append((name, value))
    return verb, pairs


def one(pairs: Iterable[tuple[str, str]], name: str, default: str = "") -> str:
    return next((value for key, value in pairs if key == name), default)


class ShortPath:
    """A name for a file that fits into the 107 bytes of a Unix socket's address however deep its directory lies."""

    __slots__ = ("_handle", "name")

    def __init__(self, path: str) -> None:
        directory, name = os.path.split(path)
        self._handle = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.name = f"/proc/self/fd/{self._handle}/{name}"

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
