"""Every key of kuscia.yaml and of ours: used, said to be without effect, or refused with its path. Nothing is silent."""

from __future__ import annotations

import ast
import base64
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import pki
from coterie.kube.agent.settings import PressureThreshold
from coterie.kuscia.gateway.addresses import IngressListeners, Protocol, SocketAddress
from coterie.kuscia.gateway.settings import MasterEndpoint
from coterie.kuscia.kusciaapi.settings import Timeouts
from coterie.node import config
from coterie.node.config import keys, ports
from coterie.node.config.gateway import listen_addresses

MASTER = {"mode": "master", "domainID": "alice"}
AUTONOMY = {"mode": "autonomy", "domainID": "alice"}
RUNK = {
    **AUTONOMY,
    "runtime": "runk",
    "agent": {"address": "10.0.0.2"},
    "capacity": {"cpu": 4, "memory": "8Gi"},
}
LITE = {"mode": "lite", "domainID": "alice", "masterEndpoint": "https://10.0.0.1:1080"}
KEY = pki.key_pem(rsa.generate_private_key(public_exponent=65537, key_size=2048), pkcs1=True)
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "configuration.md"


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def parse(document: dict[str, Any], lowest_port: int = 0) -> config.NodeSettings:
    return config.parse(document, Path("/nowhere"), lowest_port=lowest_port)


def nested(path: str, value: Any) -> dict[str, Any]:
    """`a.b[].c` and a value as the document that has it there."""
    for step in reversed(re.findall(r"[^.\[\]]+|\[\]", path)):
        value = [value] if step == "[]" else {step: value}
    assert isinstance(value, dict)
    return value


def at(settings: object, path: str) -> Any:
    for step in path.split("."):
        settings = getattr(settings, step)
    return settings


# Used.

