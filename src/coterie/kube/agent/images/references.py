"""Names of images and addresses of registries, apart from what speaks with them: settings need no more than this."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from coterie.base.secret import SecretValue
from coterie.kube.agent.images.model import ImageError


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image name, taken apart for a registry."""

    registry: str
    """Empty: the name has none."""
    repository: str
    reference: str
    """Tag or digest."""
    name: str
    """Under which the image is stored."""

    @property
    def digest(self) -> str:
        return self.reference if ":" in self.reference else ""


@dataclass(frozen=True, slots=True)
class RegistryEndpoint:
    """Where images of one registry come from, and who asks."""

    host: str
    """`host[:port]`, as image names begin."""
    scheme: str = "https"
    prefix: str = ""
    """Path in front of every repository, such as a project of a mirror."""
    username: str = ""
    password: SecretValue = field(default_factory=lambda: SecretValue(""))
    ca_file: str = ""
    proxy: str = ""
    """`host:port` of an HTTP proxy; names are then looked up there."""

    @classmethod
    def of(cls, text: str, *, username: str = "", password: str = "", ca_file: str = "") -> RegistryEndpoint:
        """`registry.example`, `registry.example:5000/project`, `http://127.0.0.1:5000`. Only this machine needs no TLS by default."""
        scheme, _, rest = text.rpartition("://")
        host, _, path = rest.strip("/").partition("/")
        if scheme not in ("", "http", "https") or not re.fullmatch(r"[A-Za-z0-9.\-]+(:[0-9]{1,5})?", host):
            raise ImageError(f'"{text}" is not a registry such as registry.example:5000')
        scheme = scheme or ("http" if _is_this_machine(host) else "https")
        return cls(host, scheme, path, username, SecretValue(password), ca_file)

    def path_of(self, repository: str) -> str:
        return f"/v2/{self.prefix}/{repository}" if self.prefix else f"/v2/{repository}"


def _is_this_machine(host: str) -> bool:
    name = host.partition(":")[0]
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
