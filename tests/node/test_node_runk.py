"""`runtime: runk`: what a node with its pods in another cluster listens on, gives engines and is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.kube.agent.runk.settings import ReachableService
from coterie.node import config
from coterie.node.config import ConfigError, RunkConfig
from coterie.node.parts import backing_cluster, mirror_agent
from coterie.node.parts.engine_parts import engine_settings
from coterie.node.parts.evidence import switched_off
from coterie.node.parts.registry import parts_of

BASE: dict[str, Any] = {
    "mode": "autonomy",
    "domainID": "alice",
    "runtime": "runk",
    "agent": {"address": "10.0.0.2"},
    "capacity": {"cpu": 4, "memory": "8Gi"},
}


def parse(**changes: Any) -> config.NodeSettings:
    return config.parse({**BASE, **changes}, Path("/nowhere"), lowest_port=0)


def test_parts_that_run_pods_here_are_left_out() -> None:
    names = [part.name for part in parts_of(parse())]
    assert not {"pod-network", "overlay", "policies", "services", "agent"} & set(names)
    assert {"backing-cluster", "mirror-agent", "gateway", "dns", "datamesh"} <= set(names)


def test_services_to_pods_listen_where_pods_of_another_cluster_reach_them() -> None:
    settings = backing_cluster.outside(parse())
    assert settings.gateway.internal is None and settings.gateway.pods is not None
    assert str(settings.gateway.pods.gateway) == "10.0.0.2:80"
    assert (settings.dns.address, settings.data_mesh.address) == ("10.0.0.2", "10.0.0.2")
    assert settings.agent is not None and engine_settings(settings, settings.agent).data is None


def test_an_address_is_found_where_none_is_given() -> None:
    changed = {key: value for key, value in BASE.items() if key != "agent"}
    settings = config.parse(changed, Path("/nowhere"), lowest_port=0)
    assert settings.agent is not None and settings.agent.address not in ("", "0.0.0.0")


def test_mirrored_pods_look_as_the_configuration_says() -> None:
    added = {
        "namespace": "engines",
        "labelsToAdd": {"team": "a"},
        "annotationsToAdd": {"note": "b"},
        "affinitiesToAdd": {"nodeAffinity": {"x": 1}},
    }
    settings = backing_cluster.outside(parse(runk=added, logrotate={"maxFiles": 3}))
    assert settings.agent is not None and settings.agent.runk is not None
    made = mirror_agent.runk_settings(settings, settings.agent, settings.agent.runk, "default", "me")
    assert (made.namespace, made.owner, made.log_files, made.log_bytes) == ("engines", "me", 3, 10 << 20)
    assert (made.labels_to_add, made.annotations_to_add) == ({"team": "a"}, {"note": "b"})
    assert made.affinity == {"nodeAffinity": {"x": 1}} and made.dropped_resources == ("kuscia.io/bandwidth",)
    assert made.labels.pod_uid == "kuscia.secretflow/pod-uid"
    assert made.dns_servers == ("10.0.0.2",) and made.dns_search == ("alice.svc",)
    assert ReachableService("10.0.0.2", "TCP", 80) in made.services
    assert ReachableService("10.0.0.2", "UDP", 53) in made.services
    assert [each.port for each in made.services if not each.guests] == [8060, 8061], "config is not for guests"


def test_protections_that_are_switched_off_are_named() -> None:
    assert switched_off(parse()) == []
    off = switched_off(parse(runk={"networkPolicies": False, "allowRoot": True}))
    assert off == ["runk.networkPolicies: false", "runk.allowRoot: true"]


def test_a_section_that_means_nothing_is_said_so() -> None:
    settings = parse(runtime="runp", runk={"namespace": "x"})
    assert settings.runk is None and [each.key for each in settings.notices] == ["runk"]


def test_a_kubeconfig_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"runk.kubeconfigFile: cannot read kubeconfig .*none"):
        mirror_agent.backing_connection(RunkConfig(kubeconfig_file=str(tmp_path / "none")))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"not in a pod: .*name a kubeconfig of the backing cluster"):
        mirror_agent.backing_connection(RunkConfig())
