"""The whole document: `load` a file, or `parse` what was read from one."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from coterie.base import files
from coterie.base.paths import DomainPaths, default_root
from coterie.base.secret import SecretValue
from coterie.base.store_address import StoreAddress, StoreAddressError, parse_store_address
from coterie.functions.bus.kafka_settings import SCHEME, parse_kafka_url
from coterie.functions.bus.protocol import BusError
from coterie.kube.agent.settings import (
    CapacitySettings,
    DeviceSettings,
    PodDefaults,
    PressureSettings,
    PressureThreshold,
)
from coterie.kube.api import quantity
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kuscia.api.bandwidth import MBIT, BandwidthError, mbit_down, parse_bits
from coterie.kuscia.api.types.domain import RESERVED_DOMAINS
from coterie.kuscia.datamesh.settings import DataProxy
from coterie.kuscia.kusciaapi.settings import Timeouts
from coterie.kuscia.transport.settings import QueueLimits
from coterie.node.config import gateway, images, keys, kubernetes, ports, runk
from coterie.node.config.reading import PORTS, PORTS_OR_ANY, Block, ConfigError
from coterie.node.config.settings import (
    AgentConfig,
    ApiSettings,
    ConsoleConfig,
    ControllerSettings,
    DataMeshConfig,
    FunctionsConfig,
    KusciaApiConfig,
    LogRotation,
    MetricsConfig,
    NetworkConfig,
    NodeSettings,
    Notice,
    TraceExportConfig,
    TracesConfig,
    TransportConfig,
)

_POD_RANGES, _CLUSTER_RANGES, _SERVICE_RANGES = (8, 24), (8, 22), (8, 24)
"""The shortest and the longest prefix."""
_PROFILES = {
    "standard": ControllerSettings(),
    "quick": ControllerSettings(node_grace_seconds=6, pod_eviction_seconds=1),
}
"""How soon the pods of a lost node are replaced: within 40 s, or within 10 s at the price of more heartbeats."""
MODES = ("master", "lite", "autonomy")
RUNTIMES = ("runp", "runc", runk.RUNK)
CONTAINER_RUNTIMES = ("auto", "containerd", "runc", "crun")
LOG_LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
READABLE_SENTENCE = "Others can read the configuration, which holds a secret; run chmod 600 on it"
_PEM_KEY = re.compile(r"\s*-----BEGIN (RSA )?PRIVATE KEY-----\s")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,251}[A-Za-z0-9])?")
_MAX_BODY_MB, _MAX_GATEWAYS = 11, 100
"""A body in base64 is a value of the bus, which has at most 16 MiB (functions/bus/protocol.py)."""
_MOST_MIB, _MOST_MESSAGE_MIB = 1 << 20, 1024
_MAX_SPARE_ACTORS, _MAX_SPARE_SECONDS = 50, 86_400
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def load(path: Path, root: Path | None = None) -> NodeSettings:
    """Read a configuration file. `root` wins over the file's own `root`."""
    document = read(path)
    try:
        settings = parse(document, root)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from problem.__cause__
    if _is_private(path) or not _has_secrets(settings):
        return settings
    return replace(settings, notices=(*settings.notices, Notice(READABLE_SENTENCE, str(path))))


def _has_secrets(settings: NodeSettings) -> bool:
    passwords = any(each.endpoint.password for each in settings.images.registries)
    passwords = passwords or "@" in settings.functions.bus
    passwords = passwords or (settings.store is not None and bool(settings.store.password))
    return passwords or settings.domain_key is not None or settings.gateway.deploy_token is not None


def _is_private(path: Path) -> bool:
    try:
        return files.is_private(path)
    except OSError:
        return True  # it is gone


def read(path: Path) -> Any:
    """The document as it is written."""
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem.strerror}); name an existing file with -c") from problem
    try:
        return _yaml(text)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None


