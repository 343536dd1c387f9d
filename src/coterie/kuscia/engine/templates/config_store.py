"""Values that a domain keeps for its engines beyond one task: Kuscia's config store.

It is the ConfigMap `domain-config` of the domain's namespace; each value is encrypted with the domain's own key, so that
whoever reads the API learns nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.kube.agent.pods.downward import ConfigProblem, NoSuchConfig
from coterie.kube.api.errors import NotFound
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.domain import DOMAIN_CONFIG
from coterie.kuscia.identity import sealing

ONLY_AT_CONTROL_PLANE = "which the control plane's node has and this one, which joined with a file, has not"


class ConfigStore(Protocol):
    async def look_up(self, keys: Collection[str]) -> Mapping[str, str]:
        """Those of the keys that are known. Raises ConfigProblem, ApiError or TransportError."""


class NoConfigStore:
    """Of a node that has no key of its domain."""

    async def look_up(self, keys: Collection[str]) -> Mapping[str, str]:
        return {}


class SealedConfig:
    """Of a node that joined the domain: it sees which values there are, and cannot read them."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def look_up(self, keys: Collection[str]) -> Mapping[str, str]:
        try:
            found = await self._client.get(CONFIG_MAPS, DOMAIN_CONFIG, self._namespace)
        except NotFound:
            return {}
        needed = sorted(set(keys) & set(found.data or {}))
        if needed:
            raise NoSuchConfig(f"needs {', '.join(needed)} of the domain's config store, {ONLY_AT_CONTROL_PLANE}")
        return {}


class DomainConfig:
    def __init__(self, client: Client, namespace: str, key: Callable[[], rsa.RSAPrivateKey]) -> None:
        """`key`: loads the domain's key; called in a thread, when a value is first needed."""
        self._client = client
        self._namespace = namespace
        self._key = key

    async def look_up(self, keys: Collection[str]) -> Mapping[str, str]:
        try:
            found = await self._client.get(CONFIG_MAPS, DOMAIN_CONFIG, self._namespace)
        except NotFound:
            return {}
        data = {key: text for key, text in (found.data or {}).items() if key in keys}
        return await asyncio.to_thread(self._opened, data) if data else {}

    def _opened(self, data: Mapping[str, str]) -> dict[str, str]:
        key = self._key()
        return {name: decrypted(name, text, key) for name, text in data.items()}


def decrypted(name: str, text: str, key: rsa.RSAPrivateKey) -> str:
    try:
        return sealing.decrypt_with(text, key)
    except sealing.DecryptionError as problem:
        raise ConfigProblem(
            f"the value {name} in the domain's config store is not encrypted with the domain's present key; set it again"
        ) from problem
