"""Where the API of a domain on this machine is: its files say so. See `base/paths.py` for where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from coterie.base.paths import DomainPaths, default_root
from coterie.base.secret import SecretValue
from coterie.sdk.errors import NotFoundHere
from coterie.sdk.wire import Address

_PORT = 8082
_ANY, _LOOPBACK = ("", "0.0.0.0", "::"), "127.0.0.1"
_ORDINARY = (*_ANY, _LOOPBACK, "::1")
_CLIENTS = ("kusciaapi-client", "kusciaapi-server")
"""Certificates that the API takes from clients. Kuscia's users have only the second."""


def locate(domain: str = "", root: Path | str | None = None) -> Address:
    """Of the domain below the root (`$COTERIE_ROOT`, `~/.coterie`), or of the only one there when none is named."""
    below = Path(root).expanduser() if root is not None else default_root()
    paths = DomainPaths.of(below, domain or _only(below))
    if not paths.certs.is_dir():
        known = _known(below)
        hint = f"those there are {', '.join(known)}" if known else "`coterie up` starts some"
        raise NotFoundHere(f'there is no domain "{domain}" under {below}; {hint}')
    return address_of(paths, _configured(paths))


def address_of(paths: DomainPaths, configured: dict[str, Any]) -> Address:
    """From the node's configuration and the files in `var/certs`."""
    api = configured.get("kusciaAPI") or {}
    host = str(api.get("host") or (configured.get("dns") or {}).get("host") or _own_address(configured))
    host = _LOOPBACK if host in _ANY else host
    plain = str(api.get("protocol") or configured.get("protocol") or "").upper() == "NOTLS"
    url = f"{'http' if plain else 'https'}://{f'[{host}]' if ':' in host else host}:{api.get('HTTPPort') or _PORT}"
    domain = str(configured.get("domainID") or paths.home.name)
    if plain:
        return Address(url, domain)
    pair = next((name for name in _CLIENTS if paths.certificate(name).is_file()), None)
    return Address(
        url,
        domain,
        SecretValue(paths.api_token.read_text().strip()) if paths.api_token.is_file() else None,
        paths.ca_certificate if paths.ca_certificate.is_file() else None,
        paths.certificate(pair) if pair else None,
        paths.key(pair) if pair else None,
    )


def _own_address(configured: dict[str, Any]) -> str:
    """Where a node listens for those on its machine when nothing else is said: as `node/config/gateway.py` has it."""
    for part, key in (("agent", "address"), ("apiServer", "host")):
        found = str((configured.get(part) or {}).get(key) or "")
        if found not in _ORDINARY:
            return found if found.startswith("127.") else _LOOPBACK
    return _LOOPBACK


def _configured(paths: DomainPaths) -> dict[str, Any]:
    for file in (paths.etc / "coterie.yaml", paths.etc / "conf" / "kuscia.yaml"):
        if file.is_file():
            found = yaml.safe_load(file.read_text())
            return found if isinstance(found, dict) else {}
    return {}


def _known(root: Path) -> list[str]:
    return sorted(path.parents[1].name for path in root.glob("*/var/certs"))


def _only(root: Path) -> str:
    known = _known(root)
    if len(known) == 1:
        return known[0]
    if known:
        raise NotFoundHere(f"there are several domains under {root}: name one of {', '.join(known)}")
    raise NotFoundHere(f"there is no domain under {root}; `coterie up` starts some")