def _yaml(text: bytes) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        mark, what = getattr(problem, "problem_mark", None), getattr(problem, "problem", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        # Without the cause: it quotes the lines around, and the domain's key may be one of them.
        raise ConfigError(f"is not YAML{where}: {what or 'it cannot be read'}") from None


def parse(document: Any, root: Path | None = None, *, lowest_port: int | None = None) -> NodeSettings:
    """`lowest_port`: the first port that may be opened; None: find out what this process may."""
    keys.check(document)
    top = Block(document)
    mode = top.choice("mode", None, MODES)
    domain = _domain(top)
    given_root = top.text("root", "")
    base = root or (Path(given_root).expanduser() if given_root else default_root())
    paths = DomainPaths.of(base.absolute(), domain)
    runtime = _runtime(top) if mode != "master" else RUNTIMES[0]
    backing = runtime == runk.RUNK
    join = _join(top, mode)
    if backing and join is not None:
        raise top.refused(
            "runtime", "runk needs the domain's gateway on the node, and a node that joins with a file has none"
        )
    own = _own_address(top) if backing else ""
    section = gateway.read(
        top, mode, domain, paths, ports.lowest_port() if lowest_port is None else lowest_port, inner_address=own
    )
    registers = mode == "lite" and join is None
    network = _network(top.block("network"))
    collected = top.block("garbageCollection")
    data = collected.block("kusciaDomainDataGC")
    data_hours = data.number("durationHours", 720, 1)
    rotation = _rotation(top.block("logrotate"))
    level = top.choice("logLevel", "INFO", LOG_LEVELS)
    transport = TransportConfig(enabled=False)
    if mode != "master" and join is None:
        transport = _transport(top.block("transport"), section)
    made = NodeSettings(
        mode=mode,
        domain=domain,
        paths=paths,
        gateway=replace(section.gateway, log_level=level, log_rotation=rotation.of_node, transport=transport.enabled),
        dns=section.dns,
        data_mesh=_data_mesh(top.block("dataMesh"), section) if mode != "master" else DataMeshConfig(enabled=False),
        transport=transport,
        kuscia_api=_kuscia_api(top, section),
        metrics=_metrics(top.block("metrics"), section),
        console=_console(top.block("console"), section),
        functions=_functions(top.block("functions")) if mode == "autonomy" else FunctionsConfig(enabled=False),
        traces=_traces(top.block("traces")),
        domain_key=_domain_key(top),
        log_level=level,
        log_json=top.choice("logFormat", "text", ("text", "json")) == "json",
        logrotate=rotation,
        api=_api(top.block("apiServer")),
        store=_store(top) if mode != "lite" else None,
        node_api=_api(top.block("apiServer")) if registers and top.raw("apiServer") else None,
        only_namespace=domain if registers else "",
        controllers=_controllers(top.block("controllers")),
        network=network,
        agent=_agent(top, network, runtime, joins=join is not None, own=own) if mode != "master" else None,
        images=images.read(top.block("image")),
        join=join,
        workload_approve=top.optional_flag("enableWorkloadApprove"),
        job_gc_hours=collected.block("kusciaJobGC").number("durationHours", 720, 1),
        data_gc_hours=data_hours if data.flag("enable", False) else None,
        inline_files=section.inline_files,
        notices=(*keys.notices(document, mode, runtime), *section.notices),
    )
    made = kubernetes.restrict(top, made)
    return replace(made, console=_console_apart(made))


def _rotation(block: Block) -> LogRotation:
    return LogRotation(
        max_files=block.number("maxFiles", 5, 1),
        max_file_mb=block.number("maxFileSizeMB", 0, 1) or None,
        max_age_days=block.number("maxAgeDays", 30, 1),
        max_total_mb=block.number("maxTotalSizeMB", 2048, 0),
    )


def _domain(top: Block) -> str:
    domain = top.text("domainID")
    if not _DOMAIN.fullmatch(domain) or domain in RESERVED_DOMAINS:
        raise top.refused(
            "domainID", f'"{domain}" cannot be used; take lower-case letters, digits and "-", not a reserved name'
        )
    return domain


def _domain_key(top: Block) -> SecretValue | None:
    """Only the envelope is looked at here: whether the key is good is found out by who makes the identity of it."""
    key = top.encoded("domainKeyData")
    if key is not None and not _PEM_KEY.match(key.reveal()):
        raise top.refused("domainKeyData", "is not the base64 of an RSA key in PEM; `coterie init` makes one")
    return key


def _join(top: Block, mode: str) -> Path | None:
    """A lite comes to its master in one of two ways."""
    join, endpoint = top.text("join", ""), top.text("masterEndpoint", "")
    if mode != "lite":
        if join:
            raise top.refused("join", f"is only for mode lite, not for {mode}")
        return None
    if join and endpoint:
        raise top.refused("join", "stands beside masterEndpoint, which is another way to join; take one of them out")
    if not join and not endpoint:
        raise top.refused(
            "masterEndpoint",
            "is missing: a lite node needs masterEndpoint and liteDeployToken, "
            "or join with the file that `coterie node add` made at the master",
        )
    return Path(join).expanduser().absolute() if join else None


def _runtime(top: Block) -> str:
    return top.choice("runtime", RUNTIMES[0], RUNTIMES)


def _own_address(top: Block) -> str:
    """Where pods of another cluster reach this node."""
    given = top.block("agent").text("address", "") or runk.own_address()
    if not given:
        raise top.block("agent").refused(
            "address", "is missing, and this machine has no address but its own; pods of another cluster need one"
        )
    for key in ("cpu", "memory"):
        if top.block("capacity").raw(key) is None:
            raise top.block("capacity").refused(
                key,
                "is missing: with runtime runk the node offers what you say of the backing cluster, such as 8 or 16Gi",
            )
    return given


def _agent(top: Block, network: NetworkConfig, runtime: str, *, joins: bool, own: str = "") -> AgentConfig:
    """`own`: the node's address, where none is given."""
    block, given, kept = (top.block(name) for name in ("agent", "capacity", "reservedResources"))
    name = block.text("nodeName", "" if joins else socket.gethostname().lower())
    if dns_subdomain_faults(name) and not (joins and not name):
        raise block.refused("nodeName", f'"{name}" is no valid name; take lower-case letters, digits, "-" and "."')
    default, unlimited, defaults = AgentConfig(name), CapacitySettings(), block.block("defaults")
    gpus = block.block("gpus")
    host_paths = block.texts("hostPaths", "absolute paths")
    if not all(path.startswith("/") for path in host_paths):
        raise block.refused("hostPaths", "must be a list of absolute paths")
    return AgentConfig(
        node_name=name,
        address=block.address("address", own or default.address),
        runk=runk.read(top.block("runk")) if runtime == runk.RUNK else None,
        port=block.number("port", default.port, *PORTS_OR_ANY),
        taint=block.flag("taint", default.taint),
        host_paths=host_paths,
        allow_privileged=block.flag("allowPrivileged", default.allow_privileged),
        pod_cidr=_range(block, "podCIDR", network.first_node, *_POD_RANGES),
        allow_host_network=block.flag("allowHostNetwork", default.allow_host_network),
        link_routes=block.flag("linkRoutes", default.link_routes),
        runtime=runtime,
        container_runtime=block.choice("containerRuntime", default.container_runtime, CONTAINER_RUNTIMES),
        lease_seconds=block.number("leaseSeconds", default.lease_seconds, 3),
        defaults=PodDefaults(
            pids=defaults.number("pids", default.defaults.pids, 0),
            open_files=defaults.number("openFiles", default.defaults.open_files, 0),
            memory=defaults.quantity("memory", ""),
            ephemeral_storage=defaults.quantity("ephemeralStorage", ""),
        ),
        pressure=_pressure(block.block("eviction"), default.pressure),
        capacity=CapacitySettings(
            cpu=given.quantity("cpu", ""),
            memory=given.quantity("memory", ""),
            storage=given.quantity("storage", ""),
            ephemeral_storage=given.quantity("ephemeralStorage", ""),
            pods=given.number("pods", unlimited.pods, 1, quoted=True),
            reserved_cpu=kept.quantity("cpu", unlimited.reserved_cpu),
            reserved_memory=kept.quantity("memory", unlimited.reserved_memory),
        ),
        devices=DeviceSettings(
            enabled=gpus.flag("enabled", default.devices.enabled), only=gpus.texts("only", "uuids or numbers in quotes")
        ),
        bandwidth_mbit=_mbit(given, "bandwidth", 0),
        reserved_bandwidth_mbit=_mbit(kept, "bandwidth", default.reserved_bandwidth_mbit),
    )


def _mbit(block: Block, key: str, default: int) -> int:
    """`10Gi`, `100Mbps`; a plain number is Mbit/s, as in Kuscia."""
    value = block.raw(key)
    if value is None:
        return default
    if not isinstance(value, str | int):
        raise block.refused(key, f"{value!r} is no bandwidth such as 100Mbps")
    try:
        bits = parse_bits(value)
    except BandwidthError as problem:
        raise block.refused(key, str(problem)) from problem
    if 0 < bits < MBIT:
        raise block.refused(key, f'"{value}" is less than 1 Mbit/s, the unit of kuscia.io/bandwidth')
    return mbit_down(bits)


def _pressure(block: Block, default: PressureSettings) -> PressureSettings:
    return PressureSettings(
        memory=_threshold(block, "memoryAvailable", default.memory),
        disk=_threshold(block, "diskAvailable", default.disk),
        inodes=_threshold(block, "inodesFree", default.inodes),
        pids=_threshold(block, "pidsAvailable", default.pids),
        soft_memory=_threshold(block, "softMemoryAvailable", default.soft_memory),
        soft_disk=_threshold(block, "softDiskAvailable", default.soft_disk),
        soft_grace_seconds=block.number("softGraceSeconds", int(default.soft_grace_seconds), 1),
        transition_seconds=block.number("transitionSeconds", int(default.transition_seconds), 0),
    )


def _threshold(block: Block, key: str, default: PressureThreshold) -> PressureThreshold:
    """`5%`, or a quantity; 0 is off."""
    value = block.raw(key)
    if isinstance(value, str) and value.endswith("%"):
        number = value.removesuffix("%").strip()
        if not number.replace(".", "", 1).isdigit() or float(number) >= 100:
            raise block.refused(key, f'"{value}" is no percentage such as 5%')
        return PressureThreshold(percent=float(number))
    text = block.quantity(key, "")
    return PressureThreshold(quantity.parse(text).value()) if text else default


def _network(block: Block) -> NetworkConfig:
    default = NetworkConfig()
    pods = _range(block, "podCIDR", default.pod_cidr, *_CLUSTER_RANGES)
    services = _range(block, "serviceCIDR", default.service_cidr, *_SERVICE_RANGES)
    if ipaddress.IPv4Network(pods).overlaps(ipaddress.IPv4Network(services)):
        raise block.refused("serviceCIDR", f"{services} and network.podCIDR {pods} overlap; choose another range")
    longest_prefix = _POD_RANGES[1]
    shortest_prefix = ipaddress.IPv4Network(pods).prefixlen
    size = block.number("nodeMaskSize", max(default.node_mask_size, shortest_prefix), shortest_prefix, longest_prefix)
    return NetworkConfig(pods, size, services)


def _range(block: Block, key: str, default: str, shortest: int, longest: int) -> str:
    text = block.text(key, default)
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError:
        network = None
    if network is None or not shortest <= network.prefixlen <= longest:
        raise block.refused(
            key, f'must be a range of IPv4 addresses such as {default} (/{shortest} to /{longest}), not "{text}"'
        )
    return str(network)


def _data_mesh(block: Block, section: gateway.GatewaySection) -> DataMeshConfig:
    default = DataMeshConfig()
    return DataMeshConfig(
        enabled=block.flag("enabled", section.gateway.enabled),
        address=block.address("host", section.dns.address),
        http_port=block.number("httpPort", default.http_port, *PORTS),
        grpc_port=block.number("grpcPort", default.grpc_port, *PORTS),
        proxies=_data_proxies(block),
    )


def _data_proxies(block: Block) -> tuple[DataProxy, ...]:
    value = block.raw("dataProxyList") or []
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, Mapping) for each in value):
        raise block.refused("dataProxyList", "must be a list of mappings with endpoint and dataSourceTypes")
    found = [_data_proxy(Block(each, f"{block.path('dataProxyList')}[{at}]")) for at, each in enumerate(value)]
    kinds = [kind for each in found for kind in each.types]
    if double := sorted({each for each in kinds if kinds.count(each) > 1}):
        raise block.refused("dataProxyList", f"names the type {double[0]} twice; one proxy opens it")
    return tuple(found)