USED = [
    ("domainID", "bob", "domain", "bob", AUTONOMY),
    ("logLevel", "debug", "log_level", "DEBUG", AUTONOMY),
    ("logFormat", "json", "log_json", True, AUTONOMY),
    ("protocol", "notls", "gateway.protocol", Protocol.NOTLS, AUTONOMY),
    ("protocol", "Tls", "gateway.protocol", Protocol.TLS, AUTONOMY),
    ("protocol", "", "gateway.protocol", Protocol.MTLS, AUTONOMY),
    ("protocol", None, "gateway.protocol", Protocol.MTLS, AUTONOMY),
    ("masterEndpoint", "http://m/p", "gateway.master", MasterEndpoint("m", 80, False, "/p"), LITE),
    ("enableWorkloadApprove", True, "workload_approve", True, AUTONOMY),
    ("agent.allowPrivileged", True, "agent.allow_privileged", True, AUTONOMY),
    ("agent.allowHostNetwork", True, "agent.allow_host_network", True, AUTONOMY),
    ("agent.gpus.enabled", False, "agent.devices.enabled", False, AUTONOMY),
    ("agent.gpus.only[]", "GPU-1", "agent.devices.only", ("GPU-1",), AUTONOMY),
    ("agent.linkRoutes", False, "agent.link_routes", False, AUTONOMY),
    ("agent.containerRuntime", "crun", "agent.container_runtime", "crun", AUTONOMY),
    ("agent.podCIDR", "10.200.0.0/16", "agent.pod_cidr", "10.200.0.0/16", AUTONOMY),
    ("agent.nodeName", "n-1", "agent.node_name", "n-1", LITE),
    ("agent.address", "10.0.0.2", "agent.address", "10.0.0.2", AUTONOMY),
    ("agent.port", 0, "agent.port", 0, AUTONOMY),
    ("agent.taint", True, "agent.taint", True, AUTONOMY),
    ("agent.hostPaths[]", "/data", "agent.host_paths", ("/data",), AUTONOMY),
    ("agent.eviction.memoryAvailable", "200Mi", "agent.pressure.memory", PressureThreshold(200 << 20), AUTONOMY),
    ("agent.eviction.diskAvailable", "7.5%", "agent.pressure.disk", PressureThreshold(percent=7.5), AUTONOMY),
    ("agent.eviction.inodesFree", "0", "agent.pressure.inodes", PressureThreshold(), AUTONOMY),
    ("agent.eviction.pidsAvailable", 1000, "agent.pressure.pids", PressureThreshold(1000), AUTONOMY),
    ("agent.eviction.softMemoryAvailable", "1Gi", "agent.pressure.soft_memory", PressureThreshold(1 << 30), AUTONOMY),
    ("agent.eviction.softDiskAvailable", "10%", "agent.pressure.soft_disk", PressureThreshold(percent=10), AUTONOMY),
    ("agent.eviction.softGraceSeconds", 30, "agent.pressure.soft_grace_seconds", 30, AUTONOMY),
    ("agent.eviction.transitionSeconds", 0, "agent.pressure.transition_seconds", 0, AUTONOMY),
    ("agent.defaults.pids", 100, "agent.defaults.pids", 100, AUTONOMY),
    ("agent.defaults.openFiles", 1024, "agent.defaults.open_files", 1024, AUTONOMY),
    ("agent.defaults.memory", "2Gi", "agent.defaults.memory", "2Gi", AUTONOMY),
    ("agent.defaults.ephemeralStorage", "5Gi", "agent.defaults.ephemeral_storage", "5Gi", AUTONOMY),
    ("agent.leaseSeconds", 5, "agent.lease_seconds", 5, AUTONOMY),
    ("logrotate.maxFiles", 7, "logrotate.max_files", 7, AUTONOMY),
    ("logrotate.maxFileSizeMB", 20, "logrotate.max_file_mb", 20, AUTONOMY),
    ("logrotate.maxAgeDays", 3, "logrotate.max_age_days", 3, AUTONOMY),
    ("logrotate.maxTotalSizeMB", 0, "logrotate.max_total_mb", 0, AUTONOMY),
    ("capacity.cpu", 4, "agent.capacity.cpu", "4", AUTONOMY),
    ("capacity.memory", "8Gi", "agent.capacity.memory", "8Gi", AUTONOMY),
    ("capacity.storage", "100Gi", "agent.capacity.storage", "100Gi", AUTONOMY),
    ("capacity.ephemeralStorage", "1Gi", "agent.capacity.ephemeral_storage", "1Gi", AUTONOMY),
    ("capacity.bandwidth", "100", "agent.bandwidth_mbit", 100, AUTONOMY),
    ("capacity.bandwidth", "10Gi", "agent.bandwidth_mbit", 10737, AUTONOMY),
    ("capacity.bandwidth", "1Gbps", "agent.bandwidth_mbit", 1000, AUTONOMY),
    ("reservedResources.bandwidth", "20Mbps", "agent.reserved_bandwidth_mbit", 20, AUTONOMY),
    ("capacity.pods", "50", "agent.capacity.pods", 50, AUTONOMY),
    ("capacity.pods", None, "agent.capacity.pods", 500, AUTONOMY),
    ("reservedResources.cpu", "", "agent.capacity.reserved_cpu", "500m", AUTONOMY),
    ("reservedResources.cpu", "1", "agent.capacity.reserved_cpu", "1", AUTONOMY),
    ("reservedResources.memory", "1Gi", "agent.capacity.reserved_memory", "1Gi", AUTONOMY),
    ("reservedResources.bandwidth", 5, "agent.reserved_bandwidth_mbit", 5, AUTONOMY),
    ("garbageCollection.kusciaJobGC.durationHours", 24, "job_gc_hours", 24, MASTER),
    ("garbageCollection.kusciaDomainDataGC.enable", True, "data_gc_hours", 720, MASTER),
    ("garbageCollection.kusciaDomainDataGC.durationHours", 24, "data_gc_hours", None, MASTER),
    ("apiServer.host", "10.0.0.1", "api.host", "10.0.0.1", MASTER),
    ("apiServer.port", 0, "api.port", 0, MASTER),
    ("apiServer.names[]", "a.example", "api.names", ("a.example",), MASTER),
    ("apiServer.eventTTLSeconds", 60, "api.event_ttl_seconds", 60, MASTER),
    ("apiServer.auditLog", "a.jsonl", "api.audit_log", "a.jsonl", MASTER),
    ("apiServer.auditLog", "", "api.audit_log", "", MASTER),
    ("store", "etcd://h/p", "store.label", "etcd://h/p", MASTER),
    ("datastoreEndpoint", "postgres://u@h/d", "store.label", "postgresql://h/d", MASTER),
    ("datastoreEndpoint", "mysql://u:p@ss@tcp(h:3306)/d?parseTime=true", "store.label", "mysql://h:3306/d", MASTER),
    ("apiServer.auditPolicy", "policy.yaml", "api.audit_policy", "policy.yaml", MASTER),
    ("apiServer.kubeconfig", "in-cluster", "api.kubeconfig", "in-cluster", MASTER),
    ("controllers.profile", "standard", "controllers.pod_eviction_seconds", 5, MASTER),
    ("controllers.profile", "quick", "controllers.node_grace_seconds", 6, MASTER),
    ("controllers.nodeGraceSeconds", 5, "controllers.node_grace_seconds", 5, MASTER),
    ("controllers.autoscalerSeconds", 5, "controllers.autoscaler_seconds", 5, MASTER),
    ("controllers.stallSeconds", 60, "controllers.stall_seconds", 60, MASTER),
    ("controllers.healthPort", 8190, "controllers.health_port", 8190, MASTER),
    ("controllers.localSlurmUser", "slurm-user", "controllers.local_slurm_user", "slurm-user", MASTER),
    ("controllers.podEvictionSeconds", 0, "controllers.pod_eviction_seconds", 0, MASTER),
    ("controllers.portRange", [20000, 20999], "controllers.port_range", (20000, 20999), MASTER),
    ("network.podCIDR", "10.200.0.0/16", "network.pod_cidr", "10.200.0.0/16", MASTER),
    ("network.nodeMaskSize", 24, "network.node_mask_size", 24, MASTER),
    ("network.serviceCIDR", "10.201.0.0/16", "network.service_cidr", "10.201.0.0/16", MASTER),
    ("gateway.internal.host", "127.0.0.9", "gateway.internal", SocketAddress("127.0.0.9", 80), AUTONOMY),
    ("gateway.internal.port", 8080, "gateway.internal", SocketAddress("127.0.0.1", 8080), LITE),
    ("gateway.external.host", "10.0.0.9", "gateway.external", SocketAddress("10.0.0.9", 1080), MASTER),
    ("gateway.external.port", 443, "gateway.external", SocketAddress("0.0.0.0", 443), MASTER),
    ("gateway.external", "none", "gateway.external", None, MASTER),
    ("gateway.enabled", False, "gateway.enabled", False, MASTER),
    ("gateway.ingress.httpPort", 8080, "gateway.ingress", IngressListeners(SocketAddress("0.0.0.0", 8080)), AUTONOMY),
    (
        "gateway.ingress.httpsPort", 8443, "gateway.ingress", IngressListeners(https=SocketAddress("0.0.0.0", 8443)),
        AUTONOMY,
    ),
    ("gateway.name", "gw-1", "gateway.instance", "gw-1", MASTER),
    ("gateway.workers", 4, "gateway.workers", 4, MASTER),
    ("gateway.diagnose", False, "gateway.diagnose", False, MASTER),
    ("transport.enabled", False, "transport.enabled", False, AUTONOMY),
    ("transport.maxMessageMiB", 8, "transport.limits.body", 8 << 20, AUTONOMY),
    ("transport.sessionMiB", 8, "transport.limits.session", 8 << 20, LITE),
    ("transport.totalMiB", 200, "transport.limits.total", 200 << 20, AUTONOMY),
    ("transport.memoryMiB", 16, "transport.limits.memory", 16 << 20, AUTONOMY),
    ("transport.sessionExpirySeconds", 120, "transport.limits.idle_seconds", 120, AUTONOMY),
    ("transport.releasedSeconds", 600, "transport.limits.remembered_seconds", 600, AUTONOMY),
    ("transport.cleanSeconds", 30, "transport.limits.clean_seconds", 30, AUTONOMY),
    ("dataMesh.enabled", False, "data_mesh.enabled", False, AUTONOMY),
    ("dataMesh.host", "127.0.0.9", "data_mesh.address", "127.0.0.9", AUTONOMY),
    ("dataMesh.httpPort", 9070, "data_mesh.http_port", 9070, LITE),
    ("dataMesh.grpcPort", 9071, "data_mesh.grpc_port", 9071, LITE),
    ("kusciaAPI.enabled", False, "kuscia_api.enabled", False, MASTER),
    ("kusciaAPI.host", "0.0.0.0", "kuscia_api.address", "0.0.0.0", MASTER),
    ("kusciaAPI.HTTPPort", 9082, "kuscia_api.http_port", 9082, LITE),
    ("kusciaAPI.GRPCPort", 9083, "kuscia_api.grpc_port", 9083, LITE),
    ("kusciaAPI.protocol", "tls", "kuscia_api.protocol", "TLS", MASTER),
    ("kusciaAPISans[]", "api.example", "kuscia_api.names", ("api.example",), MASTER),
    ("kusciaAPI.readTimeout", 9, "kuscia_api.timeouts", Timeouts(read=9), LITE),
    ("kusciaAPI.idleTimeout", 9, "kuscia_api.timeouts", Timeouts(idle=9), LITE),
    ("confManager.readTimeout", 9, "kuscia_api.conf_timeouts", Timeouts(read=9), LITE),
    ("confManager.writeTimeout", 9, "kuscia_api.conf_timeouts", Timeouts(write=9), LITE),
    ("confManager.idleTimeout", 9, "kuscia_api.conf_timeouts", Timeouts(idle=9), LITE),
    ("confManager.host", "127.0.0.9", "kuscia_api.conf_address", "127.0.0.9", LITE),
    ("confManager.HTTPPort", 9060, "kuscia_api.conf_http_port", 9060, LITE),
    ("confManager.GRPCPort", 9061, "kuscia_api.conf_grpc_port", 9061, AUTONOMY),
    ("dns.enabled", False, "dns.enabled", False, MASTER),
    ("dns.host", "127.0.0.9", "dns.address", "127.0.0.9", MASTER),
    ("dns.port", 5353, "dns.port", 5353, MASTER),
    ("dns.clusterDomain", "cluster.example", "dns.cluster_domain", "cluster.example", MASTER),
    ("dns.upstream[]", "192.0.2.1:53", "dns.upstream", ("192.0.2.1:53",), MASTER),
    ("metrics.enabled", False, "metrics.enabled", False, MASTER),
    ("metrics.host", "127.0.0.9", "metrics.address", "127.0.0.9", LITE),
    ("metrics.port", 9191, "metrics.port", 9191, AUTONOMY),
    ("metrics.allow[]", "10.0.0.0/24", "metrics.allow", ("10.0.0.0/24",), AUTONOMY),
    ("metrics.tokenFile", "/etc/token", "metrics.token_file", "/etc/token", AUTONOMY),
    ("console.enabled", False, "console.enabled", False, MASTER),
    ("console.host", "127.0.0.9", "console.address", "127.0.0.9", AUTONOMY),
    ("console.port", 9188, "console.port", 9188, AUTONOMY),
    ("console.readOnly", True, "console.read_only", True, AUTONOMY),
    ("console.exec", False, "console.exec", False, AUTONOMY),
    ("console.names[]", "console.example", "console.names", ("console.example",), AUTONOMY),
    ("functions.enabled", False, "functions.enabled", False, AUTONOMY),
    ("functions.bus", "kafka://a:9092,b.example:9093", "functions.bus", "kafka://a:9092,b.example:9093", AUTONOMY),
    ("functions.image", "actors:1", "functions.image", "actors:1", AUTONOMY),
    ("functions.maxBodyMB", 11, "functions.max_body_mb", 11, AUTONOMY),
    ("functions.gateway.minReplicas", 2, "functions.min_gateways", 2, AUTONOMY),
    ("functions.gateway.maxReplicas", 3, "functions.max_gateways", 3, AUTONOMY),
    ("functions.spareActors.size", 0, "functions.spare_actors", 0, AUTONOMY),
    ("functions.spareActors.idleSeconds", 30, "functions.spare_idle_seconds", 30, AUTONOMY),
    ("traces.enabled", True, "traces.enabled", True, MASTER),
    ("traces.file", False, "traces.file", False, LITE),
    ("traces.otlp.endpoint", "https://c:4318", "traces.otlp.endpoint", "https://c:4318/v1/traces", AUTONOMY),
    ("runk.namespace", "engines", "runk.namespace", "engines", RUNK),
    ("runk.dnsServers[]", "10.0.0.9", "runk.dns_servers", ("10.0.0.9",), RUNK),
    ("runk.kubeconfigFile", "/etc/kube", "runk.kubeconfig_file", "/etc/kube", RUNK),
    ("runk.enableLogging", False, "runk.keep_logs", False, RUNK),
    ("runk.logDirectory", "/logs", "runk.log_directory", "/logs", RUNK),
    ("runk.logMaxFiles", 3, "runk.log_max_files", 3, RUNK),
    ("runk.logMaxSize", "1Mi", "runk.log_max_bytes", 1 << 20, RUNK),
    ("runk.podCIDRs[]", "10.244.0.0/16", "runk.pod_cidr", ("10.244.0.0/16",), RUNK),
    ("runk.runtimeClassName", "kata", "runk.runtime_class", "kata", RUNK),
    ("runk.imagePullSecrets[]", "registry", "runk.pull_secrets", ("registry",), RUNK),
    ("runk.serviceAccountName", "engines", "runk.service_account", "engines", RUNK),
    ("runk.runAsUser", 1000, "runk.run_as_user", 1000, RUNK),
    ("runk.allowRoot", True, "runk.allow_root", True, RUNK),
    ("runk.networkPolicies", False, "runk.network_policies", False, RUNK),
    ("runtime", "runp", "agent.port", 10250, AUTONOMY),
]  # fmt: skip
TESTED_ELSEWHERE = {
    *(path for path in keys.USED if path.startswith("image.")),
    # tests/node/test_node_traces.py
    *(path for path in keys.USED if path.startswith("traces.otlp.") and path != "traces.otlp.endpoint"),
    # tests/node/test_node_runk.py
    *(path for path in keys.USED if path.startswith("runk.") and path.endswith(".*")),
    # tests/node/test_node_config.py
    *(path for path in keys.USED if path.startswith("dataMesh.dataProxyList")),
    "gateway.ingress.host",
    "mode",
    "domainKeyData",
    "liteDeployToken",
    "root",
    "join",
}


