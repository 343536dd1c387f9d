"""What containers find: variables, files of volumes, hosts and resolver files; and that nothing leads out of a volume."""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.clock import VirtualClock
from coterie.base.container_logs import LogOptions, read
from coterie.base.paths import DomainPaths
from coterie.kube.agent.pods.containers import security_of, termination_message, termination_mount
from coterie.kube.agent.pods.downward import ConfigProblem, DownwardNodeInfo, field_value, resource_value
from coterie.kube.agent.pods.environment import expand, variables
from coterie.kube.agent.pods.garbage import KeptOutput, NodeGarbageCollector, abandoned, kept_outputs, removable
from coterie.kube.agent.pods.hosts_files import hosts_file, resolver_file
from coterie.kube.agent.settings import AgentSettings, DnsSettings, PodLogSettings, PodSettings
from coterie.kube.agent.volumes import atomic, directories
from coterie.kube.agent.volumes.atomic import FileContent
from coterie.kube.agent.volumes.sources import VolumeContext, payload_of, references
from coterie.kube.api.meta import Object

NODE = DownwardNodeInfo("10.0.0.1", "10.0.0.2", {"cpu": "4", "memory": "8Gi"})
POD: Object = {
    "metadata": {"name": "web", "namespace": "alice", "uid": "u-1", "labels": {"b": "2", "a": 'x"y'}},
    "spec": {"nodeName": "node-1", "serviceAccountName": "sa", "containers": [{"name": "main"}]},
}
OBJECTS: dict[tuple[str, str], Object] = {
    ("ConfigMap", "settings"): {"data": {"level": "info", "bad key!": "x"}, "binaryData": {"raw": "/w=="}},
    ("Secret", "keys"): {"data": {"key": base64.b64encode(b"sesame").decode()}},
}


def lookup(kind: str, name: str) -> Object | None:
    return OBJECTS.get((kind, name))


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


def env(container: Object) -> dict[str, str]:
    return variables(POD, {"name": "main", **container}, lookup, NODE)


def test_variables_of_all_sources_in_order() -> None:
    found = env(
        {
            "resources": {"limits": {"cpu": "1500m"}},
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "keys"}}],
            "env": [
                {"name": "A", "value": "one"},
                {"name": "B", "value": "$(A)-$(P_level)-$(LATER)"},
                {"name": "LATER", "value": "x"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
                {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k", "optional": True}}},
            ],
        }
    )
    assert found == {
        "HOSTNAME": "web",
        "P_level": "info",
        "key": "sesame",
        "A": "one",
        "B": "one-info-$(LATER)",
        "LATER": "x",
        "NODE": "node-1",
        "IP": "10.0.0.2",
        "CPU": "2",
        "KEY": "sesame",
    }


