"""A process of its own that takes the control plane's shared identity from its store, or puts it there: `python -m coterie.node.shared_identity_process`.

In comes one JSON object on the standard input, because secrets are in it; out go files below `var/certs`, log lines on the
standard error, and on the standard output one sentence that says why not. A process of its own, because the store's driver
belongs to the event loop it is first used in, and because the identity is needed before the node's parts are built.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from coterie.base import files
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.base.pki import PkiError
from coterie.base.secret import SecretValue
from coterie.base.store_address import address_of_revealed
from coterie.kube.store.opening import store_of
from coterie.kube.store.protocol import CompareFailed, PutOp, Store, StoreError, StoreUnavailable, Unsettled
from coterie.kuscia.identity import domain_identity
from coterie.node import api_keys_process
from coterie.node.shared_identity import NEEDED, OPTIONAL, STORE_KEY, SharedIdentityError, open_sealed, seal, to_write
from coterie.node.stdin_request import answer_request

log = logger("node.identity")
_RETRY_SECONDS = 2.0
_ATTEMPTS = 10


def kept(certs: Path) -> dict[str, bytes]:
    """The shared files that are here already."""
    found = {name: files.read_bytes_or_none(certs / name) for name in (*NEEDED, *OPTIONAL)}
    return {name: content for name, content in found.items() if content is not None}


def own_key(paths: DomainPaths, given: SecretValue | None) -> RSAPrivateKey | None:
    content = files.read_bytes_or_none(paths.domain_key)
    if content is None and given is not None:
        content = given.reveal().encode()
    return domain_identity.load_domain_key(content) if content is not None else None


def made_beside(
    request: Mapping[str, Any], paths: DomainPaths, given: SecretValue | None
) -> tuple[Path, RSAPrivateKey]:
    """A whole identity in a folder of its own, of what is here and what was missing: it counts only once the store has it."""
    home = Path(tempfile.mkdtemp(prefix="identity-", dir=files.private_directory(paths.var)))
    beside = DomainPaths(home)
    if paths.certs.is_dir():
        shutil.copytree(paths.certs, beside.certs)
    files.private_directory(beside.certs)
    now = datetime.fromisoformat(request["now"])
    made = domain_identity.ensure(beside, request["domain"], given, now)
    if request["token"]:
        domain_identity.ensure_api_token(beside, made)
    api_keys_process.make_authorities(files.private_directory(beside.pki), now)
    return home, made.key


async def agree(request: Mapping[str, Any], store: Store) -> None:
    """The files below `var/certs` are those of all members when this returns. The store is open."""
    paths = DomainPaths(Path(request["home"]))
    given = SecretValue(request["key"]) if request["key"] else None
    new_key = False
    for _ in range(_ATTEMPTS):
        record = await store.get(STORE_KEY)
        if record is not None:
            try:
                _take(record.value, request["domain"], paths, given)
            except SharedIdentityError:
                if new_key:
                    paths.domain_key.unlink()  # another member was faster, and ours was never of use to anybody
                raise
            return
        home, key = made_beside(request, paths, given)
        beside = DomainPaths(home)
        try:
            # The key before the record: a record that no member can open would be of no use to anybody.
            files.private_directory(paths.certs)
            if not paths.domain_key.exists():
                files.write_atomic(paths.domain_key, beside.domain_key.read_bytes())
                new_key = given is None
            await store.commit([PutOp(STORE_KEY, seal(kept(beside.certs), request["domain"], key), expect=0)])
            log.info("The keys of the control plane are in the store, sealed with the domain's key")
        except (CompareFailed, Unsettled):
            pass  # another member was faster, or nobody knows: it is read
        finally:
            shutil.rmtree(home, ignore_errors=True)
    raise SharedIdentityError("the store did not settle which keys the control plane has; start this node again")


def _take(record: bytes, domain: str, paths: DomainPaths, given: SecretValue | None) -> None:
    missing = to_write(open_sealed(record, domain, own_key(paths, given)), kept(paths.certs))
    for name, content in missing.items():
        target = paths.certs / name
        files.private_directory(target.parent)
        files.write_atomic(target, content, mode=files.PUBLIC_FILE if name.endswith(".crt") else files.PRIVATE_FILE)
    if missing:
        log.info("This node has the keys of the control plane's members now", files=sorted(missing))


async def agreed(request: Mapping[str, Any]) -> None:
    """With a store that may be away: it is waited for, as at the start of the API server."""
    store = store_of(address_of_revealed(request["store"]), Path("/"), SYSTEM_CLOCK)
    logged = ""
    while True:
        try:
            await store.open()
            try:
                return await agree(request, store)
            finally:
                await store.close()
        except StoreUnavailable as problem:
            if str(problem) != logged:
                logged = str(problem)
                log.warning("The store is not there yet; trying again", reason=logged)
            await asyncio.sleep(_RETRY_SECONDS)


def problem_with(request: Mapping[str, Any]) -> str:
    try:
        asyncio.run(agreed(request))
    except (SharedIdentityError, PkiError, StoreError) as problem:
        return str(problem)
    except OSError as problem:
        return f"{problem.filename or request['home']}: {problem.strerror}"
    return ""


if __name__ == "__main__":
    answer_request(problem_with)
