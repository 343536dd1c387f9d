"""Copies of pods and what is beside them, as plain data."""

from __future__ import annotations

from pathlib import Path

from coterie.kube.agent.pods.downward import DownwardNodeInfo
from coterie.kube.agent.runk import backing_pod, mirrored_status, objects
from coterie.kube.agent.runk.backing_access import container_states
from coterie.kube.agent.runk.backing_pod import ContainerExtras, FilesVolume, PlacedFile, PlacedMount, PodExtras
from coterie.kube.agent.runk.log_follower import cri_lines, last_time
from coterie.kube.agent.runk.settings import GROUP_LABEL, MirrorLabels, ReachableService, RunkSettings
from coterie.kube.agent.runtimes.protocol import PodKind, PodNetworkClass
from coterie.kube.api.meta import Object

NODE = DownwardNodeInfo("10.0.0.2", "", {"cpu": "4", "memory": "8Gi"})
SETTINGS = RunkSettings(
    namespace="engines",
    owner="me",
    services=(ReachableService("10.0.0.2", "TCP", 80), ReachableService("10.0.0.2", "TCP", 8060, guests=False)),
    node_addresses=("10.0.0.2",),
    dns_servers=("10.0.0.2",),
    dropped_resources=("kuscia.io/bandwidth",),
)
GUEST, ENGINE = PodNetworkClass(PodKind.GUEST, "task/t"), PodNetworkClass(PodKind.ENGINE, "task/t")


def pod(**spec: object) -> Object:
    containers = spec.pop("containers", [{"name": "main", "image": "a:1"}])
    meta = {"name": "p", "namespace": "alice", "uid": "u-1", "annotations": {"a": "b"}}
    return {"metadata": meta, "spec": {"containers": containers, **spec}}


def copy_of(given: Object, network: PodNetworkClass = ENGINE, extras: PodExtras = backing_pod.NO_EXTRAS) -> Object:
    return backing_pod.backing_pod(given, network, extras, NODE, SETTINGS, node_name="n")


def policy(network: PodNetworkClass) -> Object:
    meta = {"name": "p", "uid": "c-1", "labels": {MirrorLabels().pod_uid: "u-1"}}
    made = objects.network_policy({"metadata": meta}, network, SETTINGS)
    assert made is not None
    return made["spec"]


def ports(spec: Object) -> set[int]:
    return {port["port"] for rule in spec["egress"] for port in rule.get("ports") or ()}


def test_a_guest_reaches_its_task_and_fewer_services_than_an_engine_of_ours() -> None:
    assert (ports(policy(GUEST)), ports(policy(ENGINE))) == ({80}, {80, 8060})
    spec = policy(GUEST)
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert all("to" in rule for rule in spec["egress"]), "no rule without a peer: that would be everybody"
    assert all(rule["from"] for rule in spec["ingress"])
    peer = spec["egress"][0]["to"][0]["podSelector"]["matchLabels"]
    assert (
        peer[GROUP_LABEL]
        != policy(PodNetworkClass(PodKind.GUEST, "task/other"))["egress"][0]["to"][0]["podSelector"]["matchLabels"][
            GROUP_LABEL
        ]
    )


def test_a_guest_cannot_ask_for_more_than_a_copy_has() -> None:
    wants = {
        "privileged": True,
        "runAsUser": 5,
        "capabilities": {"add": ["ALL"]},
        "seccompProfile": {"type": "Unconfined"},
    }
    made = copy_of(
        pod(
            containers=[{"name": "main", "image": "a:1", "securityContext": wants}],
            serviceAccountName="admin",
            automountServiceAccountToken=True,
            priorityClassName="system-node-critical",
            nodeName="n",
            nodeSelector={"x": "y"},
            schedulerName="s",
            dnsPolicy="Default",
        ),
        GUEST,
    )["spec"]
    assert made["automountServiceAccountToken"] is False and made["dnsPolicy"] == "None"
    assert not {"serviceAccountName", "priorityClassName", "nodeName", "nodeSelector", "schedulerName"} & set(made)
    security = made["containers"][0]["securityContext"]
    assert "privileged" not in security and security["runAsUser"] == 5
    assert security["seccompProfile"] == {"type": "RuntimeDefault"} and security["capabilities"] == {"drop": ["ALL"]}