@pytest.mark.parametrize(
    ("container", "why"),
    [
        ({"envFrom": [{"configMapRef": {"name": "gone"}}]}, 'configmap "gone" not found'),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "no"}}}]},
            "couldn't find key no in ConfigMap settings",
        ),
        ({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.secret"}}}]}, "cannot be handed down"),
    ],
)
def test_missing_sources_are_said(container: Object, why: str) -> None:
    with pytest.raises(ConfigProblem, match=why):
        env(container)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.labels['b']", "2"),
        ("metadata.labels", 'a="x\\"y"\nb="2"'),
        ("metadata.annotations['none']", ""),
        ("status.hostIP", "10.0.0.1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    assert field_value(POD, path, NODE) == value


@pytest.mark.parametrize(
    ("resources", "reference", "value"),
    [
        ({"limits": {"cpu": "250m"}}, {"resource": "limits.cpu", "divisor": "1m"}, "250"),
        ({"limits": {"cpu": "250m"}}, {"resource": "limits.cpu"}, "1"),
        ({}, {"resource": "limits.memory", "divisor": "1Mi"}, "8192"),
        ({}, {"resource": "requests.memory"}, "0"),
    ],
)
def test_resources_of_the_container(resources: Object, reference: Object, value: str) -> None:
    assert resource_value(POD, {"name": "main", "resources": resources}, reference, NODE) == value


# Files.


def files(volume: Object) -> dict[str, FileContent]:
    return dict(
        payload_of(volume, VolumeContext(POD, lookup, NODE, lambda wanted: f"token for {wanted.get('audience')}"))
    )


@pytest.mark.parametrize(
    ("volume", "found"),
    [
        pytest.param(
            {"configMap": {"name": "settings", "items": [{"key": "level", "path": "a/b", "mode": 0o440}]}},
            {"a/b": FileContent(b"info", 0o440)},
            id="items",
        ),
        pytest.param(
            {"secret": {"secretName": "keys", "defaultMode": 0o400}},
            {"key": FileContent(b"sesame", 0o400)},
            id="secret",
        ),
        pytest.param({"configMap": {"name": "gone", "optional": True}}, {}, id="optional"),
        pytest.param(
            {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"n": FileContent(b"web")},
            id="downward",
        ),
        pytest.param(
            {
                "projected": {
                    "sources": [
                        {"secret": {"name": "keys"}},
                        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
                    ]
                }
            },
            {"key": FileContent(b"sesame"), "token": FileContent(b"token for vault", 0o600)},
            id="projected",
        ),
    ],
)
def test_files_of_volumes(volume: Object, found: dict[str, FileContent]) -> None:
    assert files(volume) == found


def test_binary_data_and_missing_keys() -> None:
    assert files({"configMap": {"name": "settings"}})["raw"].data == b"\xff"
    with pytest.raises(ConfigProblem, match="has no key"):
        files({"configMap": {"name": "settings", "items": [{"key": "no", "path": "x"}]}})
    with pytest.raises(ConfigProblem, match="not found"):
        files({"secret": {"secretName": "gone"}})


def test_references_name_everything_a_pod_needs() -> None:
    pod = {
        "spec": {
            "volumes": [
                {"name": "a", "configMap": {"name": "c1"}},
                {"name": "b", "projected": {"sources": [{"secret": {"name": "s1"}}]}},
            ],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "s2"}}]}],
            "containers": [{"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "k"}}}]}],
        }
    }
    assert references(pod) == {("ConfigMap", "c1"), ("ConfigMap", "c2"), ("Secret", "s1"), ("Secret", "s2")}


def test_a_volume_changes_all_at_once(tmp_path: Path) -> None:
    volume = tmp_path / "v"
    assert atomic.write(volume, {"a": FileContent(b"1"), "d/b": FileContent(b"2", 0o600)})
    assert (volume / "a").read_bytes() == b"1" and (volume / "d/b").read_bytes() == b"2"
    assert (volume / "d/b").stat().st_mode & 0o777 == 0o600
    first = os.readlink(volume / "..data")
    assert not atomic.write(volume, {"a": FileContent(b"1"), "d/b": FileContent(b"2", 0o600)})
    assert os.readlink(volume / "..data") == first
    assert atomic.write(volume, {"a": FileContent(b"3"), "new": FileContent(b"4")})
    assert (volume / "a").read_bytes() == b"3" and (volume / "new").read_bytes() == b"4"
    assert not os.path.lexists(volume / "d")
    assert not (volume / first).exists()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "..data"])
def test_files_stay_in_their_volume(tmp_path: Path, path: str) -> None:
    with pytest.raises(atomic.UnsafePath):
        atomic.write(tmp_path / "v", {path: FileContent(b"x")})


names = st.text("abc.", min_size=1, max_size=4).filter(lambda name: not name.startswith("."))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(names, st.binary(max_size=8), max_size=4), min_size=1, max_size=5))
def test_a_volume_always_holds_exactly_the_last_payload(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[dict[str, bytes]]
) -> None:
    volume = tmp_path_factory.mktemp("volume")
    for payload in payloads:
        atomic.write(volume, {name: FileContent(data) for name, data in payload.items()})
        seen = {path.name: path.read_bytes() for path in volume.iterdir() if not path.name.startswith("..")}
        assert seen == payload
        assert len([path for path in volume.iterdir() if path.name.startswith("..") and path.name != "..data"]) == 1


