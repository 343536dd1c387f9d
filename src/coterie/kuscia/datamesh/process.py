"""The process that serves, started when the first engine comes and ended when none is left
(kube/control/on_demand_process.py)."""

from __future__ import annotations

import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import pki, trace_socket
from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.api.errors import ApiError
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.on_demand_process import (
    IDLE,
    HeldListener,
    NamespaceListeners,
    OnDemandProcess,
    OnDemandProcessSpec,
    OnDemandRunnable,
)
from coterie.kuscia.api import labels
from coterie.kuscia.datamesh.settings import GRPC, HTTP, MeshSettings, proxies_text
from coterie.kuscia.sources.source_creation import ensure_default_source

log = logger("datamesh")

_BACKOFF = Policy(first=0.2, factor=2.0, limit=10.0)
_GROUP = "/apis/kuscia.secretflow/v1alpha1/namespaces"
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


def allowed(method: str, path: str, query: str, domain: str) -> bool:
    """Own data, sources and grants in every way; own pods and their values, and jobs, by name."""
    if "watch=" in query:
        return False
    own = rf"{_GROUP}/{re.escape(domain)}/(domaindatas|domaindatasources|domaindatagrants|domaindatarecords)(/{_NAME}(/status)?)?"
    if re.fullmatch(own, path):
        return True
    seen = (
        rf"/api/v1/namespaces/{re.escape(domain)}/(pods|configmaps)/{_NAME}",
        rf"{_GROUP}/cross-domain/kusciajobs/{_NAME}",
    )
    return method == "GET" and any(re.fullmatch(each, path) for each in seen)


class DataMeshProcess(OnDemandRunnable):
    """A Runnable, ready as soon as the ports are held. OSError when one cannot be had."""

    name = "datamesh"

    def __init__(
        self,
        settings: MeshSettings,
        run: Path,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        everywhere: bool,
        pods: NamespaceListeners | None = None,
        idle: float = IDLE,
    ) -> None:
        """`run`: where the sockets lie, private and short. `everywhere`: whether pods of all domains may be watched.
        `pods`: the network in which it listens; None: the machine's."""
        self.settings = settings
        self._client = client
        self._clock = clock
        self._pods = informers.get(PODS, "" if everywhere else settings.domain)
        self._engines: set[str] = set()

        def passes(method: str, path: str, query: str) -> bool:
            return allowed(method, path, query, settings.domain)

        plan = _plan(settings, run, pods)
        self._held = OnDemandProcess(
            plan, client.transport, passes, clock, idle=idle, in_use=lambda: bool(self._engines)
        )

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            self._pods.add_handler(self._pod_changed)
            owner.start("default-source", self._default_source(), vital=False)
            await self._held.run()

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if pod.metadata.namespace != self.settings.domain:
            return
        engine = (pod.metadata.labels or {}).get(labels.KUSCIA_COMMUNICATION_ROLE_CLIENT) == "true"
        if engine and change.type != "deleted" and not pod.ended:
            self._engines.add(pod.metadata.uid)
            self._held.need()
        else:
            self._engines.discard(pod.metadata.uid)

    async def _default_source(self) -> None:
        """Until it is there; the API may be away for a while."""
        paths, backoff = self.settings.paths, Backoff(_BACKOFF)
        key = pki.public_key_of(pki.load_certificate(paths.domain_certificate.read_bytes()))
        assert isinstance(key, rsa.RSAPublicKey), "identity.ensure makes RSA keys only"
        while True:
            try:
                return await ensure_default_source(self._client, self.settings.domain, paths.data, key)
            except (ApiError, TransportError) as problem:
                if backoff.attempts == 3:
                    log.warning("The default data source cannot be made yet", error=problem)
                await self._clock.sleep(backoff.failed())


def _plan(settings: MeshSettings, run: Path, pods: NamespaceListeners | None) -> OnDemandProcessSpec:
    return OnDemandProcessSpec(
        name="datamesh",
        who="a data mesh",
        module="coterie.kuscia.datamesh",
        options={
            "--domain": settings.domain,
            "--home": str(settings.paths.home),
            "--address": settings.address,
            "--http": str(settings.http_port),
            "--grpc": str(settings.grpc_port),
            "--names": ",".join(settings.names),
            "--node": settings.node,
            "--only-data-directory": "yes" if settings.only_data_directory else "no",
            **({"--data-proxies": proxies_text(settings.proxies)} if settings.proxies else {}),
            **({"--evidence": str(settings.evidence)} if settings.evidence is not None else {}),
            **_namespace_options(pods),
        },
        listeners=_listeners(settings, pods),
        api=run / "datamesh.sock",
        log_file=settings.paths.log("datamesh"),
        logging=settings.paths.logging,
        log_rotation=settings.log_rotation,
        # Arrow's own pools keep what a large read needed for good; the machine's give it back.
        env={"ARROW_DEFAULT_MEMORY_POOL": "system", **trace_socket.environment(settings.traces)},
        prefix=pods.prefix if pods is not None else (),
    )


def _listeners(settings: MeshSettings, pods: NamespaceListeners | None) -> list[HeldListener]:
    """In a network of our own gRPC opens its port itself: a pump would cost throughput."""
    http, grpc = (HTTP, settings.address, settings.http_port), (GRPC, settings.address, settings.grpc_port)
    if pods is None:
        return [HeldListener.port(*http), HeldListener.port(*grpc)]
    return [HeldListener.port(*http, pods.open_port), HeldListener.shared_port(*grpc, pods.open_shared_port)]


def _namespace_options(pods: NamespaceListeners | None) -> dict[str, str]:
    if pods is None:
        return {}
    return {"--direct-grpc": "yes", **({"--netns": str(pods.netns)} if pods.netns is not None else {})}