@pytest.mark.parametrize(
    ("path", "given", "setting", "expected", "base"),
    [pytest.param(*row, id=f"{row[0]}={row[1]!r}") for row in USED],
)
def test_used(path: str, given: Any, setting: str, expected: Any, base: dict[str, Any]) -> None:
    settings = parse({**base, **nested(path, given)})
    assert at(settings, setting) == expected
    assert settings.notices == ()


def test_ingresses_are_served_only_where_a_port_is_named() -> None:
    assert parse(AUTONOMY).gateway.ingress is None
    both = {"host": "127.0.0.9", "httpPort": 8080, "httpsPort": 8443}
    where = [SocketAddress("127.0.0.9", port) for port in (8080, 8443)]
    assert parse({**AUTONOMY, "gateway": {"ingress": both}}).gateway.ingress == IngressListeners(*where)


def test_a_master_has_no_port_for_pods() -> None:
    assert parse(MASTER).gateway.internal is None
    settings = parse({**MASTER, "gateway": {"internal": {"port": 81}}})
    assert settings.gateway.internal is None
    assert [(each.key, each.advice) for each in settings.notices] == [("gateway.internal", "leave it out")]


def test_the_table_above_is_complete() -> None:
    external = {path for path in keys.USED if path.startswith("domainRoute.")}
    assert {row[0] for row in USED} - {"gateway.external"} | TESTED_ELSEWHERE | external == set(keys.USED)


