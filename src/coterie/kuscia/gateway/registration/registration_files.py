"""What a lite keeps of its registration, so that a restart needs neither the master nor a token.

    var/certs/master.pub              the master's key: whoever shows another one is refused
    var/storage/registration.json     whose lite we are, what the master's port showed, the token agreed on (mode 0600)

Removing `master.pub` is how an operator says that the master is another one now.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import files, pki
from coterie.base.clock import parse_rfc3339, rfc3339
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.registration.messages import UnreadableMessage, public_pem, read_public_key
from coterie.kuscia.identity.domain_identity import DomainIdentity

log = logger("gateway.registration")


@dataclass(frozen=True, slots=True)
class MasterToken:
    """A token under which the master knows us."""

    token: SecretValue
    revision: int
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    master: str
    """The domain id of the control plane."""
    master_key: rsa.RSAPublicKey = field(repr=False)
    server_certificate: str = ""
    """PEM of what the master's port shows; empty in plain text."""
    agreed: MasterToken | None = None


def master_key_file(paths: DomainPaths) -> Path:
    return paths.certs / "master.pub"


def registration_file(paths: DomainPaths) -> Path:
    return paths.storage / "registration.json"


def load_master_key(paths: DomainPaths) -> rsa.RSAPublicKey | None:
    """The pinned key. Raises PkiError when the file is there and holds none: that is no reason to trust anybody."""
    content = files.read_bytes_or_none(master_key_file(paths))
    if content is None:
        return None
    try:
        return read_public_key(content.decode("ascii", "replace"))
    except UnreadableMessage as error:
        raise pki.PkiError(
            f"{master_key_file(paths)} holds no key; remove it to let this lite register anew"
        ) from error


def load(paths: DomainPaths, identity: DomainIdentity) -> Registration | None:
    """None: there is none, or it is of another key than the domain has now."""
    master_key, content = load_master_key(paths), files.read_bytes_or_none(registration_file(paths))
    if master_key is None or content is None:
        return None
    try:
        document = json.loads(content)
        if document["domain"] != identity.domain or document["key"] != _key_hash(identity):
            return None
        agreed = None
        if document.get("token"):
            ends = document.get("expires")
            agreed = MasterToken(
                SecretValue(document["token"]), int(document["revision"]), parse_rfc3339(ends) if ends else None
            )
        return Registration(str(document["master"]), master_key, str(document["serverCertificate"]), agreed)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("The stored registration is unreadable; registering again", error=error)
        return None


def save(paths: DomainPaths, identity: DomainIdentity, registration: Registration) -> None:
    document: dict[str, object] = {
        "domain": identity.domain,
        "key": _key_hash(identity),
        "master": registration.master,
        "serverCertificate": registration.server_certificate,
    }
    if registration.agreed is not None:
        agreed = registration.agreed
        document |= {"token": agreed.token.reveal(), "revision": agreed.revision}
        if agreed.expires is not None:
            document["expires"] = rfc3339(agreed.expires)
    files.private_directory(paths.certs)
    files.private_directory(paths.storage)
    pem = public_pem(registration.master_key).encode()
    if files.read_bytes_or_none(master_key_file(paths)) != pem:
        files.write_atomic(master_key_file(paths), pem, mode=files.PUBLIC_FILE)
    files.write_atomic(registration_file(paths), json.dumps(document))


def _key_hash(identity: DomainIdentity) -> str:
    return hashlib.sha256(identity.public_key_pem).hexdigest()