def test_tokens_of_our_api_do_not_travel() -> None:
    token = {"name": "kube-api-access", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    mount = {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    made = copy_of(pod(containers=[{"name": "main", "image": "a:1", "volumeMounts": [mount]}], volumes=[token]))["spec"]
    assert made["volumes"] == [] and "volumeMounts" not in made["containers"][0]


def test_files_of_plug_ins_are_mounted_where_engines_look_for_them() -> None:
    extras = PodExtras(
        {
            "main": ContainerExtras(
                {"CLIENT_CERT_FILE": "kuscia/certs/client.crt", "PRICE": "$(5)"},
                (PlacedMount("coterie-files-0", "kuscia/certs"),),
                {("templates", "a.conf"): PlacedMount("coterie-files-1", "", "a.conf")},
            )
        },
        (
            FilesVolume("coterie-files-0", (PlacedFile("0-c", "client.crt"),)),
            FilesVolume("coterie-files-1", (PlacedFile("1-a", "a.conf"),)),
        ),
    )
    template = {"name": "templates", "mountPath": "/etc/a.conf", "subPath": "a.conf"}
    container = {"name": "main", "image": "a:1", "workingDir": "/work", "volumeMounts": [template]}
    made = copy_of(
        pod(containers=[container], volumes=[{"name": "templates", "configMap": {"name": "t"}}]), ENGINE, extras
    )
    inside = made["spec"]["containers"][0]
    assert [(each["name"], each["mountPath"], each.get("subPath")) for each in inside["volumeMounts"]] == [
        ("coterie-files-1", "/etc/a.conf", "a.conf"),
        ("coterie-files-0", "/work/kuscia/certs", None),
    ]
    values = {each["name"]: each["value"] for each in inside["env"]}
    assert values == {"CLIENT_CERT_FILE": "/work/kuscia/certs/client.crt", "PRICE": "$$(5)"}
    assert made["spec"]["volumes"][0]["configMap"]["name"] == "p-t"


def test_limits() -> None:
    given = {"limits": {"memory": "1Gi", "kuscia.io/bandwidth": "5"}, "requests": {"cpu": "1"}}
    assert backing_pod.resources(given, NODE.allocatable, SETTINGS) == {
        "limits": {"memory": "1Gi", "cpu": "4", "ephemeral-storage": "20Gi"},
        "requests": {"memory": "1Gi", "cpu": "1", "ephemeral-storage": "0"},
    }


def test_affinities_of_both_hold() -> None:
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {"nodeAffinity": {"of": "our nodes"}, "podAntiAffinity": {kind: [{"a": 1}]}}
    added = {"nodeAffinity": {"of": "theirs"}, "podAntiAffinity": {kind: [{"b": 2}]}}
    assert backing_pod.merged_affinity(own, added) == {
        "nodeAffinity": {"of": "theirs"},
        "podAntiAffinity": {kind: [{"a": 1}, {"b": 2}]},
    }


def test_names_of_copies_are_names() -> None:
    assert backing_pod.copy_name("pod", "settings") == "pod-settings"
    long = [backing_pod.copy_name("p" * 200, "x" * 100 + end) for end in "ab"]
    assert len({*long}) == 2 and all(len(each) <= 253 for each in long)


def test_the_same_copy_gives_the_same_status() -> None:
    backing = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.1.0.5"}}
    original = pod()
    original["status"] = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    first = mirrored_status.mirrored_status(original, backing, "10.0.0.2", "now")
    assert [each["type"] for each in first["conditions"]] == ["PodScheduled", "Ready"]
    original["status"] = first
    assert mirrored_status.same_status(first, mirrored_status.mirrored_status(original, backing, "10.0.0.2", "later"))


def test_a_copy_that_finds_no_node_says_why() -> None:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    made = mirrored_status.mirrored_status(pod(), {"status": {"phase": "Pending", "conditions": [why]}}, "h", "now")
    assert made["reason"] == "BackingPodPending" and "0/3 nodes" in made["message"]


def test_lines_that_were_written_are_not_written_again(tmp_path: Path) -> None:
    lines = b"2026-01-02T03:04:05.1Z one\n2026-01-02T03:04:05.25Z two\nnot a line of a log"
    data, count, last = cri_lines(lines, "")
    assert (data, count) == (
        b"2026-01-02T03:04:05.1Z stdout F one\n2026-01-02T03:04:05.25Z stdout F two\n",
        2,
    )
    assert cri_lines(lines, last) == (b"", 0, last)
    assert cri_lines(b"2026-01-02T03:04:05.3Z three", last)[1] == 1
    file = tmp_path / "0.log"
    file.write_bytes(data)
    assert last_time(file) == last and last_time(tmp_path / "none") == ""


def test_runs_of_containers() -> None:
    ended = {
        "exitCode": 2,
        "reason": "Error",
        "startedAt": "2026-01-02T03:04:05Z",
        "finishedAt": "2026-01-02T03:04:06Z",
    }
    entry = {"name": "main", "restartCount": 1, "state": {"running": {}}, "lastState": {"terminated": ended}}
    before, now = container_states({"status": {"containerStatuses": [entry]}})
    assert (before.attempt, before.running, before.exit_code) == (0, False, 2)
    assert (now.attempt, now.running) == (1, True)