def test_sub_paths_are_not_made_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container puts a link where a directory was, between the check and the making."""
    volume, outside = tmp_path / "v", tmp_path / "outside"
    (volume / "in").mkdir(parents=True)
    outside.mkdir()
    exists = Path.exists

    def planted(path: Path) -> bool:
        if path == volume / "in/made/deep":
            (volume / "in").rename(volume / "old")
            (volume / "in").symlink_to(outside)
        return exists(path)

    monkeypatch.setattr(Path, "exists", planted)
    with pytest.raises(ConfigProblem):
        directories.sub_path(volume, "in/made/deep")
    assert not list(outside.iterdir())


def test_sub_paths_do_not_lead_out(tmp_path: Path) -> None:
    volume, outside = tmp_path / "v", tmp_path / "outside"
    volume.mkdir()
    outside.mkdir()
    (volume / "in").mkdir()
    (volume / "link").symlink_to(outside)
    (volume / "inner").symlink_to("in")
    assert directories.sub_path(volume, "in") == (volume / "in").resolve()
    assert directories.sub_path(volume, "inner") == (volume / "in").resolve()
    assert directories.sub_path(volume, "made/deep").is_dir()
    for escape in ("link", "link/x", "../outside", "/etc", "in/../../outside"):
        with pytest.raises(ConfigProblem):
            directories.sub_path(volume, escape)


@pytest.mark.parametrize(
    ("told", "kind", "why"),
    [
        ("ok/dir", "Directory", ""),
        ("ok/new", "DirectoryOrCreate", ""),
        ("ok/file", "File", ""),
        ("ok/newfile", "FileOrCreate", ""),
        ("ok/file", "Directory", "is not a Directory"),
        ("ok/absent", "File", "is not a File"),
        ("other", "", "not below a directory that this node allows"),
        ("ok/link", "", "not below a directory that this node allows"),
        ("ok/../other", "", "not an absolute path"),
    ],
)
def test_host_paths(tmp_path: Path, told: str, kind: str, why: str) -> None:
    (tmp_path / "ok/dir").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "ok/file").touch()
    (tmp_path / "ok/link").symlink_to(tmp_path / "other")
    source = {"path": f"{tmp_path}/{told}", "type": kind}
    if why:
        with pytest.raises(ConfigProblem, match=why):
            directories.host_path(source, (str(tmp_path / "ok"),))
    else:
        assert directories.host_path(source, (str(tmp_path / "ok"),)).exists()


@pytest.mark.parametrize(
    ("asked", "allowed", "given"),
    [
        ("srv/data", ("srv",), True),
        ("srv", ("srv",), False),
        ("srv/home", ("srv",), False),
        ("srv/home/var/certs", ("srv",), False),
        ("srv/link/var/certs", ("srv",), False),
        ("link-to-srv", ("srv",), False),
        ("srv/home/var/storage", ("srv/home/var/storage",), True),
        ("srv/home/var/certs", ("srv/home/var/storage",), False),
        ("srv/home", ("srv/home",), False),
    ],
)
@pytest.mark.parametrize("through_link", [False, True])
def test_host_paths_never_show_the_nodes_own_directory(
    tmp_path: Path, asked: str, allowed: tuple[str, ...], given: bool, through_link: bool
) -> None:
    """Also where the node itself knows its directory by a link."""
    for each in ("srv/data", "srv/home/var/certs", "srv/home/var/storage"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "srv/link").symlink_to(tmp_path / "srv/home")
    (tmp_path / "link-to-srv").symlink_to(tmp_path / "srv")
    own = tmp_path / ("link-to-srv/home" if through_link else "srv/home")
    source, prefixes = {"path": f"{tmp_path}/{asked}"}, tuple(str(tmp_path / each) for each in allowed)
    if given:
        assert directories.host_path(source, prefixes, (own,)).exists()
    else:
        with pytest.raises(ConfigProblem, match=r"files of the node itself|not below a directory"):
            directories.host_path(source, prefixes, (own,))


# Names.


def test_hosts_file() -> None:
    pod = {
        "metadata": {"name": "web-0", "namespace": "alice"},
        "spec": {"subdomain": "web", "hostAliases": [{"ip": "10.9.9.9", "hostnames": ["db", "db.local"]}]},
    }
    dns = DnsSettings(hosts=(("127.0.1.1", ("datamesh", "kusciaapi")),))
    lines = hosts_file(pod, "10.0.0.2", dns).splitlines()
    assert "127.0.0.1\tlocalhost" in lines
    assert "10.0.0.2\tweb-0.web.alice.svc web-0" in lines
    assert "127.0.1.1\tdatamesh kusciaapi" in lines
    assert "10.9.9.9\tdb db.local" in lines


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ("alice", "web-0.web.alice.svc web-0.web.alice.svc.cluster.local web-0"),
        ("bob", "web-0.web.alice.svc.cluster.local web-0.web.alice.svc web-0"),
    ],
    ids=["in-the-domain", "in-another-namespace"],
)
def test_own_names_in_the_hosts_file(domain: str, expected: str) -> None:
    pod = {"metadata": {"name": "web-0", "namespace": "alice"}, "spec": {"subdomain": "web"}}
    dns = DnsSettings(cluster_domain="cluster.local", domain_namespace=domain)
    assert f"10.0.0.2\t{expected}" in hosts_file(pod, "10.0.0.2", dns).splitlines()


HOST = "# host\nnameserver 192.0.2.1\nsearch corp\noptions timeout:1\n"


@pytest.mark.parametrize(
    ("spec", "servers", "expected"),
    [
        pytest.param(
            {},
            ("127.0.1.1",),
            ["search alice.svc corp", "nameserver 127.0.1.1", "options ndots:1"],
            id="domain-dns",
        ),
        pytest.param({}, (), ["search corp", "nameserver 192.0.2.1", "options timeout:1"], id="no-domain-dns"),
        pytest.param(
            {"dnsPolicy": "Default"},
            ("127.0.1.1",),
            ["search corp", "nameserver 192.0.2.1", "options timeout:1"],
            id="the-machines",
        ),
        pytest.param(
            {
                "dnsPolicy": "None",
                "dnsConfig": {
                    "nameservers": ["1.1.1.1"],
                    "searches": ["x"],
                    "options": [{"name": "ndots", "value": "2"}],
                },
            },
            ("127.0.1.1",),
            ["search x", "nameserver 1.1.1.1", "options ndots:2"],
            id="only-its-own",
        ),
        pytest.param(
            {"dnsConfig": {"options": [{"name": "ndots", "value": "3"}, {"name": "edns0"}]}},
            ("127.0.1.1",),
            ["search alice.svc corp", "nameserver 127.0.1.1", "options ndots:3 edns0"],
            id="own-options-win",
        ),
    ],
)
def test_resolver_file(spec: dict[str, Any], servers: tuple[str, ...], expected: list[str]) -> None:
    pod = {"metadata": {"name": "web", "namespace": "alice"}, "spec": spec}
    assert resolver_file(pod, DnsSettings(servers=servers, search=("alice.svc",)), HOST).splitlines() == expected


@pytest.mark.parametrize(
    ("namespace", "spec", "expected"),
    [
        ("alice", {}, "alice.svc alice.svc.cluster.local svc.cluster.local cluster.local corp"),
        ("default", {}, "default.svc.cluster.local svc.cluster.local cluster.local alice.svc corp"),
        (
            "default",
            {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
            "default.svc.cluster.local svc.cluster.local cluster.local alice.svc corp",
        ),
        ("default", {"hostNetwork": True}, "corp"),
        (
            "alice",
            {"dnsConfig": {"searches": ["x", "corp"]}},
            "alice.svc alice.svc.cluster.local svc.cluster.local cluster.local corp x",
        ),
    ],
    ids=["domain", "other-namespace", "host-network-cluster-first", "host-network", "its-own-searches"],
)
def test_search_list_in_the_clusters_domain(namespace: str, spec: dict[str, Any], expected: str) -> None:
    pod = {"metadata": {"name": "web", "namespace": namespace}, "spec": spec}
    dns = DnsSettings(("127.0.1.1",), ("alice.svc",), cluster_domain="cluster.local", domain_namespace="alice")
    assert resolver_file(pod, dns, HOST).splitlines()[0] == f"search {expected}"


# Containers.


def test_security_contexts_merge_and_privilege_is_dropped() -> None:
    pod = {"spec": {"securityContext": {"runAsUser": 5, "fsGroup": 7, "supplementalGroups": [8, 7]}}}
    found = security_of(pod, {"name": "c", "securityContext": {"runAsUser": 6, "privileged": True}}, PodSettings())
    assert (found.run_as_user, found.supplemental_groups, found.privileged) == (6, (8, 7), False)
    allowed = security_of(
        pod, {"name": "c", "securityContext": {"privileged": True}}, PodSettings(allow_privileged=True)
    )
    assert allowed.privileged and allowed.allow_privilege_escalation
    with pytest.raises(ConfigProblem, match="runAsNonRoot"):
        security_of(pod, {"name": "c", "securityContext": {"runAsUser": 0, "runAsNonRoot": True}}, PodSettings())


def test_termination_messages(tmp_path: Path) -> None:
    rules = PodSettings(termination_message_limit=8)
    plain, fallback = {"name": "a"}, {"name": "b", "terminationMessagePolicy": "FallbackToLogsOnError"}
    mount = termination_mount(tmp_path, plain, 0)
    assert mount.target == "/dev/termination-log"
    mount.source.write_text("a long message")
    assert termination_message(tmp_path, plain, 0, True, None, rules) == " message"
    log = tmp_path / "0.log"
    log.write_text("2026-01-02T03:04:05Z stderr F it broke\n")
    assert termination_message(tmp_path, fallback, 0, True, log, rules) == "it broke\n"
    assert termination_message(tmp_path, fallback, 0, False, log, rules) == ""


def test_old_output_and_abandoned_directories(tmp_path: Path) -> None:
    for name, age in (("alice_a_old", 100), ("alice_b_new", 5), ("alice_c_known", 100)):
        file = tmp_path / name / "main" / "0.log"
        file.parent.mkdir(parents=True)
        file.touch()
        for path in (file, file.parent, tmp_path / name):
            os.utime(path, (1000 - age, 1000 - age))
    assert [path.name for path in removable(kept_outputs(tmp_path, {"known"}), 950, 0)] == ["alice_a_old"]
    assert [path.name for path in abandoned(tmp_path, {"alice_c_known"})] == ["alice_a_old", "alice_b_new"]


@pytest.mark.parametrize(
    ("limit", "most", "names"),
    [
        (0, 0, []),
        (15, 0, ["a"]),
        (0, 100, []),
        (0, 99, ["a"]),
        (0, 45, ["a", "b"]),
        (25, 45, ["a", "b"]),
        (0, 1, ["a", "b", "c"]),
    ],
)
def test_output_is_kept_by_age_and_size(limit: float, most: int, names: list[str]) -> None:
    kept = [KeptOutput(Path("a"), 10, 30), KeptOutput(Path("b"), 20, 30), KeptOutput(Path("c"), 30, 40)]
    assert [str(each) for each in removable(kept, limit, most)] == names


async def test_the_oldest_output_goes_and_rotated_files_of_gone_pods_are_compressed(tmp_path: Path) -> None:
    chosen = AgentSettings(
        node_name="n", paths=DomainPaths(tmp_path), logs=PodLogSettings(max_age_days=1, max_total_bytes=25_000)
    )
    pods = tmp_path / "var" / "stdout" / "pods"
    now = 1_000_000.0
    for name, age in (("alice_old_u1", 90_000), ("alice_first_u2", 300), ("alice_last_u3", 100), ("alice_runs_u4", 50)):
        directory = pods / name / "main"
        directory.mkdir(parents=True)
        for file in ("0.log", "0.log.1"):
            (directory / file).write_bytes(b"2026-01-02T03:04:05.000000000Z stdout F x\n" * 250)
        (directory / "link.log.1").symlink_to("/etc/passwd")
        for file in directory.iterdir():
            os.utime(file, (now - age, now - age), follow_symlinks=False)
        os.utime(directory, (now - age, now - age))
    collector = NodeGarbageCollector(chosen, lambda: {"u4"}, VirtualClock(datetime.fromtimestamp(now, UTC)))
    assert await collector.collect() == 2
    assert sorted(each.name for each in pods.iterdir()) == ["alice_last_u3", "alice_runs_u4"]
    assert sorted(each.name for each in (pods / "alice_last_u3" / "main").iterdir()) == [
        "0.log",
        "0.log.1.gz",
        "link.log.1",
    ]
    assert sorted(each.name for each in (pods / "alice_runs_u4" / "main").iterdir()) == [
        "0.log",
        "0.log.1",
        "link.log.1",
    ]
    file = pods / "alice_last_u3" / "main" / "0.log"
    for tail, count in ((None, 500), (300, 300)):
        data = b"".join([piece async for piece in read(file, LogOptions(tail=tail), lambda: False, VirtualClock())])
        assert data == b"x\n" * count
