"""Every key there is, in one table each: what is used, what is accepted without effect, what is refused.

    a.b      a key inside another          a[].b    in each element of a list          a.*    whatever lies below

Kuscia's files may carry keys for parts that Coterie does not have (yet). Refusing them would mean that nobody's file can
be taken along; dropping them silently would mean that somebody relies on what does not happen. So they are accepted and
named in the log, unless ignoring them could harm: then they are refused with what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from coterie.node.config.reading import ConfigError, blank
from coterie.node.config.settings import Notice

USED = (
    # Both Kuscia's and ours.
    "mode", "domainID", "domainKeyData", "protocol", "logLevel", "masterEndpoint", "liteDeployToken", "runtime",
    "enableWorkloadApprove", "agent.allowPrivileged",
    "logrotate.maxFiles", "logrotate.maxFileSizeMB", "logrotate.maxAgeDays",
    "capacity.cpu", "capacity.memory", "capacity.bandwidth", "capacity.pods", "capacity.storage",
    "capacity.ephemeralStorage",
    "reservedResources.cpu", "reservedResources.memory", "reservedResources.bandwidth",
    "garbageCollection.kusciaJobGC.durationHours",
    "garbageCollection.kusciaDomainDataGC.enable", "garbageCollection.kusciaDomainDataGC.durationHours",
    "domainRoute.externalTLS.enableTLS",
    "domainRoute.externalTLS.certFile", "domainRoute.externalTLS.certData",
    "domainRoute.externalTLS.keyFile", "domainRoute.externalTLS.keyData",
    "domainRoute.externalTLS.caFile", "domainRoute.externalTLS.caData",
    "kusciaAPI.HTTPPort", "kusciaAPI.GRPCPort", "kusciaAPI.protocol", "kusciaAPISans[]",
    "kusciaAPI.readTimeout", "kusciaAPI.idleTimeout",
    "confManager.HTTPPort", "confManager.GRPCPort",
    "confManager.readTimeout", "confManager.writeTimeout", "confManager.idleTimeout",
    "runk.namespace", "runk.dnsServers[]", "runk.kubeconfigFile", "runk.enableLogging", "runk.logDirectory", "runk.logMaxFiles",
    "runk.logMaxSize",
    # Ours alone.
    "runk.podCIDRs[]", "runk.labelsToAdd.*", "runk.annotationsToAdd.*", "runk.affinitiesToAdd.*", "runk.runtimeClassName",
    "runk.imagePullSecrets[]", "runk.serviceAccountName", "runk.runAsUser", "runk.allowRoot", "runk.networkPolicies",
    "store", "datastoreEndpoint", "root", "logFormat", "join", "logrotate.maxTotalSizeMB",
    "apiServer.host", "apiServer.port", "apiServer.names[]", "apiServer.eventTTLSeconds", "apiServer.auditLog",
    "apiServer.auditPolicy", "apiServer.kubeconfig",
    "controllers.profile", "controllers.nodeGraceSeconds", "controllers.podEvictionSeconds", "controllers.portRange",
    "controllers.autoscalerSeconds", "controllers.stallSeconds", "controllers.localSlurmUser", "controllers.healthPort",
    "network.podCIDR", "network.nodeMaskSize", "network.serviceCIDR",
    "agent.nodeName", "agent.address", "agent.port", "agent.taint", "agent.hostPaths[]", "agent.leaseSeconds",
    "agent.podCIDR", "agent.allowHostNetwork", "agent.linkRoutes", "agent.containerRuntime",
    "agent.gpus.enabled", "agent.gpus.only[]",
    "agent.eviction.memoryAvailable", "agent.eviction.diskAvailable", "agent.eviction.inodesFree",
    "agent.eviction.pidsAvailable", "agent.eviction.softMemoryAvailable", "agent.eviction.softDiskAvailable",
    "agent.eviction.softGraceSeconds", "agent.eviction.transitionSeconds",
    "agent.defaults.pids", "agent.defaults.openFiles", "agent.defaults.memory", "agent.defaults.ephemeralStorage",
    "image.pullPolicy", "image.defaultRegistry", "image.httpProxy", "image.registries[].name", "image.registries[].endpoint",
    "image.registries[].username", "image.registries[].password", "image.registries[].mirrors[]",
    "image.registries[].caFile",
    "image.sharedStore", "image.gc.highThresholdPercent", "image.gc.lowThresholdPercent", "image.gc.minimumAge", "image.gc.maximumAge",
    "image.gc.period", "image.signatures[].images[]", "image.signatures[].keys[]", "image.signatures[].policy",
    "gateway.internal.host", "gateway.internal.port", "gateway.external.host", "gateway.external.port",
    "gateway.ingress.host", "gateway.ingress.httpPort", "gateway.ingress.httpsPort",
    "gateway.name", "gateway.workers", "gateway.enabled", "gateway.diagnose",
    "transport.enabled", "transport.maxMessageMiB", "transport.sessionMiB", "transport.totalMiB", "transport.memoryMiB",
    "transport.sessionExpirySeconds", "transport.releasedSeconds", "transport.cleanSeconds",
    "dataMesh.enabled", "dataMesh.host", "dataMesh.httpPort", "dataMesh.grpcPort",
    "dataMesh.dataProxyList[].endpoint", "dataMesh.dataProxyList[].mode", "dataMesh.dataProxyList[].dataSourceTypes[]", "dataMesh.dataProxyList[].clientTLSConfig.caFile",
    "dataMesh.dataProxyList[].clientTLSConfig.certFile", "dataMesh.dataProxyList[].clientTLSConfig.keyFile",
    "kusciaAPI.enabled", "kusciaAPI.host", "confManager.host",
    "metrics.enabled", "metrics.host", "metrics.port", "metrics.allow[]", "metrics.tokenFile",
    "console.enabled", "console.host", "console.port", "console.readOnly", "console.exec", "console.names[]",
    "functions.enabled", "functions.bus", "functions.image", "functions.maxBodyMB", "functions.gateway.minReplicas",
    "functions.gateway.maxReplicas", "functions.spareActors.size", "functions.spareActors.idleSeconds",
    "traces.enabled", "traces.file", "traces.otlp.endpoint", "traces.otlp.headersFile", "traces.otlp.caFile",
    "traces.otlp.certFile", "traces.otlp.keyFile", "traces.otlp.timeoutSeconds",
    "dns.enabled", "dns.host", "dns.port", "dns.upstream[]", "dns.clusterDomain",
)  # fmt: skip

_LEAVE = "leave it out; "
_NOT_RUNK = "what Kuscia has as a provider of the agent is the section runk; " + _LEAVE + "or write it there"
_FIXED = _LEAVE + "calls that it makes itself have fixed time limits"

WITHOUT_EFFECT = {
    "clusterToken": _LEAVE + "lites join with a deploy token, or with a file from `coterie node add`",
    "debug": _LEAVE + "there is no profiling port; logLevel: DEBUG shows more",
    "debugPort": _LEAVE + "there is no profiling port",
    "metricUpdatePeriod": _LEAVE + "metrics are measured when somebody scrapes",
    "gateway.handshake.host": _LEAVE + "the handshake server has a private socket, no port",
    "gateway.handshake.port": _LEAVE + "the handshake server has a private socket, no port",
    "kusciaAPI.HTTPInternalPort": _LEAVE + "what lites send comes through a private socket, not a port",
    "kusciaAPI.debug": _LEAVE + "logLevel: DEBUG shows more",
    "kusciaAPI.connectTimeout": _FIXED,
    "kusciaAPI.initiator": _LEAVE + "a job names its initiator",
    "kusciaAPI.token.*": _LEAVE + "put a token of your own into var/certs/token before the first start",
    "confManager.connectTimeout": _FIXED,
    "confManager.enableConfAuth": _LEAVE + "ConfManager always asks for a certificate",
    "confManager.backend": _LEAVE + "values lie in the domain's ConfigMap domain-config",
    "dataMesh.disableTLS": _LEAVE + "the data mesh always asks for a certificate; engines find theirs in kuscia/certs",
    "agent.plugins[].*": _LEAVE + "what Kuscia has as plug-ins of the agent is built in",
    "agent.provider.*": _NOT_RUNK,
}
"""Accepted and not used, each with what to do."""

REFUSED = {
    "master.apiWhitelist": "this version cannot restrict which paths of the API lites may call; "
    "leave the key out if they may call what their roles allow",
}

ONLY_IN = {
    **dict.fromkeys(("liteDeployToken", "masterEndpoint"), ("lite",)),
    **dict.fromkeys(
        (
            "apiServer.eventTTLSeconds",
            "apiServer.auditLog",
            "controllers",
            "datastoreEndpoint",
            "store",
            "garbageCollection",
            "enableWorkloadApprove",
        ),
        ("master", "autonomy"),
    ),
    **dict.fromkeys(
        (
            "agent",
            "dataMesh",
            "transport",
            "capacity",
            "image",
            "reservedResources",
            "runtime",
            "runk",
            "gateway.internal",
        ),
        ("lite", "autonomy"),
    ),
    "functions": ("autonomy",),
}
"""Modes in which a key means something; the others accept it, as Kuscia does, and say so."""

NOT_OF_JOINED = (
    "liteDeployToken", "protocol", "domainKeyData", "domainRoute", "gateway", "dataMesh", "transport", "functions", "kusciaAPI",
    "kusciaAPISans", "confManager", "apiServer", "network",
)  # fmt: skip
"""What means nothing to a lite that joins with a file: its domain's key, gateway and API are elsewhere."""

