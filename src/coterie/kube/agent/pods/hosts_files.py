"""The pod's own hosts and resolver files. The machine's files are read, never written."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.settings import DnsSettings
from coterie.kube.api.meta import Object

_MAX_SEARCH = 32


def hosts_file(pod: Object, pod_ip: str, dns: DnsSettings) -> str:
    spec, key = pod_model.spec_of(pod), pod_model.key_of(pod)
    hostname = pod_model.hostname_of(pod)
    lines = [
        "# Written by Coterie for this pod alone.",
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
    ]
    names = [hostname]
    if spec.get("subdomain"):
        short = f"{hostname}.{spec['subdomain']}.{key.namespace}.svc"
        full = [f"{short}.{dns.cluster_domain}"] if dns.cluster_domain else []
        # The first is what `hostname -f` says.
        names = (
            [short, *full, hostname] if not full or key.namespace == dns.domain_namespace else [*full, short, hostname]
        )
    if pod_ip:
        lines.append(f"{pod_ip}\t{' '.join(names)}")
    lines += [f"{address}\t{' '.join(names)}" for address, names in dns.hosts]
    for alias in spec.get("hostAliases") or ():
        lines.append(f"{alias['ip']}\t{' '.join(alias.get('hostnames') or ())}")
    return "\n".join(lines) + "\n"


def resolver_file(pod: Object, dns: DnsSettings, host_file: str) -> str:
    """By `dnsPolicy`: the domain's DNS, the machine's file, or nothing but `dnsConfig`."""
    spec = pod_model.spec_of(pod)
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    if policy == "ClusterFirst" and spec.get("hostNetwork"):
        policy = "Default"
    if policy == "None":
        servers, search, options = parse_resolver_file("")
    elif policy == "Default" or not dns.servers:
        servers, search, options = parse_resolver_file(host_file)
    else:
        _, host_search, _ = parse_resolver_file(host_file)
        servers = list(dns.servers)
        search = [*_search(pod_model.key_of(pod).namespace, dns), *host_search]
        options = [f"ndots:{dns.ndots}"]
    more = spec.get("dnsConfig") or {}
    servers = _once([*servers, *(more.get("nameservers") or ())])
    search = _once([*search, *(more.get("searches") or ())])[:_MAX_SEARCH]
    for option in more.get("options") or ():
        name, value = option.get("name") or "", option.get("value")
        options = [known for known in options if known.partition(":")[0] != name]
        options.append(f"{name}:{value}" if value not in (None, "") else name)
    lines = [f"nameserver {server}" for server in servers]
    if search:
        lines.insert(0, f"search {' '.join(search)}")
    if options:
        lines.append(f"options {' '.join(options)}")
    return "\n".join(lines) + "\n"


def _search(namespace: str, dns: DnsSettings) -> Sequence[str]:
    if not dns.cluster_domain:
        return dns.search
    domain = dns.cluster_domain
    cluster = (f"{namespace}.svc.{domain}", f"svc.{domain}", domain)
    return (*dns.search, *cluster) if namespace == dns.domain_namespace else (*cluster, *dns.search)


def parse_resolver_file(text: str) -> tuple[list[str], list[str], list[str]]:
    """(nameservers, search domains, options)."""
    servers: list[str] = []
    search: list[str] = []
    options: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith(("#", ";")):
            continue
        if words[0] == "nameserver":
            servers += words[1:2]
        elif words[0] == "search":
            search = words[1:]  # the last line counts
        elif words[0] == "domain":
            search = words[1:2]
        elif words[0] == "options":
            options += words[1:]
    return servers, search, options


def _once(items: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(items))
