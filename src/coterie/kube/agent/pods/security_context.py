"""What a pod asks for that this agent cannot give is refused; nothing of a security context is accepted and ignored.

done       runAsUser, runAsGroup, runAsNonRoot, fsGroup, supplementalGroups, readOnlyRootFilesystem, privileged (with
           agent.allowPrivileged), allowPrivilegeEscalation, capabilities, seccompProfile RuntimeDefault and Unconfined,
           the sysctls below
refused    seLinuxOptions, windowsOptions, procMount Unmasked, profiles of the machine (Localhost) for seccomp and
           AppArmor, other sysctls, hostPID, hostIPC, shareProcessNamespace, a RuntimeClass whose handler this node
           does not have
no effect  fsGroupChangePolicy (volumes of a pod are made for it, so both values mean the same)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.runtimes.protocol import RuntimeHandler
from coterie.kube.api.labels import COTERIE_RUNTIME_HANDLER
from coterie.kube.api.meta import Object

SYSCTL_FORBIDDEN = "SysctlForbidden"
SYSCTLS = frozenset(
    (
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    )
)
"""Those that Kubernetes calls safe and that belong to the network of a pod."""


def handler_of(pod: Object, default: str) -> str:
    """The runtime handler of a pod: that of its RuntimeClass, which admission wrote down, else the node's default."""
    return (pod["metadata"].get("annotations") or {}).get(COTERIE_RUNTIME_HANDLER) or default


def any_privileged(pod: Object) -> bool:
    """Whether a container of the pod asks to be privileged."""
    spec = pod_model.spec_of(pod)
    kinds = ("initContainers", "containers", "ephemeralContainers")
    containers = [container for kind in kinds for container in spec.get(kind) or ()]
    return any((container.get("securityContext") or {}).get("privileged") for container in containers)


def refused_pod(pod: Object, handlers: Sequence[RuntimeHandler], default: str) -> tuple[str, str] | None:
    """(reason, message) of a pod that cannot run here as it asks to. `default`: the handler of pods without a class."""
    spec = pod_model.spec_of(pod)
    for field in ("hostPID", "hostIPC", "shareProcessNamespace"):
        if spec.get(field):
            return "NotAdmitted", f"{field} is not supported: each container has process and IPC namespaces of its own"
    if why := _unsupported_field(spec):
        return "NotAdmitted", why
    if why := _no_handler(pod, handlers, default):
        return "NotAdmitted", why
    forbidden = [
        name for name in sysctls_of(pod) if name.replace("/", ".") not in SYSCTLS or bool(spec.get("hostNetwork"))
    ]
    if forbidden:
        return SYSCTL_FORBIDDEN, f"forbidden sysctl: {', '.join(sorted(forbidden))} not allowlisted"
    why = next(_ungiven(spec.get("securityContext") or {}), "")
    return ("NotAdmitted", f"securityContext.{why}") if why else None


def _no_handler(pod: Object, handlers: Sequence[RuntimeHandler], default: str) -> str:
    name = pod_model.spec_of(pod).get("runtimeClassName") or ""
    # Admission writes the handler of a class down; a pod that has a class and no handler did not pass it.
    handler = handler_of(pod, "" if name else default)
    if any(each.name == handler and each.available for each in handlers):
        return ""
    of = f'runtimeClassName: the handler "{handler}" of RuntimeClass "{name}"' if name else f'the handler "{handler}"'
    there = ", ".join(each.name for each in handlers if each.available) or "none"
    why = next((each.why for each in handlers if each.name == handler and each.why), "")
    return f"{of} is not available on this node, which has {there}" + (f": {why}" if why else "")


def _unsupported_field(spec: Object) -> str:
    """A field of the pod that would be ignored; empty: none."""
    if spec.get("resourceClaims"):
        return "resourceClaims is not supported: this node has no drivers of devices"
    for field in ("hostnameOverride", "schedulingGroup"):
        if spec.get(field):
            return f"{field} is not supported by this node"
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            if container.get("restartPolicyRules"):
                return f"container {container['name']}: restartPolicyRules is not supported by this node"
            if (container.get("lifecycle") or {}).get("stopSignal"):
                return f"container {container['name']}: lifecycle.stopSignal is not supported by this node"
            for variable in container.get("env") or ():
                if (variable.get("valueFrom") or {}).get("fileKeyRef"):
                    return f"container {container['name']}: env with fileKeyRef is not supported by this node"
    for volume in spec.get("volumes") or ():
        if any(source.get("podCertificate") for source in (volume.get("projected") or {}).get("sources") or ()):
            return f"volume {volume['name']}: podCertificate is not supported by this node"
    return ""


def refused_container(container: Object) -> str:
    """Why a container cannot run as it asks to; empty: it can."""
    own = container.get("securityContext") or {}
    why = next(_ungiven(own), "")
    if own.get("procMount") == "Unmasked":
        why = why or "procMount: Unmasked is not supported"
    return f"securityContext.{why}" if why else ""


def sysctls_of(pod: Object) -> Mapping[str, str]:
    context = pod_model.spec_of(pod).get("securityContext") or {}
    return {each["name"]: str(each.get("value") or "") for each in context.get("sysctls") or ()}


def _ungiven(context: Object) -> Iterator[str]:
    for field in ("seLinuxOptions", "windowsOptions"):
        if context.get(field):
            yield f"{field} is not supported"
    for field in ("seccompProfile", "appArmorProfile"):
        if (context.get(field) or {}).get("type") == "Localhost":
            yield f"{field}: profiles of the machine (Localhost) are not supported"
