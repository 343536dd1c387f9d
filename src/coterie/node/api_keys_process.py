"""A process of its own that makes and renews the API's keys and certificates, and ends: `python -m coterie.node.api_keys_process`.

What it needs for that, the control plane needs for nothing else while it waits, so it does not load it. In come a
directory, the time and the names of the server; out go files, or one sentence that says why not.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from coterie.base import parent_death, pki, pki_files
from coterie.base.pki import PkiError
from coterie.kube.apiserver.auth.authentication_info import FRONT_PROXY_USER
from coterie.node.api_identity import AUTHORITY, FRONT_PROXY_AUTHORITY

ADMIN_GROUP = "system:masters"


def make_authorities(where: Path, now: datetime) -> tuple[pki.Authority, pki.Authority]:
    """What all members of a control plane share; made where it is missing. The API's authority and that of front proxies."""
    authority = pki_files.ensure_authority(where, AUTHORITY, now=now)
    front_proxy = pki_files.ensure_authority(where, FRONT_PROXY_AUTHORITY, now=now, name="front-proxy-ca")
    pki_files.ensure_key(where / "sa.key")
    return authority, front_proxy


def make(where: Path, names: Sequence[str], now: datetime) -> None:
    """Make what is missing, renew what is due."""
    authority, front_proxy = make_authorities(where, now)
    pki_files.ensure_server(where, "apiserver", authority, names=names, now=now)
    pki_files.ensure_client(where, "admin", authority, user="coterie-admin", groups=(ADMIN_GROUP,), now=now)
    pki_files.ensure_client(where, "agent-client", authority, user="kube-apiserver-kubelet-client", now=now)
    pki_files.ensure_client(where, "front-proxy-client", front_proxy, user=FRONT_PROXY_USER, now=now)


def main(directory: str, now: str, *names: str) -> int:
    try:
        make(Path(directory), names, datetime.fromisoformat(now))
    except (PkiError, OSError) as error:
        with contextlib.suppress(BrokenPipeError):  # whoever asked may be gone
            print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    parent_death.die_with_parent()
    sys.exit(main(*sys.argv[1:]))
