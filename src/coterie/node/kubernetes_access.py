"""The way to somebody's Kubernetes (`apiServer.kubeconfig`), and what is looked at before anything works there."""

from __future__ import annotations

from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, Forbidden, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.kubeconfig import ClusterConnection, KubeconfigError
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.node.config import IN_CLUSTER, ConfigError

log = logger("node.kubernetes")

OWNER = "coterie-control-plane"
"""ConfigMap in `cross-domain`: which domain's control plane works with this cluster. Domains are objects of the whole cluster."""
INSTALL = "run `coterie install kubernetes --apply` as an administrator of the cluster"
_MAPS = CONFIG_MAPS.as_dynamic
_RETRY_SECONDS = 2.0
_LOG_EVERY = 15


def connection_of(way: str) -> ClusterConnection:
    """ConfigError where there is none, or one that the gateway cannot use."""
    try:
        found = kubeconfig.in_cluster() if way == IN_CLUSTER else kubeconfig.read(Path(way)).resolve()
    except KubeconfigError as problem:
        raise ConfigError(f"apiServer.kubeconfig: {problem}") from problem
    if found.proxy_url:
        raise ConfigError(
            "apiServer.kubeconfig: proxy-url cannot be used: calls of partners are led to the cluster directly"
        )
    if not found.server.startswith("https://"):
        raise ConfigError("apiServer.kubeconfig: the server must be an https URL: tokens of partners are sent to it")
    if found.insecure:
        raise ConfigError("apiServer.kubeconfig: insecure-skip-tls-verify cannot be used: give certificate-authority")
    return found


def as_kubeconfig(name: str, connection: ClusterConnection, way: str) -> kubeconfig.Kubeconfig:
    """For the command line beside the node: the very same rights."""
    if way != IN_CLUSTER:
        return kubeconfig.read(Path(way))
    made = kubeconfig.make(name, connection.server, ca=connection.ca, namespace=connection.namespace)
    return kubeconfig.Kubeconfig(made.clusters, {name: {"tokenFile": connection.token_file}}, made.contexts, name)


async def check_cluster(client: Client, domain: str, clock: Clock) -> None:
    """Until the cluster answers; ConfigError when it is not prepared for us, or is another domain's."""
    waited = 0
    while True:
        try:
            await client.page(DOMAINS, limit=1)
            return await _claim(client, domain)
        except NotFound as problem:
            raise ConfigError(
                f"the cluster does not know Kuscia's kinds, or namespace {CROSS_DOMAIN} is missing; {INSTALL}"
            ) from problem
        except Forbidden as problem:
            raise ConfigError(
                f"the cluster refuses us: {problem.message}; {INSTALL}, and use its service account"
            ) from problem
        except (ApiError, TransportError) as problem:
            if waited % _LOG_EVERY == 0:
                log.warning("The cluster does not answer; trying again", reason=str(problem))
            waited += 1
            await clock.sleep(_RETRY_SECONDS)


async def _claim(client: Client, domain: str) -> None:
    """Two control planes would take each other's Domains for their own."""
    claim: Object = {"metadata": {"name": OWNER, "namespace": CROSS_DOMAIN}, "data": {"domain": domain}}
    try:
        found = await client.get(_MAPS, OWNER, CROSS_DOMAIN)
    except NotFound:
        try:
            await client.create(_MAPS, claim, CROSS_DOMAIN)
            return
        except AlreadyExists:
            found = await client.get(_MAPS, OWNER, CROSS_DOMAIN)
    other = (found.get("data") or {}).get("domain") or ""
    if other != domain:
        raise ConfigError(
            f'domainID: this cluster has the control plane of "{other}" (ConfigMap {CROSS_DOMAIN}/{OWNER}); '
            "a cluster has one, so take another cluster, or let this domain have an API server of its own"
        )