def _data_proxy(block: Block) -> DataProxy:
    endpoint = block.text("endpoint")
    host, colon, port = endpoint.rpartition(":")
    if not colon or not host or not port.isdecimal() or "/" in endpoint or "@" in endpoint:
        raise block.refused("endpoint", f'must be host:port, not "{endpoint}"')
    types = block.texts("dataSourceTypes", "types of data sources")
    if not types:
        raise block.refused("dataSourceTypes", "is missing; it names the types that the proxy opens, such as odps")
    if "localfs" in types:
        raise block.refused("dataSourceTypes", "cannot have localfs: files of this machine are opened here")
    tls = block.block("clientTLSConfig")
    for key in ("caFile", "certFile", "keyFile"):
        if (named := tls.text(key, "")) and not Path(named).is_absolute():
            raise tls.refused(key, f'must be the whole path of a file, not "{named}"')
    made = DataProxy(
        endpoint,
        types,
        tls.text("caFile", ""),
        tls.text("certFile", ""),
        tls.text("keyFile", ""),
        secure=block.raw("clientTLSConfig") is not None,
        direct=block.choice("mode", "proxy", ("direct", "proxy")) == "direct",
    )
    if bool(made.cert_file) != bool(made.key_file):
        raise tls.refused("certFile", "and keyFile belong together; give both or neither")
    return made


