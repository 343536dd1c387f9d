"""Values that a domain keeps for its engines beyond one task: Kuscia's config store.

It is the ConfigMap `domain-config` of the domain's namespace; each value is encrypted with the domain's own key, so that
whoever reads the API learns nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from coterie.agent.pods.downward import ConfigProblem
from coterie.api.errors import NotFound
from coterie.api.types.core import CONFIG_MAPS
from coterie.client.client import Client

NAME = "domain-config"


class ConfigStore(Protocol):
    async def look_up(self, keys: Collection[str]) -> Mapping[str, str]:
        """Those of the keys that are known. Raises ConfigProblem, ApiError or TransportError."""


class NoConfigStore:
    """Of a node that has no key of its domain."""

    async def look_up(self, keys: Collection[str]) -> Mapping[str, str]:
        return {}


class DomainConfig:
    def __init__(self, client: Client, namespace: str, key: Callable[[], rsa.RSAPrivateKey]) -> None:
        """`key`: loads the domain's key; called in a thread, when a value is first needed."""
        self._client = client
        self._namespace = namespace
        self._key = key

    async def look_up(self, keys: Collection[str]) -> Mapping[str, str]:
        try:
            found = await self._client.get(CONFIG_MAPS, NAME, self._namespace)
        except NotFound:
            return {}
        data = {key: text for key, text in (found.data or {}).items() if key in keys}
        return await asyncio.to_thread(self._opened, data) if data else {}

    def _opened(self, data: Mapping[str, str]) -> dict[str, str]:
        key = self._key()
        return {name: opened(name, text, key) for name, text in data.items()}


def opened(name: str, text: str, key: rsa.RSAPrivateKey) -> str:
    """Base64 of one RSA-OAEP (SHA-256) block after the other."""
    scheme = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
    size = key.key_size // 8
    try:
        blocks = base64.b64decode(text, validate=True)
        parts = [key.decrypt(blocks[at : at + size], scheme) for at in range(0, len(blocks), size)]
        return b"".join(parts).decode()
    except (binascii.Error, ValueError) as problem:
        raise ConfigProblem(
            f"the value {name} in the domain's config store is not encrypted with the domain's present key; set it again"
        ) from problem


def sealed(text: str, key: rsa.RSAPublicKey) -> str:
    """The other way, as whoever writes the store does it."""
    scheme = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
    size = key.key_size // 8 - 66
    data = text.encode()
    parts = [key.encrypt(data[at : at + size], scheme) for at in range(0, max(1, len(data)), size)]
    return base64.b64encode(b"".join(parts)).decode()
