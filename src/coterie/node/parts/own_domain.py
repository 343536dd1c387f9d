"""The node's own domain: its identity in files before anything starts, its Domain object once the API is up.

    with prepared(settings, clock):      var/certs is made and checked (`domainkeys`), maybe by a process beside this one,
        groups = ...                     so what is set up inside may not need the identity yet
    own_domain(client, settings)         a job of every control plane: Domain <domainID> with our certificate

Partners and lites find our certificate in that object. When the key was changed on purpose (the old files removed), the
object follows at the next start; everything else in it is the operator's.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from coterie.base import files, parent_death
from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.base.store_address import StoreAddress
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import ObjectMeta
from coterie.kube.client.client import Client
from coterie.kube.control.manager import RunOnce
from coterie.kuscia.api.types.domain import DOMAINS, Domain, DomainSpec
from coterie.kuscia.gateway.addresses import Protocol
from coterie.node.config import ConfigError, NodeSettings

if TYPE_CHECKING:
    from coterie.node import domain_keys_process
else:
    domain_keys_process = lazy_import("coterie.node.domain_keys_process")

log = logger("node.owndomain")


@contextmanager
def prepared(settings: NodeSettings, clock: Clock) -> Iterator[None]:
    """The identity is in its files when this block is left; ConfigError with one sentence when that cannot be."""
    _write_inline_files(settings)
    order = _key_request(settings, clock)
    if settings.store is not None and settings.store.shared:
        _share(settings.store, order)
    if settings.gateway.enabled:
        # The gateway needs the same libraries in this very process: another one would spare nothing.
        _refuse(domain_keys_process.problem_with(order))
        yield
    else:
        with _made_by_child(order):
            yield


def _share(store: StoreAddress, request: Mapping[str, object]) -> None:
    """Several control planes have one identity: taken from their store, or put there, before anything is made here."""
    maker = _child("coterie.node.shared_identity_process")
    output = maker.communicate(json.dumps({**request, "store": store.revealed()}).encode())[0]
    if maker.returncode:
        problem = output.decode(errors="replace").strip() or "the log above says more"
        raise ConfigError(f"store: {problem}")


def _child(module: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        (sys.executable, "-S", "-m", module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Without `site`: where this process finds its modules, the other finds them too, and starts faster.
        env={**os.environ, **parent_death.parent_environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


@contextmanager
def _made_by_child(request: Mapping[str, object]) -> Iterator[None]:
    maker = _child("coterie.node.domain_keys_process")
    try:
        assert maker.stdin is not None
        maker.stdin.write(json.dumps(request).encode())
        maker.stdin.close()
        maker.stdin = None
        yield
    finally:
        output = maker.communicate()[0].decode(errors="replace").strip()
    if maker.returncode:
        _refuse(output or "the log above says more")


def _refuse(problem: str) -> None:
    if problem:
        raise ConfigError(f"the domain's identity cannot be used: {problem}")


def _key_request(settings: NodeSettings, clock: Clock) -> dict[str, object]:
    external = settings.gateway.external_tls
    named = [external.pair.certificate, external.pair.key, external.authority] if external else []
    return {
        "home": str(settings.paths.home),
        "domain": settings.domain,
        "key": settings.domain_key.reveal() if settings.domain_key else "",
        "now": clock.now().isoformat(),
        # Without TLS nobody asks for the token, and it must not be learnt from the wire.
        "token": settings.gateway.protocol is not Protocol.NOTLS,
        "external": [str(path) for path in named if path is not None],
        "logLevel": settings.log_level,
        "logFormat": "json" if settings.log_json else "plain",
    }


def _write_inline_files(settings: NodeSettings) -> None:
    """What stands in the configuration and is read by Envoy, which reads files only."""
    for given in settings.inline_files:
        content = given.content.reveal().encode()
        if files.read_bytes_or_none(given.path) != content:
            files.private_directory(given.path.parent)
            files.write_atomic(given.path, content)


def own_domain(client: Client, settings: NodeSettings) -> RunOnce:
    """Ready when the Domain object of this control plane exists with the certificate that partners shall know."""

    async def keep() -> None:
        pem = settings.paths.domain_certificate.read_bytes()
        await ensure_domain(client, settings.domain, base64.b64encode(pem).decode())

    return RunOnce("own-domain", keep)


async def ensure_domain(client: Client, name: str, certificate: str) -> None:
    """`certificate`: base64 of the PEM, as `spec.cert` has it."""
    before = ""

    def with_certificate(domain: Domain) -> Domain:
        nonlocal before
        before = domain.spec.cert
        return msgspec.structs.replace(domain, spec=msgspec.structs.replace(domain.spec, cert=certificate))

    try:
        await client.modify(DOMAINS, name, "", with_certificate)
    except NotFound:
        new = Domain(metadata=ObjectMeta(name=name), spec=DomainSpec(cert=certificate))
        try:
            await client.create(DOMAINS, new)
            log.info("The own domain is known to the API now", domain=name)
        except AlreadyExists:
            await client.modify(DOMAINS, name, "", with_certificate)
        return
    if before != certificate:
        log.warning(
            "The own domain has another certificate now; partners need it before they accept our connections",
            domain=name,
        )