def _transport(block: Block, section: gateway.GatewaySection) -> TransportConfig:
    """The ranges are Kuscia's, where it has any."""
    default = QueueLimits()

    def mebibytes(key: str, usual: int, least: int, most: int = _MOST_MIB) -> int:
        return block.number(key, usual >> 20, least, most) << 20

    limits = QueueLimits(
        body=mebibytes("maxMessageMiB", default.body, 1, _MOST_MESSAGE_MIB),
        session=mebibytes("sessionMiB", default.session, 1),
        total=mebibytes("totalMiB", default.total, 100),
        memory=mebibytes("memoryMiB", default.memory, 16),
        idle_seconds=block.number("sessionExpirySeconds", int(default.idle_seconds), 120, 1800),
        remembered_seconds=block.number("releasedSeconds", int(default.remembered_seconds), 600, 3600),
        clean_seconds=block.number("cleanSeconds", int(default.clean_seconds), 30, 600),
    )
    if limits.session > limits.total:
        raise block.refused("sessionMiB", f"is more than totalMiB, which is {limits.total >> 20}")
    if limits.body > limits.total:
        raise block.refused("maxMessageMiB", f"is more than totalMiB, which is {limits.total >> 20}")
    enabled = block.flag("enabled", section.gateway.enabled)
    if enabled and not section.gateway.enabled:
        raise block.refused("enabled", "needs the gateway, which gateway.enabled switches off")
    return TransportConfig(enabled, limits)