def test_secrets_are_taken_and_not_shown(tmp_path: Path) -> None:
    document = {
        **LITE, "liteDeployToken": " abcdefgh ", "domainKeyData": "\n".join(re.findall(".{1,76}", encoded(KEY))),
        "domainRoute": {"externalTLS": {"certData": encoded(b"C3RT"), "keyData": encoded(b"S3CR3T"), "caData": encoded(b"C4")}},
    }  # fmt: skip
    settings = parse(document)
    assert settings.domain_key is not None and settings.domain_key.reveal().encode() == KEY
    assert settings.gateway.deploy_token is not None and settings.gateway.deploy_token.reveal() == "abcdefgh"
    names = {file.path.name: file.content.reveal() for file in settings.inline_files}
    assert names == {"external-tls.cert.crt": "C3RT", "external-tls.key": "S3CR3T", "external-tls.ca.crt": "C4"}
    assert all(file.path.parent == settings.paths.certs for file in settings.inline_files)
    shown = repr(settings)
    for secret in ("abcdefgh", "S3CR3T", "PRIVATE", KEY.decode()[60:90], encoded(KEY)[40:80]):
        assert secret not in shown


def test_the_organisations_own_certificate_by_file() -> None:
    block = {"enableTLS": True, "certFile": "/etc/a.crt", "keyFile": "a.key"}
    settings = parse({**MASTER, "domainRoute": {"externalTLS": block}})
    tls = settings.gateway.external_tls
    assert tls is not None
    assert (tls.pair.certificate, tls.pair.key) == (Path("/etc/a.crt"), settings.paths.certs / "a.key")
    assert (tls.authority, settings.inline_files) == (None, ())
    assert parse({**MASTER, "domainRoute": {"externalTLS": {"enableTLS": True}}}).gateway.external_tls is None


# Without effect.


@pytest.mark.parametrize("path", keys.WITHOUT_EFFECT)
def test_without_effect_and_said_so(path: str) -> None:
    place = path.removesuffix(".*") if path.endswith("].*") else path.replace("*", "anything")
    settings = parse({**AUTONOMY, **nested(place, {"x": 1} if path.endswith("*") else "x")})
    named = re.split(r"\[\]|\.\*", path)[0]
    assert [(each.sentence, each.key) for each in settings.notices] == [(keys.UNUSED_SENTENCE, named)]
    assert settings.notices[0].advice == keys.WITHOUT_EFFECT[path] != ""
    assert parse({**AUTONOMY, **nested(path.replace("*", "x"), None)}).notices == ()


