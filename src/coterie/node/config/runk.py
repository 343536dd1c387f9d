"""The section `runk`: pods in a backing cluster. Kuscia's keys, and ours for what is bounded there."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.quantity import parse as parse_quantity
from coterie.node.config.reading import Block, is_address
from coterie.node.config.settings import RunkConfig

RUNK = "runk"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_AFFINITIES = ("nodeAffinity", "podAffinity", "podAntiAffinity")
_UNROUTED = ("192.0.2.1", 9)
"""Nothing is sent there: it is asked which of our addresses would be used."""


def read(block: Block) -> RunkConfig:
    default = RunkConfig()
    namespace = block.text("namespace", "")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise block.refused("namespace", f'"{namespace}" is no name of a namespace')
    servers = block.texts("dnsServers", "addresses of DNS servers")
    if wrong := next((each for each in servers if not is_address(each)), None):
        raise block.refused("dnsServers", f'"{wrong}" is not an IP address')
    file, directory = block.text("kubeconfigFile", ""), block.text("logDirectory", "")
    if directory and not directory.startswith("/"):
        raise block.refused("logDirectory", f'"{directory}" is not an absolute path')
    affinity = block.raw("affinitiesToAdd") or {}
    if not isinstance(affinity, Mapping) or set(affinity) - set(_AFFINITIES):
        raise block.refused("affinitiesToAdd", f"must be a mapping with {', '.join(_AFFINITIES)}, as in a pod")
    secrets = block.texts("imagePullSecrets", "names of Secrets")
    for key, names in (
        ("imagePullSecrets", secrets),
        ("serviceAccountName", (block.text("serviceAccountName", ""),)),
        ("runtimeClassName", (block.text("runtimeClassName", ""),)),
    ):
        if wrong := next((each for each in names if each and dns_subdomain_faults(each)), None):
            raise block.refused(key, f'"{wrong}" is no name of an object')
    return RunkConfig(
        namespace=namespace,
        kubeconfig_file=str(Path(file).expanduser().absolute()) if file else "",
        dns_servers=servers,
        pod_cidr=_pod_ranges(block, default.pod_cidr),
        keep_logs=block.flag("enableLogging", default.keep_logs),
        log_directory=directory,
        log_max_files=block.number("logMaxFiles", 0, 1, 1000),
        log_max_bytes=_size(block, "logMaxSize"),
        labels=_texts(block, "labelsToAdd"),
        annotations=_texts(block, "annotationsToAdd"),
        affinity=dict(affinity),
        runtime_class=block.text("runtimeClassName", ""),
        pull_secrets=secrets,
        service_account=block.text("serviceAccountName", ""),
        run_as_user=block.number("runAsUser", default.run_as_user, 1),
        allow_root=block.flag("allowRoot", default.allow_root),
        network_policies=block.flag("networkPolicies", default.network_policies),
    )


def _pod_ranges(block: Block, default: tuple[str, ...]) -> tuple[str, ...]:
    given = block.texts("podCIDRs", "ranges such as 10.244.0.0/16")
    try:
        return tuple(str(ipaddress.IPv4Network(each)) for each in given) or default
    except ValueError:
        raise block.refused("podCIDRs", "must be a list of ranges of IPv4 addresses such as 10.244.0.0/16") from None


def _texts(block: Block, key: str) -> dict[str, str]:
    value = block.raw(key) or {}
    if not isinstance(value, Mapping) or not all(isinstance(a, str) and isinstance(b, str) for a, b in value.items()):
        raise block.refused(key, "must be a mapping of texts to texts; put numbers and true in quotes")
    return dict(value)


def _size(block: Block, key: str) -> int:
    """0: as the node's other logs."""
    text = block.quantity(key, "")
    return parse_quantity(text).value() if text else 0


def own_address() -> str:
    """The address by which this machine reaches others; empty: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNROUTED)
            found = str(probe.getsockname()[0])
        except OSError:
            return ""
    return "" if ipaddress.ip_address(found).is_unspecified else found