def _functions(block: Block) -> FunctionsConfig:
    default, gateways, spares = FunctionsConfig(), block.block("gateway"), block.block("spareActors")
    bus = block.text("bus", default.bus)
    if bus != default.bus:
        _check_kafka(block, bus)
    made = FunctionsConfig(
        enabled=block.flag("enabled", True),
        bus=bus,
        image=block.text("image", default.image),
        max_body_mb=block.number("maxBodyMB", default.max_body_mb, 1, _MAX_BODY_MB),
        min_gateways=gateways.number("minReplicas", default.min_gateways, 1, _MAX_GATEWAYS),
        max_gateways=gateways.number("maxReplicas", default.max_gateways, 1, _MAX_GATEWAYS),
        spare_actors=spares.number("size", default.spare_actors, 0, _MAX_SPARE_ACTORS),
        spare_idle_seconds=spares.number("idleSeconds", default.spare_idle_seconds, 1, _MAX_SPARE_SECONDS),
    )
    if made.min_gateways > made.max_gateways:
        raise gateways.refused("minReplicas", f"is more than maxReplicas, which is {made.max_gateways}")
    return made


def _check_kafka(block: Block, bus: str) -> None:
    scheme = bus.partition("://")[0]
    if scheme != SCHEME:
        raise block.refused("bus", f'must be embedded or such as kafka://broker-1:9092,broker-2:9092, not "{scheme}"')
    try:
        parse_kafka_url(bus)
    except BusError as problem:
        raise ConfigError(str(problem)) from None


