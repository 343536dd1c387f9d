"""What a security context asks for is done or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.kube.agent.pods.containers import security_of
from coterie.kube.agent.pods.downward import NoSuchConfig
from coterie.kube.agent.pods.security_context import refused_container, refused_pod, sysctls_of
from coterie.kube.agent.settings import PodSettings


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
    found = refused_pod(asked)
    assert found is not None and found[0] == reason and word in found[1]


def test_a_runtime_class_with_our_handler_is_taken() -> None:
    asked = pod(runtimeClassName="small")
    asked["metadata"]["annotations"] = {"coterie.io/runtime-handler": "runp"}
    assert refused_pod(asked) is None
    asked["metadata"]["annotations"] = {"coterie.io/runtime-handler": "kata"}
    why = 'runtimeClassName: the handler "kata" of RuntimeClass "small" is not supported by this node: it has "runp"'
    assert refused_pod(asked) == ("NotAdmitted", why)


def test_pods_that_are_not() -> None:
    asked = context(
        runAsUser=1,
        fsGroup=2,
        fsGroupChangePolicy="OnRootMismatch",
        seccompProfile={"type": "RuntimeDefault"},
        appArmorProfile={"type": "Unconfined"},
        sysctls=[{"name": "net.ipv4.tcp_keepalive_time", "value": "77"}],
    )
    assert refused_pod(asked) is None
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