UNUSED_SENTENCE = "This version does not use a key of the configuration"
MEANINGLESS_SENTENCE = "A key of the configuration means nothing in this mode"

_NO_PUBLIC_PORT = ("gateway.external", "none")
_ANYTHING = "*"
_ELEMENTS = "[]"
_STEP = re.compile(r"[^.\[\]]+|\[\]")

Tree = dict[str, Any]


def _tree(*paths: str) -> Tree:
    root: Tree = {}
    for path in paths:
        at = root
        for step in _STEP.findall(path):
            at = at.setdefault(step, {})
    return root


_KNOWN = _tree(*USED, *WITHOUT_EFFECT, *REFUSED)


def check(document: Any) -> None:
    """ConfigError for the first key that is not known, or that is and would be ignored at somebody's cost."""
    if not isinstance(document, Mapping):
        raise ConfigError("the configuration must be a mapping with at least mode and domainID")
    _check(document, _KNOWN, "")
    for path, why in REFUSED.items():
        if not blank(_value(document, path)):
            raise ConfigError(f"{path}: {why}")


def _check(value: Any, known: Tree, path: str) -> None:
    if value is None or value == "" or not known or _ANYTHING in known or (path, value) == _NO_PUBLIC_PORT:
        return
    if _ELEMENTS in known:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path}: must be a list")
        for number, each in enumerate(value):
            _check(each, known[_ELEMENTS], f"{path}[{number}]")
        return
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: must be a mapping")
    for key, each in value.items():
        here = f"{path}.{key}" if path else str(key)
        if key not in known:
            raise ConfigError(f"{here}: is not a known key; known here are {', '.join(sorted(known))}")
        _check(each, known[key], here)