def _console(block: Block, section: gateway.GatewaySection) -> ConsoleConfig:
    names = block.texts("names", "host names")
    for each in names:
        if _HOST_NAME.fullmatch(each) is None:
            raise block.refused("names", f'"{each}" is no host name; take such as console.example.org')
    default = ConsoleConfig()
    # Never on the network unless somebody says so here: an address for pods' questions is not one for browsers.
    inner = section.dns.address
    address = block.address("host", inner if ipaddress.ip_address(inner).is_loopback else default.address)
    if ipaddress.ip_address(address).is_unspecified and not names:
        raise block.refused("names", f"is missing; with host {address}, name what browsers call this machine")
    return ConsoleConfig(
        enabled=block.flag("enabled", True),
        address=address,
        port=block.number("port", default.port, *PORTS_OR_ANY),
        required=block.has("port"),
        read_only=block.flag("readOnly", False),
        exec=block.flag("exec", True),
        names=names,
    )


def _console_apart(node: NodeSettings) -> ConsoleConfig:
    """Its usual port gives way to what the node was told to open, such as a port for Ingresses; one that was chosen must
    be another one."""
    chosen, served, calls = node.console, node.gateway, node.kuscia_api
    outside = [served.external, *((served.ingress.http, served.ingress.https) if served.ingress else ())]
    taken = [
        *((each.host, each.port) for each in outside if each is not None and served.enabled),
        (node.api.host, node.api.port),
        (node.metrics.address, node.metrics.port),
        *((calls.address, port) for port in (calls.http_port, calls.grpc_port) if calls.enabled),
        *([(node.agent.address, node.agent.port)] if node.agent is not None else []),
    ]
    for host, port in taken:
        if not chosen.enabled or port != chosen.port or not port:
            continue
        if not chosen.required:
            return replace(chosen, port=0)
        if host == chosen.address or {"0.0.0.0", "::"} & {host, chosen.address}:
            raise ConfigError(f"console.port: {host}:{port} is taken by another port of this node; take another one")
    return chosen


def _metrics(block: Block, section: gateway.GatewaySection) -> MetricsConfig:
    allow = block.texts("allow", "addresses and networks")
    for each in allow:
        try:
            ipaddress.ip_network(each)
        except ValueError:
            raise block.refused(
                "allow", f'"{each}" is no address or network; take such as 10.0.0.5 or 10.0.0.0/24'
            ) from None
    default = MetricsConfig()
    return MetricsConfig(
        enabled=block.flag("enabled", True),
        address=block.address("host", section.dns.address),
        port=block.number("port", default.port, *PORTS_OR_ANY),
        required=block.has("port"),
        allow=allow,
        token_file=block.text("tokenFile", ""),
    )


def _traces(block: Block) -> TracesConfig:
    inner = block.block("otlp")
    otlp = _trace_export(inner) if inner.text("endpoint", "") else None
    for key in ("headersFile", "caFile", "certFile", "keyFile", "timeoutSeconds"):
        if otlp is None and inner.raw(key) is not None:
            raise inner.refused(key, "means nothing without traces.otlp.endpoint")
    enabled = block.flag("enabled", otlp is not None)
    return TracesConfig(enabled=enabled, file=block.flag("file", True), otlp=otlp)


