"""A process of its own that makes and checks a domain's identity, and ends: `python -m coterie.node.domain_keys_process`.

What it needs for that is heavy, and a control plane without a gateway needs it for nothing else (see `apikeys`). In comes one
JSON object on the standard input, because the key may be in it and arguments can be seen by everybody; out go files, log
lines on the standard error, and on the standard output one sentence that says why not.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from coterie.base import pki
from coterie.base.paths import DomainPaths
from coterie.base.pki import PkiError
from coterie.base.secret import SecretValue
from coterie.kuscia.identity import domain_identity
from coterie.node.stdin_request import answer_request


def make(request: Mapping[str, Any]) -> None:
    """Make what is missing; PkiError or OSError when what is there cannot be used."""
    paths = DomainPaths(Path(request["home"]))
    given = SecretValue(request["key"]) if request["key"] else None
    made = domain_identity.ensure(paths, request["domain"], given, datetime.fromisoformat(request["now"]))
    if request["token"]:
        domain_identity.ensure_api_token(paths, made)
    if request["external"]:
        check_pair(*map(Path, request["external"]))


def check_pair(certificate: Path, key: Path, *authorities: Path) -> None:
    """Envoy would refuse them much later, and with less to say."""
    for path in (certificate, *authorities):
        try:
            pki.load_certificate(path.read_bytes())
        except PkiError as problem:
            raise PkiError(f"domainRoute.externalTLS: {path} is {problem}") from problem
    try:
        loaded = pki.load_key(key.read_bytes())
    except PkiError as problem:
        raise PkiError(f"domainRoute.externalTLS: {key} is {problem}") from problem
    if pki.public_key_of(pki.load_certificate(certificate.read_bytes())) != loaded.public_key():
        raise PkiError(f"domainRoute.externalTLS: {certificate} does not belong to {key}")


def problem_with(request: Mapping[str, Any]) -> str:
    """`make`, and why it could not be done; empty when it was."""
    try:
        make(request)
    except PkiError as problem:
        return str(problem)
    except OSError as problem:
        return f"{problem.filename or request['home']}: {problem.strerror}"
    return ""


if __name__ == "__main__":
    answer_request(problem_with)
