"""Envoy's own word: is it live, which configuration did it take, what did it refuse.

Spoken over a Unix socket in a private directory; there is no port. Reading the answers is pure.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.http.plain_client import HttpFailure, Pool

_SECONDS = 5.0
_STATS = re.compile(r"^(?P<key>[^:]+): (?P<value>.*)$", re.MULTILINE)
_ALWAYS = {"cds.json": "cluster_manager.cds.", "lds.json": "listener_manager.lds."}
_WHERE_USED = {
    "rds-external.json": "http.external.rds.external.",
    "rds-internal.json": "http.internal.rds.internal.",
    "rds-ingress.json": "http.ingress.rds.ingress.",
    "rds-transit.json": "http.transit.rds.transit.",
    "ecds-pods.json": "extension_config_discovery.http_filter.pods.",
    "ecds-auth.json": "extension_config_discovery.http_filter.auth.",
}
_SECRETS = re.compile(r"sds\.([^.]+)\.")
_FILTER = r"version_text$|update_rejected$|update_failure$|config_fail$|key_rotation_failed$|^server\.(live|total_connections|uptime)$"
_REFUSAL = re.compile(r"(?:rejected|update failed|Unable to|Error adding/updating)[^\n]*", re.IGNORECASE)
_GAVE_UP = re.compile(r" critical (?!backtrace)[^:\n]*: ([^\n]+)")
_DROPPED = "/stats?usedonly&type=Counters&filter=^server\\.dropped_stat_flushes$"
INOTIFY_ADVICE = (
    "raise fs.inotify.max_user_instances: each gateway of this machine takes about eleven, and all users' programs that"
    " watch files take theirs"
)


class AdminError(Exception):
    """Envoy does not answer on its admin socket."""


@dataclass(frozen=True, slots=True)
class Subscription:
    version: str
    rejected: int
    failed: int


@dataclass(frozen=True, slots=True)
class Readback:
    live: bool
    connections: int
    files: Mapping[str, Subscription]

    @property
    def refusals(self) -> int:
        return sum(each.rejected + each.failed for each in self.files.values())


def read_stats(text: str) -> Readback:
    stats = {match["key"]: match["value"].strip('"') for match in _STATS.finditer(text)}

    def number(key: str) -> int:
        value = stats.get(key, "0")
        return int(value) if value.isdigit() else 0

    # The rest is there only where a listener or cluster uses it.
    used = {name: prefix for name, prefix in _WHERE_USED.items() if prefix + "version_text" in stats}
    used |= {f"sds-{match[1]}.json": match[0] for key in stats if (match := _SECRETS.match(key))}
    files = {
        name: Subscription(
            stats.get(prefix + "version_text", ""),
            number(prefix + "update_rejected")
            + number(prefix + "config_fail")
            + number(prefix + "key_rotation_failed"),
            number(prefix + "update_failure"),
        )
        for name, prefix in {**_ALWAYS, **used}.items()
    }
    return Readback(number("server.live") == 1, number("server.total_connections"), files)


def pending(written: Mapping[str, str], seen: Readback) -> tuple[str, ...]:
    """Files whose written version Envoy has not taken."""
    return tuple(
        name for name, version in written.items() if name in seen.files and seen.files[name].version != version
    )


def refusals(log: str, limit: int = 5) -> tuple[str, ...]:
    """What Envoy's log says about configuration it refused, the latest last.

    Unreadable JSON is quoted there whole, with the tokens in it: nothing from the first brace on is repeated.
    """
    found = (match.group(0).split("{", 1)[0].strip()[:500] for match in _REFUSAL.finditer(log))
    return tuple(dict.fromkeys(found))[-limit:]


def log_tail(log: str) -> str:
    """Why Envoy exited repeatedly; giving up, from the end of its log; empty when it does not say."""
    found = [match[1].split("{", 1)[0].strip()[:500] for match in _GAVE_UP.finditer(log)]
    return found[-1] if found else ""


class Admin:
    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._pool = Pool(socket, keep=0)

    async def ask(self, path: str, *, post: bool = False, limit: int | None = None) -> str:
        """The body of the answer. `limit`: of its bytes; an answer that has more is refused."""
        try:
            async with asyncio.timeout(_SECONDS):
                response = await self._pool.request("POST" if post else "GET", path, {"Host": "envoy"})
                with contextlib.closing(response):
                    body = await response.read(limit)
        except (HttpFailure, TimeoutError) as error:
            raise AdminError(f"{path[:80]}: {type(error).__name__}: {error}") from error
        if limit is not None and len(body) > limit:
            raise AdminError(f"{path[:80]}: the answer has more than {limit} bytes")
        text = body.decode("utf-8", "replace")
        if response.status >= 400:
            raise AdminError(f"{path[:80]}: {response.status} {text[:200]}")
        return text

    async def live(self) -> bool:
        try:
            return (await self.ask("/ready")).startswith("LIVE")
        except AdminError:
            return False

    async def versions(self) -> Readback:
        """Only which versions are in use: cheap enough to ask again and again, however many clusters there are."""
        return read_stats(await self.ask("/stats?type=TextReadouts&filter=version_text$"))

    async def settled(self) -> None:
        """Until each worker thread uses what the main thread took before this was called.

        A version is shown as soon as the main thread has it; workers get it a moment later. Each question about counters
        begins a round through all workers (`stats_flush_on_admin`), which come to it after everything sent to them earlier;
        a question that comes while a round is under way begins none, and is counted. So: one that began a round, and then
        one that could begin the next.
        """
        begun = 0
        before: str | None = None
        while begun < 2:
            counted = await self.ask(_DROPPED)
            begun += counted == before
            before = counted

    async def readback(self) -> Readback:
        return read_stats(await self.ask(f"/stats?filter={_FILTER}"))

    async def close(self) -> None:
        await self._pool.close()
