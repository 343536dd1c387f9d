"""Where images may be pulled from, and with which credentials: the node's settings, and what pods and users bring."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.base.secret import SecretValue
from coterie.kube.agent.images.collect import CollectionSettings
from coterie.kube.agent.images.model import ImageError
from coterie.kube.agent.images.references import ImageReference, RegistryEndpoint
from coterie.kube.agent.images.signature_policy import SignatureRule


@dataclass(frozen=True, slots=True)
class ConfiguredRegistry:
    """`image.registries[]`."""

    name: str
    """By which `defaultRegistry` refers to it."""
    endpoint: RegistryEndpoint
    mirrors: tuple[RegistryEndpoint, ...] = ()
    """Asked before the registry itself, in this order."""


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """Of one registry, or of one part of it (`registry.example/team`)."""

    place: str
    username: str
    password: SecretValue


@dataclass(frozen=True, slots=True)
class PullSettings:
    """`image`: whether and from where the node gets images that it lacks."""

    remote: bool = False
    """`pullPolicy: remote`. Otherwise pods run only from images that an operator brought."""
    default: ConfiguredRegistry | None = None
    """For images whose name has no registry; None: they are pulled from nowhere."""
    proxy: str = ""
    registries: tuple[ConfiguredRegistry, ...] = field(default=())
    shared_store: str = ""
    """A directory for layers that all domains of the machine with the same setting use together; empty: none."""
    signatures: tuple[SignatureRule, ...] = ()
    collection: CollectionSettings = field(default_factory=CollectionSettings)

    def sources(
        self, wanted: ImageReference, credentials: Sequence[RegistryCredentials] = ()
    ) -> list[RegistryEndpoint]:
        """In the order in which they are asked. Raises ImageError when there is none."""
        if wanted.registry:
            known = [each for each in self.registries if each.endpoint.host == wanted.registry]
            # The name has the whole path: what the settings put in front belongs to other names.
            own = replace(known[0].endpoint, prefix="") if known else RegistryEndpoint.of(wanted.registry)
            mirrors = known[0].mirrors if known else ()
        elif self.default is not None:
            own, mirrors = self.default.endpoint, self.default.mirrors
        else:
            raise ImageError(
                f'"{wanted.name}" names no registry; write it as registry.example/{wanted.name}, '
                "or set image.defaultRegistry on the node"
            )
        path = "/".join(part for part in (own.host, own.prefix, wanted.repository) if part)
        given = best_credentials(credentials, path)
        if given is not None:
            own = replace(own, username=given.username, password=given.password)
        return [replace(each, proxy=self.proxy) for each in (*mirrors, own)]


def best_credentials(credentials: Iterable[RegistryCredentials], path: str) -> RegistryCredentials | None:
    """Those for the longest part of `registry.example/team/app`."""
    fitting = [each for each in credentials if f"{path}/".startswith(f"{each.place}/")]
    return max(fitting, key=lambda each: len(each.place), default=None)


def docker_credentials(text: str | bytes) -> list[RegistryCredentials]:
    """What a `.dockerconfigjson` or `~/.docker/config.json` knows; entries that cannot be read are left out."""
    try:
        document = json.loads(text)
    except ValueError:
        return []
    auths = document.get("auths", document) if isinstance(document, dict) else None
    found = []
    for place, entry in auths.items() if isinstance(auths, dict) else ():
        user, password = _user(entry) if isinstance(entry, dict) else ("", "")
        if user:
            plain = place.removeprefix("https://").removeprefix("http://").strip("/")
            found.append(
                RegistryCredentials(plain.removesuffix("/v1").removesuffix("/v2"), user, SecretValue(password))
            )
    return found


def _user(entry: Mapping[str, Any]) -> tuple[str, str]:
    if isinstance(entry.get("username"), str) and isinstance(entry.get("password"), str):
        return entry["username"], entry["password"]
    try:
        user, _, password = base64.b64decode(str(entry.get("auth") or ""), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


def secret_credentials(secrets: Iterable[Mapping[str, Any]]) -> list[RegistryCredentials]:
    """Of a pod's imagePullSecrets."""
    found: list[RegistryCredentials] = []
    for secret in secrets:
        data = secret.get("data") or {}
        for key in (".dockerconfigjson", ".dockercfg"):
            try:
                found += docker_credentials(base64.b64decode(data.get(key) or "", validate=True))
            except binascii.Error:
                continue
    return found
