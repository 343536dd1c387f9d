"""What the environment of an actor says."""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT = 6811


class SettingsError(Exception):
    """The message names the variable."""


class ActorSettings(NamedTuple):
    """Never printed as a whole: it has the token."""

    action: str
    version: str
    handler: str
    next: frozenset[str]
    concurrency: int
    token: bytes
    host: str
    port: int
    code: str
    """The directory with the code."""
    timeout: float
    """Seconds for one call; 0: only the deadline of the call counts."""
    load_timeout: float
    """Seconds for importing the code."""


class SpareSettings(NamedTuple):
    digest: str
    """BLAKE2b, 32 bytes in hex, of the token that whoever claims the actor has."""
    host: str
    port: int
    code: str
    """An empty directory for the code."""


def read_spare_settings(environment: Mapping[str, str]) -> SpareSettings | None:
    """None: the actor belongs to an action from the beginning."""
    digest = environment.get("COTERIE_ACTOR_SPARE", "")
    if not digest:
        return None
    if len(digest) != 64:
        raise SettingsError("COTERIE_ACTOR_SPARE must have 64 hex digits")
    return SpareSettings(digest, *_place(environment))


def _place(environment: Mapping[str, str]) -> tuple[str, int, str]:
    return (
        environment.get("COTERIE_ACTOR_HOST") or "0.0.0.0",
        _number(environment, "COTERIE_ACTOR_PORT", DEFAULT_PORT, 0, 65535),
        environment.get("COTERIE_ACTOR_CODE") or "/userland",
    )


def read_settings(environment: Mapping[str, str]) -> ActorSettings:
    action, token = environment.get("COTERIE_ACTION", ""), environment.get("COTERIE_ACTOR_TOKEN", "")
    if not action:
        raise SettingsError("COTERIE_ACTION is not set")
    if not token:
        raise SettingsError("COTERIE_ACTOR_TOKEN is not set")
    host, port, code = _place(environment)
    return ActorSettings(
        action=action,
        version=environment.get("COTERIE_ACTION_VERSION", ""),
        handler=environment.get("COTERIE_ACTION_HANDLER") or "action.action",
        next=names(environment.get("COTERIE_ACTION_NEXT", "")),
        concurrency=_number(environment, "COTERIE_ACTION_CONCURRENCY", 1, 1, 1000),
        token=token.encode(),
        host=host,
        port=port,
        code=code,
        timeout=_number(environment, "COTERIE_ACTION_TIMEOUT", 0, 0, 86400),
        load_timeout=_number(environment, "COTERIE_ACTION_LOAD_TIMEOUT", 60, 1, 3600),
    )


def names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most):
        raise SettingsError(f"{name} must be a number from {least} to {most}, not {text[:40]!r}")
    return int(text)
