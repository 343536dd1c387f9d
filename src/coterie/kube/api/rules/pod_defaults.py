"""What Kubernetes fills into pods and pod templates before anything else looks at them.

Templates get all of `default_pod_spec`; a real pod gets `default_pod` on top (requests from limits, service links, host
ports), so that a workload's template keeps saying only what its author meant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from coterie.kube.api.rules.base import Obj, setdefaults
from coterie.kube.api.rules.common import canonicalize

DEFAULT_MODE = 420


def default_pod(pod: Obj) -> None:
    spec = pod.get("spec")
    if not spec:
        return
    default_pod_spec(spec)
    if spec.get("enableServiceLinks") is None:
        spec["enableServiceLinks"] = True
    host_network = spec.get("hostNetwork")
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or ():
            resources = container["resources"]
            if limits := resources.get("limits"):
                resources["requests"] = {**limits, **(resources.get("requests") or {})}
            if host_network:
                for port in container.get("ports") or ():
                    if not port.get("hostPort") and port.get("containerPort"):
                        port["hostPort"] = port["containerPort"]


def default_template(template: Obj | None) -> None:
    if template and template.get("spec") is not None:
        default_pod_spec(template["spec"])


def default_pod_spec(spec: Obj) -> None:
    get = spec.get
    if not get("restartPolicy"):
        spec["restartPolicy"] = "Always"
    if not get("dnsPolicy"):
        spec["dnsPolicy"] = "ClusterFirst"
    if not get("schedulerName"):
        spec["schedulerName"] = "default-scheduler"
    if get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = 30
    if get("securityContext") is None:
        spec["securityContext"] = {}
    # The deprecated name is an alias in both directions.
    if account := get("serviceAccountName") or get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in get("containers") or ():
        _default_container(container)
    for container in get("initContainers") or ():
        _default_container(container)
    for container in get("ephemeralContainers") or ():
        _default_container(container)
    for volume in get("volumes") or ():
        default_volume(volume)
    if overhead := get("overhead"):
        canonicalize(overhead)


def _default_container(container: Obj) -> None:
    get = container.get
    if not get("terminationMessagePath"):
        container["terminationMessagePath"] = "/dev/termination-log"
    if not get("terminationMessagePolicy"):
        container["terminationMessagePolicy"] = "File"
    if not get("imagePullPolicy"):
        container["imagePullPolicy"] = pull_policy(get("image") or "")
    resources = get("resources")
    if resources is None:
        container["resources"] = {}
    elif resources:
        canonicalize(resources.get("limits"))
        canonicalize(resources.get("requests"))
    if ports := get("ports"):
        for port in ports:
            if not port.get("protocol"):
                port["protocol"] = "TCP"
    if env := get("env"):
        for item in env:
            if (source := item.get("valueFrom")) and (ref := source.get("fieldRef")) and not ref.get("apiVersion"):
                ref["apiVersion"] = "v1"
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := get(key):
            _default_probe(probe)
    if lifecycle := get("lifecycle"):
        for key in ("postStart", "preStop"):
            if hook := lifecycle.get(key):
                _default_http_get(hook)


@lru_cache(maxsize=1024)
def pull_policy(image: str) -> str:
    """`Always` for images that can move (tag `latest` or none), else `IfNotPresent`."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_probe(probe: Obj) -> None:
    # Zero means "not given" here, as in Go.
    probe["timeoutSeconds"] = probe.get("timeoutSeconds") or 1
    probe["periodSeconds"] = probe.get("periodSeconds") or 10
    probe["successThreshold"] = probe.get("successThreshold") or 1
    probe["failureThreshold"] = probe.get("failureThreshold") or 3
    _default_http_get(probe)
    if (grpc := probe.get("grpc")) and grpc.get("service") is None:
        grpc["service"] = ""


def _default_http_get(handler: Obj) -> None:
    if action := handler.get("httpGet"):
        setdefaults(action, path="/", scheme="HTTP")


# ---- volumes ------------------------------------------------------------------------------------------------------


def _default_mode(source: Obj) -> None:
    if source.get("defaultMode") is None:
        source["defaultMode"] = DEFAULT_MODE


def _default_field_refs(source: Obj) -> None:
    for item in source.get("items") or ():
        if (ref := item.get("fieldRef")) and not ref.get("apiVersion"):
            ref["apiVersion"] = "v1"


def _default_downward(source: Obj) -> None:
    _default_mode(source)
    _default_field_refs(source)


def _default_projected(source: Obj) -> None:
    _default_mode(source)
    for part in source.get("sources") or ():
        if downward := part.get("downwardAPI"):
            _default_field_refs(downward)
        if (token := part.get("serviceAccountToken")) is not None and token.get("expirationSeconds") is None:
            token["expirationSeconds"] = 3600


def _default_ephemeral(source: Obj) -> None:
    template = source.get("volumeClaimTemplate") or {}
    if (spec := template.get("spec")) is not None:
        default_claim_spec(spec)


def default_claim_spec(spec: Obj) -> None:
    if not spec.get("volumeMode"):
        spec["volumeMode"] = "Filesystem"
    resources = spec.get("resources") or {}
    canonicalize(resources.get("requests"))
    canonicalize(resources.get("limits"))


def _default_empty_dir(source: Obj) -> None:
    if source.get("sizeLimit") is not None:
        canonicalize(source_limit := {"sizeLimit": source["sizeLimit"]})
        source["sizeLimit"] = source_limit["sizeLimit"]


def _filler(**values: Any) -> Callable[[Obj], None]:
    def fill(source: Obj) -> None:
        setdefaults(source, **values)

    return fill


SOURCE_DEFAULTS: dict[str, Callable[[Obj], None]] = {
    "secret": _default_mode,
    "configMap": _default_mode,
    "downwardAPI": _default_downward,
    "projected": _default_projected,
    "ephemeral": _default_ephemeral,
    "emptyDir": _default_empty_dir,
    "hostPath": _filler(type=""),
    "iscsi": _filler(iscsiInterface="default"),
    "rbd": _filler(pool="rbd", user="admin", keyring="/etc/ceph/keyring"),
    "azureDisk": _filler(cachingMode="ReadWrite", fsType="ext4", readOnly=False, kind="Shared"),
    "scaleIO": _filler(storageMode="ThinProvisioned", fsType="xfs"),
}


def default_volume(volume: Obj) -> None:
    found = False
    for key, source in volume.items():
        if key == "name" or source is None:
            continue
        found = True
        if fill := SOURCE_DEFAULTS.get(key):
            fill(source)
    if not found:
        volume["emptyDir"] = {}