def notices(document: Mapping[Any, Any], mode: str, runtime: str) -> Iterator[Notice]:
    """What is in the file and has no effect, each named once."""
    names = {re.split(r"\[\]|\.\*", path)[0]: advice for path, advice in WITHOUT_EFFECT.items()}
    for name, advice in names.items():
        if not blank(_value(document, name)):
            yield Notice(UNUSED_SENTENCE, name, advice=advice)
    for name, modes in ONLY_IN.items():
        if mode not in modes and not blank(_value(document, name)):
            yield Notice(MEANINGLESS_SENTENCE, name, f"mode {mode}", "leave it out")
    if mode != "master" and runtime != "runk" and not blank(document.get("runk")):
        yield Notice(UNUSED_SENTENCE, "runk", advice=_LEAVE + f"pods run on this machine (runtime: {runtime})")
    if mode == "lite" and not blank(document.get("join")):
        for name in NOT_OF_JOINED:
            if not blank(document.get(name)):
                yield Notice(MEANINGLESS_SENTENCE, name, "mode lite with join", "leave it out")


def changed_keys(before: Any, after: Any) -> list[str]:
    """Paths of the keys that differ; lists are compared as a whole. Never values: they may be secrets."""
    return sorted(_changed(before, after, ""))


def _changed(before: Any, after: Any, path: str) -> Iterator[str]:
    before, after = (None if each in ("", [], (), {}) else each for each in (before, after))
    both = [
        each if isinstance(each, Mapping) else {}
        for each in (before, after)
        if each is None or isinstance(each, Mapping)
    ]
    if len(both) == 2:
        for key in {**both[0], **both[1]}:
            yield from _changed(both[0].get(key), both[1].get(key), f"{path}.{key}" if path else str(key))
    elif before != after:
        yield path


def _value(document: Any, path: str) -> Any:
    at = document
    for step in path.split("."):
        if not isinstance(at, Mapping):
            return None
        at = at.get(step)
    return at