def test_keys_of_other_modes_are_said_to_mean_nothing() -> None:
    document = {**MASTER, "liteDeployToken": "t", "runtime": "runc", "capacity": {"cpu": 1, "memory": None}}
    settings = parse(document)
    assert {each.key for each in settings.notices} == {"liteDeployToken", "runtime", "capacity"}
    assert {each.value for each in settings.notices} == {"mode master"}
    assert settings.gateway.deploy_token is None


def test_a_node_that_joins_is_told_what_is_not_its_business() -> None:
    document = {
        "mode": "lite",
        "domainID": "alice",
        "join": "a.join",
        "kusciaAPI": {"HTTPPort": 9082},
        "protocol": "TLS",
    }
    notices = parse(document).notices
    assert {(each.key, each.value) for each in notices} == {
        (key, "mode lite with join") for key in ("kusciaAPI", "protocol")
    }


def fields_of(kind: type) -> Iterator[tuple[str, str]]:
    """(class, field) of everything that a configuration comes to."""
    hints = get_type_hints(kind)
    for each in dataclasses.fields(kind):
        yield kind.__name__, each.name
        for inner in (hints[each.name], *get_args(hints[each.name])):
            if isinstance(inner, type) and dataclasses.is_dataclass(inner):
                yield from fields_of(inner)


def test_every_setting_is_read_by_something_outside_of_the_configuration() -> None:
    """What is parsed and then read by nobody is a promise that nobody keeps."""
    source = Path(config.__file__).parents[2]
    here = Path(config.__file__).parent
    read = {
        node.attr
        for file in source.rglob("*.py")
        if here not in file.parents
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert [f"{kind}.{name}" for kind, name in fields_of(config.NodeSettings) if name not in read] == []


def test_every_accepted_key_is_used_or_answered() -> None:
    """Each key alone: it changes what the configuration comes to, or there is a notice, or it is refused."""
    values = {row[0]: (row[1], row[4]) for row in USED if row[1] not in ("", None)}
    silent = []
    for path in keys.USED:
        if path in TESTED_ELSEWHERE or path.startswith("domainRoute.") or path in ("domainID", "runtime"):
            continue
        given, base = values[path]
        if path == "garbageCollection.kusciaDomainDataGC.durationHours":
            base = {**base, "garbageCollection": {"kusciaDomainDataGC": {"enable": True}}}
            document = {**base, "garbageCollection": {"kusciaDomainDataGC": {"enable": True, "durationHours": given}}}
        else:
            document = {**base, **nested(path, given)}
        if parse(document) == parse(base):
            silent.append(path)
    assert silent == []


def test_kuscias_own_template_for_a_lite() -> None:
    """The shape of the file that Kuscia's deployment makes: most keys stand there without a value."""
    text = f"""
mode: Lite
domainID: alice
domainKeyData: {encoded(KEY)}
logLevel: INFO
liteDeployToken: token
masterEndpoint: https://10.0.0.1:1080
protocol: NOTLS
runtime: runp
runk:
  namespace: ""
  dnsServers:
  kubeconfigFile:
capacity:
  cpu: #4
  memory: #8Gi
  pods: #500
  storage: #100Gi
reservedResources:
  cpu: 500m
  memory: 500Mi
image:
  pullPolicy:
  defaultRegistry: ""
  registries:
    - name: ""
      endpoint: ""
      username: ""
      password: ""
"""
    settings = parse(yaml.safe_load(text))
    assert (settings.mode, settings.gateway.protocol, settings.notices) == ("lite", Protocol.NOTLS, ())
    assert settings.gateway.master == MasterEndpoint("10.0.0.1", 1080, True)
    assert not settings.gateway.control_plane


def test_registries() -> None:
    image = {
        "pullPolicy": "Remote",
        "defaultRegistry": "own",
        "httpProxy": "http://proxy.example:3128",
        "registries": [
            {
                "name": "own",
                "endpoint": "registry.example/team",
                "username": "me",
                "password": "secret",
                "mirrors": ["m.example"],
            },
            {"name": "", "endpoint": ""},
            {"endpoint": "http://10.0.0.1:5000", "caFile": "/ca.pem"},
        ],
    }
    found = parse({**LITE, "image": image}).images
    own, plain = found.registries
    assert found.remote and found.default == own and found.proxy == "proxy.example:3128"
    assert (own.endpoint.host, own.endpoint.prefix, own.mirrors[0].host) == ("registry.example", "team", "m.example")
    assert (plain.endpoint.scheme, plain.endpoint.ca_file) == ("http", "/ca.pem")
    assert own.endpoint.password.reveal() == "secret" and "secret" not in repr(found)
    assert not parse(LITE).images.remote


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ({"pullPolicy": "sometimes"}, "image.pullPolicy: must be one of"),
        ({"registries": [{"endpoint": "a b"}]}, r"image.registries\[0\].endpoint: .*is not a registry"),
        (
            {"registries": [{"endpoint": "a", "mirrors": ["ftp://x"]}]},
            r"image.registries\[0\].mirrors: .*is not a registry",
        ),
        ({"defaultRegistry": "?"}, "image.defaultRegistry: .*is not a registry"),
        ({"httpProxy": "socks://x"}, "image.httpProxy: .*is not a proxy"),
        ({"signatures": [{"keys": ["k"]}]}, r"image.signatures\[0\].images: is missing"),
        ({"signatures": [{"images": ["*"]}]}, r"image.signatures\[0\].keys: is missing"),
        ({"sharedStore": "images"}, "image.sharedStore: .*is not an absolute path"),
        ({"sharedStore": "/var/../etc"}, "image.sharedStore: .*is not an absolute path"),
        ({"gc": {"maximumAge": "soon"}}, "image.gc.maximumAge: .*is not a duration"),
        ({"gc": {"highThresholdPercent": 70, "lowThresholdPercent": 80}}, "lowThresholdPercent: must not be above"),
    ],
)
def test_registries_that_are_none(image: dict[str, Any], words: str) -> None:
    with pytest.raises(config.ConfigError, match=words):
        parse({**LITE, "image": image})


