"""What a security context asks for is done or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.kube.agent.pods.containers import security_of
from coterie.kube.agent.pods.downward import NoSuchConfig
from coterie.kube.agent.pods.security_context import handler_of, refused_container, refused_pod, sysctls_of
from coterie.kube.agent.runtimes.protocol import RuntimeHandler
from coterie.kube.agent.settings import PodSettings

HANDLERS = (
    RuntimeHandler("runp", True),
    RuntimeHandler("runc", True),
    RuntimeHandler("gvisor", False, why="runsc is not installed"),
)


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "c"}], **spec}}


def context(**fields: Any) -> dict[str, Any]:
    return pod(securityContext=fields)


@pytest.mark.parametrize(
    ("asked", "reason", "word"),
    [
        (pod(hostPID=True), "NotAdmitted", "hostPID"),
        (pod(hostIPC=True), "NotAdmitted", "hostIPC"),
        (pod(shareProcessNamespace=True), "NotAdmitted", "shareProcessNamespace"),
        (pod(runtimeClassName="gvisor"), "NotAdmitted", "runtimeClassName"),
        (pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}]), "NotAdmitted", "resourceClaims"),
        (pod(hostnameOverride="h"), "NotAdmitted", "hostnameOverride"),
        (pod(containers=[{"name": "c", "restartPolicyRules": [{}]}]), "NotAdmitted", "restartPolicyRules"),
        (pod(containers=[{"name": "c", "lifecycle": {"stopSignal": "SIGINT"}}]), "NotAdmitted", "stopSignal"),
        (
            pod(containers=[{"name": "c", "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}}]}]),
            "NotAdmitted",
            "fileKeyRef",
        ),
        (
            pod(volumes=[{"name": "v", "projected": {"sources": [{"podCertificate": {"signerName": "s"}}]}}]),
            "NotAdmitted",
            "podCertificate",
        ),
        (context(seLinuxOptions={"level": "s0"}), "NotAdmitted", "seLinuxOptions"),
        (context(windowsOptions={"runAsUserName": "x"}), "NotAdmitted", "windowsOptions"),
        (context(seccompProfile={"type": "Localhost", "localhostProfile": "p"}), "NotAdmitted", "seccompProfile"),
        (context(appArmorProfile={"type": "Localhost", "localhostProfile": "p"}), "NotAdmitted", "appArmorProfile"),
        (context(sysctls=[{"name": "kernel.msgmax", "value": "1"}]), "SysctlForbidden", "kernel.msgmax"),
        (
            pod(hostNetwork=True, securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}),
            "SysctlForbidden",
            "tcp_syncookies",
        ),
    ],
)
def test_pods_that_are_refused(asked: dict[str, Any], reason: str, word: str) -> None:
    found = refused_pod(asked, HANDLERS, "runp")
    assert found is not None and found[0] == reason and word in found[1]


def test_only_handlers_that_the_node_lacks_are_refused() -> None:
    asked = pod(runtimeClassName="small")
    for handler in ("runp", "runc"):
        asked["metadata"]["annotations"] = {"coterie.io/runtime-handler": handler}
        assert refused_pod(asked, HANDLERS, "runp") is None
        assert handler_of(asked, "crun") == handler
    for handler, why in (("kata", ""), ("gvisor", ": runsc is not installed")):
        asked["metadata"]["annotations"] = {"coterie.io/runtime-handler": handler}
        expected = (
            f'runtimeClassName: the handler "{handler}" of RuntimeClass "small" is not available on this node, '
            f"which has runp, runc{why}"
        )
        assert refused_pod(asked, HANDLERS, "runp") == ("NotAdmitted", expected)


def test_pods_without_a_class_get_the_default_handler() -> None:
    assert handler_of(pod(), "runc") == "runc"
    assert refused_pod(pod(), HANDLERS, "runc") is None
    found = refused_pod(pod(), HANDLERS, "gvisor")
    assert found is not None and 'the handler "gvisor" is not available' in found[1]


def test_pods_that_are_not() -> None:
    asked = context(
        runAsUser=1,
        fsGroup=2,
        fsGroupChangePolicy="OnRootMismatch",
        seccompProfile={"type": "RuntimeDefault"},
        appArmorProfile={"type": "Unconfined"},
        sysctls=[{"name": "net.ipv4.tcp_keepalive_time", "value": "77"}],
    )
    assert refused_pod(asked, HANDLERS, "runp") is None
    assert sysctls_of(asked) == {"net.ipv4.tcp_keepalive_time": "77"}


@pytest.mark.parametrize(
    "own",
    [
        {"procMount": "Unmasked"},
        {"seLinuxOptions": {"level": "s0"}},
        {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}},
    ],
)
def test_containers_that_are_refused(own: dict[str, Any]) -> None:
    container = {"name": "c", "securityContext": own}
    assert next(iter(own)) in refused_container(container)
    with pytest.raises(NoSuchConfig):
        security_of(pod(), container, PodSettings())


def test_capabilities_reach_the_runtime() -> None:
    asked = {"capabilities": {"add": ["SYS_CHROOT"], "drop": ["ALL"]}}
    given = security_of(pod(), {"name": "c", "securityContext": asked}, PodSettings())
    assert (given.add_capabilities, given.drop_capabilities) == (("SYS_CHROOT",), ("ALL",))


def test_the_page_names_what_is_refused() -> None:
    text = (Path(__file__).parents[3] / "docs" / "compatibility.md").read_text()
    for word in ("seLinuxOptions", "hostPID", "shareProcessNamespace", "runtimeClassName", "procMount", "capabilities"):
        assert word in text, word
