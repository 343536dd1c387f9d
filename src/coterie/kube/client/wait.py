"""Waiting until an object is as one wants it, by watching it instead of asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from coterie.kube.api.errors import Gone, NotFound
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.transport import Disconnected, TransportError
from coterie.kube.client.watch import Changed

T = TypeVar("T")

_PAUSE = 0.2


async def wait_for(
    client: Client,
    kind: Kind[T],
    name: str,
    namespace: str,
    condition: Callable[[T | None], bool],
    timeout: float = 30.0,
) -> T | None:
    """The object as soon as `condition` holds; it is asked with None when there is no such object.

    Raises TimeoutError. Lost connections are opened again within the time.
    """
    async with asyncio.timeout(timeout):
        while True:
            try:
                return await _watch_once(client, kind, name, namespace, condition)
            except (Gone, TransportError):
                pass
            await client.clock.sleep(_PAUSE)


async def _watch_once(
    client: Client, kind: Kind[T], name: str, namespace: str, condition: Callable[[T | None], bool]
) -> T | None:
    """Raises Disconnected when the watch ends before the condition holds."""
    fields = f"metadata.name={name}"
    page = await client.list(kind, namespace, fields=fields)
    current = page.items[0] if page.items else None
    if condition(current):
        return current
    async with await client.watch(kind, namespace, resource_version=page.resource_version, fields=fields) as watch:
        async for event in watch:
            if isinstance(event, Changed):
                current = None if event.type == "DELETED" else event.object
                if condition(current):
                    return current
    raise Disconnected("the watch ended")


async def wait_until_gone(client: Client, kind: Kind[T], name: str, namespace: str = "", timeout: float = 30.0) -> None:
    """Until the object, or its successor of the same name, does not exist."""
    await wait_for(client, kind, name, namespace, lambda obj: obj is None, timeout)


async def exists(client: Client, kind: Kind[T], name: str, namespace: str = "") -> bool:
    try:
        await client.get(kind, name, namespace)
    except NotFound:
        return False
    return True