# Refused.

TLS = "domainRoute.externalTLS"
REFUSED = [
    ("no-mode", {"domainID": "alice"}, "mode: is missing"),
    ("mode", {**MASTER, "mode": "slave"}, 'mode: must be one of master, lite, autonomy, not "slave"'),
    ("unknown", {**MASTER, "domainId": "x"}, "domainId: is not a known key"),
    ("unknown-inside", {**MASTER, "agent": {"provider": {}, "nodename": "x"}}, "agent.nodename: is not a known key"),
    ("unknown-in-list", {**MASTER, "image": {"registries": [{}, {"user": "x"}]}}, "image.registries[1].user: is not a known key"),
    ("unknown-deep", {**MASTER, "domainRoute": {"externalTLS": {"cert": "x"}}}, f"{TLS}.cert: is not a known key"),
    ("unknown-gc", {**MASTER, "garbageCollection": {"kusciaJobGC": {"hours": 1}}}, "garbageCollection.kusciaJobGC.hours: is not a known key"),
    ("unknown-door", {**MASTER, "gateway": {"internal": {"address": "x"}}}, "gateway.internal.address: is not a known key"),
    ("no-mapping", {**MASTER, "gateway": []}, "gateway: must be a mapping"),
    ("no-list", {**MASTER, "apiServer": {"names": "x"}}, "apiServer.names: must be a list"),
    ("reserved", {**MASTER, "domainID": "kube-system"}, 'domainID: "kube-system" cannot be used'),
    ("dotted", {**MASTER, "domainID": "a.b"}, 'domainID: "a.b" cannot be used'),
    ("protocol", {**MASTER, "protocol": "SSL"}, 'protocol: must be one of NOTLS, TLS, MTLS, not "SSL"'),
    ("runtime", {**AUTONOMY, "runtime": "nspawn"}, 'runtime: must be one of runp, runc, runk, not "nspawn"'),
    ("runk-capacity", {**RUNK, "capacity": {"cpu": 4}}, "capacity.memory: is missing: with runtime runk"),
    ("runk-join", {**RUNK, "mode": "lite", "join": "x"}, "runtime: runk needs the domain's gateway"),
    ("runk-namespace", {**RUNK, "runk": {"namespace": "A b"}}, 'runk.namespace: "A b" is no name'),
    ("runk-dns", {**RUNK, "runk": {"dnsServers": ["dns.example"]}}, 'runk.dnsServers: "dns.example" is not an IP'),
    ("runk-logs", {**RUNK, "runk": {"logDirectory": "logs"}}, 'runk.logDirectory: "logs" is not an absolute path'),
    ("runk-affinity", {**RUNK, "runk": {"affinitiesToAdd": {"node": {}}}}, "runk.affinitiesToAdd: must be a mapping"),
    ("runk-labels", {**RUNK, "runk": {"labelsToAdd": {"a": 1}}}, "runk.labelsToAdd: must be a mapping of texts"),
    ("runk-range", {**RUNK, "runk": {"podCIDRs": ["10.1.2.3/8"]}}, "runk.podCIDRs: must be a list of ranges"),
    ("runk-secret", {**RUNK, "runk": {"imagePullSecrets": ["a_b"]}}, 'runk.imagePullSecrets: "a_b" is no name'),
    ("container-runtime", {**AUTONOMY, "agent": {"containerRuntime": "docker"}}, "agent.containerRuntime: must be one of"),
    ("datastore", {**MASTER, "datastoreEndpoint": "mysql://u:S3CR3T@tcp(h)/d?colour=red"}, "datastoreEndpoint: unknown options: colour"),
    ("store-kind", {**MASTER, "store": "redis://u:S3CR3T@h/d"}, "store: redis:// is no kind of store"),
    ("store-host", {**MASTER, "store": "postgresql://u:S3CR3T@h"}, "store: the address names no database"),
    ("store-file", {**MASTER, "store": "etcd://h?passwordFile=/none"}, "store: passwordFile: /none cannot be read"),
    ("store-twice", {**MASTER, "store": "etcd://h", "datastoreEndpoint": "etcd://h"}, "store: stands beside"),
    ("kusciaAPI protocol", {**MASTER, "kusciaAPI": {"protocol": "SSL"}}, "kusciaAPI.protocol: must be one of MTLS, TLS, NOTLS"),
    ("kusciaAPI port", {**MASTER, "confManager": {"HTTPPort": 8082}}, "confManager.HTTPPort: 8082 is kusciaAPI.HTTPPort too"),
    ("whitelist", {**MASTER, "master": {"apiWhitelist": ["/api"]}}, "master.apiWhitelist: this version cannot restrict"),
    ("key-base64", {**MASTER, "domainKeyData": "S3CR3T!"}, "domainKeyData: is not a text in base64"),
    ("key-binary", {**MASTER, "domainKeyData": encoded(b"\xff\xfe")}, "domainKeyData: is not a text in base64"),
    ("key-pem", {**MASTER, "domainKeyData": encoded(b"S3CR3T")}, "domainKeyData: is not the base64 of an RSA key"),
    ("key-number", {**MASTER, "domainKeyData": 5}, "domainKeyData: must be a text"),
    ("endpoint", {**LITE, "masterEndpoint": "10.0.0.1:1080"}, "masterEndpoint: must look like https://host:1080"),
    ("lite-alone", {"mode": "lite", "domainID": "alice"}, "masterEndpoint: is missing: a lite node needs"),
    ("two-ways", {**LITE, "join": "x"}, "join: stands beside masterEndpoint"),
    ("join", {**MASTER, "join": "x"}, "join: is only for mode lite"),
    ("logrotate", {**MASTER, "logrotate": {"maxFiles": 0}}, "logrotate.maxFiles: 0 is not a number"),
    ("approve", {**MASTER, "enableWorkloadApprove": "yes"}, "enableWorkloadApprove: must be true or false"),
    ("gc", {**MASTER, "garbageCollection": {"kusciaJobGC": {"durationHours": "1"}}}, "kusciaJobGC.durationHours: '1' is not a number"),
    ("port", {**MASTER, "gateway": {"external": {"port": 0}}}, "gateway.external.port: 0 is not a number"),
    ("host", {**LITE, "gateway": {"internal": {"host": "localhost"}}}, 'gateway.internal.host: "localhost" is not an IP'),
    ("external-null", {**MASTER, "gateway": {"external": None}}, "gateway.external: has no value; write none"),
    ("external-text", {**MASTER, "gateway": {"external": "off"}}, "gateway.external: must be a mapping"),
    ("same-door", {**LITE, "gateway": {"internal": {"port": 1080}}}, "gateway.external: 0.0.0.0:1080 is the address of gateway.internal too"),
    ("ingress-host-alone", {**LITE, "gateway": {"ingress": {"host": "127.0.0.1"}}}, "gateway.ingress.httpPort: is missing"),
    ("ingress-same", {**LITE, "gateway": {"ingress": {"httpPort": 1080}}}, "gateway.ingress.httpPort: 0.0.0.0:1080 is the address of gateway.external too"),
    ("gateway-off", {**LITE, "gateway": {"enabled": False}}, "gateway.enabled: must be true: a lite node reaches"),
    ("gateway-name", {**MASTER, "gateway": {"name": "A_B"}}, 'gateway.name: "A_B" is no valid name'),
    ("workers", {**MASTER, "gateway": {"workers": 0}}, "gateway.workers: 0 is not a number"),
    ("upstream", {**MASTER, "dns": {"upstream": ["dns.example"]}}, "dns.upstream: "),
    ("console-anywhere", {**MASTER, "console": {"host": "0.0.0.0"}}, "console.names: is missing; with host 0.0.0.0"),
    ("console-port", {**MASTER, "console": {"port": 1080}}, "console.port: 0.0.0.0:1080 is taken by another port of this node"),
    ("console-name", {**MASTER, "console": {"names": ["a b"]}}, 'console.names: "a b" is no host name'),
    ("bus", {**AUTONOMY, "functions": {"bus": "redis://a"}}, 'functions.bus: must be embedded or such as kafka://'),
    ("brokers", {**AUTONOMY, "functions": {"bus": "kafka://a:9092, b:9092"}}, "functions.bus: ' b:9092' is no host:port of a Kafka broker"),
    ("body-size", {**AUTONOMY, "functions": {"maxBodyMB": 12}}, "functions.maxBodyMB: 12 is not a number"),
    ("gateways", {**AUTONOMY, "functions": {"gateway": {"minReplicas": 4, "maxReplicas": 3}}}, "functions.gateway.minReplicas: is more than maxReplicas, which is 3"),
    ("session-low", {**AUTONOMY, "transport": {"sessionMiB": 0}}, "transport.sessionMiB: 0 is not a number"),
    ("total-low", {**AUTONOMY, "transport": {"totalMiB": 99}}, "transport.totalMiB: 99 is not a number"),
    ("session-total", {**AUTONOMY, "transport": {"sessionMiB": 200, "totalMiB": 150}}, "transport.sessionMiB: is more than totalMiB, which is 150"),
    ("message-total", {**AUTONOMY, "transport": {"maxMessageMiB": 200, "totalMiB": 150}}, "transport.maxMessageMiB: is more than totalMiB, which is 150"),
    ("expiry-short", {**AUTONOMY, "transport": {"sessionExpirySeconds": 119}}, "transport.sessionExpirySeconds: 119 is not a number"),
    ("released-long", {**AUTONOMY, "transport": {"releasedSeconds": 3601}}, "transport.releasedSeconds: 3601 is not a number"),
    ("clean-long", {**AUTONOMY, "transport": {"cleanSeconds": 601}}, "transport.cleanSeconds: 601 is not a number"),
    ("queue-alone", {**AUTONOMY, "gateway": {"enabled": False}, "transport": {"enabled": True}}, "transport.enabled: needs the gateway"),
    ("tls-no-key", {**MASTER, **nested(f"{TLS}.certFile", "a")}, f"{TLS}.keyFile: is missing"),
    ("tls-no-cert", {**MASTER, **nested(f"{TLS}.keyFile", "a")}, f"{TLS}.certFile: is missing"),
    ("tls-off-alone", {**MASTER, **nested(TLS, {"enableTLS": False})}, f"{TLS}.enableTLS: does not turn TLS off"),
    ("tls-off", {**MASTER, **nested(TLS, {"enableTLS": False, "certFile": "a", "keyFile": "b"})}, f"{TLS}.enableTLS: must be true"),
    ("tls-plain", {**MASTER, "protocol": "NOTLS", **nested(TLS, {"certFile": "a", "keyFile": "b"})}, f"{TLS}.certFile: has no place"),
    ("tls-twice", {**MASTER, **nested(TLS, {"certFile": "a", "certData": encoded(b"x")})}, f"{TLS}.certData: stands beside certFile"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "told"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_refused(document: dict[str, Any], told: str) -> None:
    with pytest.raises(config.ConfigError, match=re.escape(told)) as refusal:
        parse(document)
    assert "S3CR3T" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("path", [*keys.REFUSED])
def test_keys_that_are_refused_may_stand_there_without_a_value(path: str) -> None:
    for nothing in (None, "", []):
        parse({**MASTER, **nested(path, nothing)})


@pytest.mark.parametrize("document", [None, [], "mode: master", 5])
def test_no_mapping_at_all(document: Any) -> None:
    with pytest.raises(config.ConfigError, match="must be a mapping with at least mode and domainID"):
        config.parse(document)


# Files.


def test_bad_yaml_is_told_by_line_and_never_quoted(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("mode: master\ndomainKeyData: S3CR3T\n  oops: [\n")
    with pytest.raises(config.ConfigError, match=r"c\.yaml: is not YAML in line 3: ") as refusal:
        config.load(file)
    problem: BaseException | None = refusal.value
    while problem is not None:
        assert "S3CR3T" not in str(problem)
        problem = problem.__cause__


@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_file_with_a_secret_is_its_owners(tmp_path: Path, mode: int, told: bool) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({**MASTER, "domainKeyData": encoded(KEY)}))
    file.chmod(mode)
    assert any("chmod 600" in each.sentence for each in config.load(file, tmp_path).notices) is told
    file.write_text(yaml.safe_dump(MASTER))
    assert not any("chmod 600" in each.sentence for each in config.load(file, tmp_path).notices)


def test_the_guide_lists_every_key() -> None:
    """Written out as `a.b`, or gathered as `a.b`, `.c`."""
    listed: set[str] = set()
    for row in GUIDE.read_text().splitlines():
        if not row.startswith("| `"):
            continue
        first = ""
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            first = first if name.startswith(".") else name
            listed.add(first.rpartition(".")[0] + name if name.startswith(".") else name)
    every = {*keys.USED, *keys.WITHOUT_EFFECT, *keys.REFUSED}
    assert {path.removesuffix(".*").removesuffix("[]") for path in every} == listed


# Addresses and ports.


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((), ("127.0.0.1", "0.0.0.0")),
        (("", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")),
        (("0.0.0.0",), ("127.0.0.1", "0.0.0.0")),
        (("127.0.1.2", "10.0.0.1"), ("127.0.1.2", "127.0.1.2")),
        (("127.0.0.1", "127.0.1.2"), ("127.0.1.2", "127.0.1.2")),
        (("10.0.0.2",), ("127.0.0.1", "10.0.0.2")),
        (("2001:db8::1",), ("127.0.0.1", "2001:db8::1")),
    ],
)
def test_where_a_node_of_this_address_listens(own: tuple[str, ...], expected: tuple[str, str]) -> None:
    assert listen_addresses(*own) == expected


def test_domains_of_one_machine_do_not_meet() -> None:
    for document in (
        {**AUTONOMY, "agent": {"address": "127.0.1.2"}, "apiServer": {"host": "127.0.1.2"}},
        {**MASTER, "apiServer": {"host": "127.0.1.2"}},
        {**LITE, "agent": {"address": "127.0.1.2"}},
    ):
        settings = parse(document)
        gateway = settings.gateway
        listeners = [each for each in (gateway.internal, gateway.external) if each is not None]
        hosts = {settings.dns.address, *(each.host for each in listeners)}
        assert hosts == {"127.0.1.2"}


def test_without_rights_other_ports_are_taken_and_told() -> None:
    settings = parse(AUTONOMY, lowest_port=1024)
    assert settings.gateway.internal is not None
    assert (settings.gateway.internal.port, settings.dns.port) == (10080, 10053)
    assert [(each.key, each.value) for each in settings.notices] == [
        ("gateway.internal.port", "10080"),
        ("dns.port", "10053"),
    ]
    chosen = {**AUTONOMY, "gateway": {"internal": {"port": 81}}, "dns": {"enabled": False}}
    settings = parse(chosen, lowest_port=1024)
    assert settings.gateway.internal is not None
    assert (settings.gateway.internal.port, settings.dns.port, settings.notices) == (81, 53, ())
    assert parse(AUTONOMY, lowest_port=53).notices == ()


@pytest.mark.parametrize(
    ("user", "status", "first_free", "expected"),
    [
        pytest.param(0, "CapEff:\t0000000000000400\nCapAmb:\t0\n", "1024", 0, id="root"),
        pytest.param(0, "CapEff:\t00000000000003ff\nCapAmb:\t0\n", "1024", 1024, id="root-without-the-right"),
        pytest.param(1000, "CapEff:\t0000000000000400\nCapAmb:\t0\n", "1024", 1024, id="its-children-have-it-not"),
        pytest.param(1000, "CapEff:\t0\nCapAmb:\t0000000000000400\n", "1024", 0, id="ambient"),
        pytest.param(1000, "CapEff:\t0\nCapAmb:\t0\n", "53", 53, id="lowered-for-all"),
        pytest.param(1000, "CapEff:\t0\nCapAmb:\t0\n", "", 1024, id="unknown"),
        pytest.param(1000, "", "1024", 1024, id="says-nothing"),
    ],
)
def test_which_ports_may_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, status: str, first_free: str, expected: int
) -> None:
    for name, text in (("_STATUS", status), ("_FIRST_FREE", first_free)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(ports, name, tmp_path / name)
    monkeypatch.setattr(ports.os, "geteuid", lambda: user)
    assert ports.lowest_port() == expected


def test_a_gateway_is_named_as_its_node() -> None:
    assert parse({**LITE, "agent": {"nodeName": "n-1"}}).gateway.instance == "n-1"
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", parse(MASTER).gateway.instance)