def _trace_export(block: Block) -> TraceExportConfig:
    default, endpoint = TraceExportConfig(""), block.text("endpoint")
    found = urlsplit(endpoint)
    if found.scheme not in ("http", "https") or not found.hostname or found.username or found.query or found.fragment:
        # The text may hold a password or a token.
        shown = f', not "{endpoint}"' if not found.username and not found.query else ", without user and query"
        raise block.refused("endpoint", f"must be such as https://collector:4318/v1/traces{shown}")
    made = TraceExportConfig(
        endpoint=endpoint if found.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces",
        headers_file=block.text("headersFile", ""),
        ca_file=block.text("caFile", ""),
        certificate_file=block.text("certFile", ""),
        key_file=block.text("keyFile", ""),
        timeout_seconds=block.number("timeoutSeconds", default.timeout_seconds, 1, 60),
    )
    if bool(made.certificate_file) != bool(made.key_file):
        raise block.refused("certFile", "and keyFile belong together; give both or neither")
    secret = made.headers_file or made.certificate_file or made.ca_file
    if found.scheme == "http" and secret and not _is_loopback(found.hostname):
        raise block.refused("endpoint", "must be https, since headers or certificates are given for it")
    return made


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _kuscia_api(top: Block, section: gateway.GatewaySection) -> KusciaApiConfig:
    default, block, conf = KusciaApiConfig(), top.block("kusciaAPI"), top.block("confManager")
    made = KusciaApiConfig(
        enabled=block.flag("enabled", section.gateway.enabled),
        address=block.address("host", section.dns.address),
        http_port=block.number("HTTPPort", default.http_port, *PORTS),
        grpc_port=block.number("GRPCPort", default.grpc_port, *PORTS),
        protocol=block.choice("protocol", section.gateway.protocol, ("MTLS", "TLS", "NOTLS")),
        names=top.texts("kusciaAPISans", "host names and addresses"),
        conf_address=conf.address("host", section.dns.address),
        conf_http_port=conf.number("HTTPPort", default.conf_http_port, *PORTS),
        conf_grpc_port=conf.number("GRPCPort", default.conf_grpc_port, *PORTS),
        timeouts=Timeouts(read=block.number("readTimeout", 0, 0), idle=block.number("idleTimeout", 0, 0)),
        conf_timeouts=Timeouts(*(conf.number(f"{each}Timeout", 0, 0) for each in ("read", "write", "idle"))),
    )
    taken = {made.http_port: "kusciaAPI.HTTPPort"}
    for key, port in (
        ("kusciaAPI.GRPCPort", made.grpc_port),
        ("confManager.HTTPPort", made.conf_http_port),
        ("confManager.GRPCPort", made.conf_grpc_port),
    ):
        if port in taken:
            raise ConfigError(f"{key}: {port} is {taken[port]} too; take another port")
        taken[port] = key
    return made


def _controllers(block: Block) -> ControllerSettings:
    default = _PROFILES[block.choice("profile", "standard", tuple(_PROFILES))]
    return ControllerSettings(
        node_grace_seconds=block.number("nodeGraceSeconds", default.node_grace_seconds, 3),
        pod_eviction_seconds=block.number("podEvictionSeconds", default.pod_eviction_seconds, 0),
        autoscaler_seconds=block.number("autoscalerSeconds", default.autoscaler_seconds, 1),
        stall_seconds=block.number("stallSeconds", default.stall_seconds, 0),
        health_port=block.number("healthPort", default.health_port, *PORTS_OR_ANY),
        local_slurm_user=block.text("localSlurmUser", default.local_slurm_user),
        port_range=_port_range(block, default.port_range),
    )


def _port_range(block: Block, default: tuple[int, int]) -> tuple[int, int]:
    value = block.raw("portRange")
    if value is None:
        return default
    lowest, highest = PORTS
    if (
        not isinstance(value, (list, tuple))
        or [type(each) for each in value] != [int, int]
        or not lowest <= value[0] <= value[1] <= highest
    ):
        raise block.refused("portRange", f"must be the first and the last port, as in [20000, 20999], not {value!r}")
    return value[0], value[1]


def _store(top: Block) -> StoreAddress | None:
    """Kuscia's key and ours mean the same."""
    given = [key for key in ("store", "datastoreEndpoint") if not top.is_empty_text(key) and top.text(key, "")]
    if not given:
        return None
    if len(given) > 1:
        raise top.refused("store", "stands beside datastoreEndpoint; leave one of them out")
    try:
        return parse_store_address(top.text(given[0], ""))
    except StoreAddressError as problem:
        raise top.refused(given[0], str(problem)) from None


def _api(block: Block) -> ApiSettings:
    default = ApiSettings()
    return ApiSettings(
        host=block.address("host", default.host),
        port=block.number("port", default.port, *PORTS_OR_ANY),
        names=block.texts("names", "host names and addresses"),
        event_ttl_seconds=block.number("eventTTLSeconds", default.event_ttl_seconds, 60),
        audit_log="" if block.is_empty_text("auditLog") else block.text("auditLog", default.audit_log),
        audit_policy=block.text("auditPolicy", default.audit_policy),
        kubeconfig=block.text("kubeconfig", default.kubeconfig),
    )
