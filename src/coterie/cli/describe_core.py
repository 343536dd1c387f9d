"""Descriptions of the Kubernetes kinds that people look at most, in kubectl's words."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from coterie.cli.describe_sheet import NONE, Sheet, moment, pairs, write_fields, write_value
from coterie.kube.apiserver.tables.cluster import node_roles
from coterie.kube.apiserver.tables.formats import selector
from coterie.kube.apiserver.tables.network import service_ports
from coterie.kube.apiserver.tables.pods import summarize

Object = dict[str, Any]


def pod(sheet: Sheet, obj: Object, now: float) -> None:
    spec, status, meta = obj.get("spec") or {}, obj.get("status") or {}, obj.get("metadata") or {}
    host = status.get("hostIP")
    sheet.field("Priority", spec.get("priority") or 0)
    sheet.field("Service Account", spec.get("serviceAccountName") or "default")
    sheet.field("Node", f"{spec.get('nodeName')}/{host}" if host else spec.get("nodeName") or NONE)
    if status.get("startTime"):
        sheet.field("Start Time", moment(status["startTime"]))
    if meta.get("deletionTimestamp"):
        grace = meta.get("deletionGracePeriodSeconds")
        sheet.field("Status", f"Terminating (since {moment(meta['deletionTimestamp'])}, grace {grace or 0}s)")
    else:
        sheet.field("Status", summarize(obj).status or "Pending")
    for name in ("reason", "message"):
        if status.get(name):
            sheet.field(name.title(), status[name])
    sheet.field("IP", status.get("podIP") or "")
    owner = next((ref for ref in meta.get("ownerReferences") or () if ref.get("controller")), None)
    if owner:
        sheet.field("Controlled By", f"{owner.get('kind')}/{owner.get('name')}")
    _containers(sheet, "Init Containers", spec.get("initContainers"), status.get("initContainerStatuses"))
    _containers(sheet, "Containers", spec.get("containers"), status.get("containerStatuses"))
    _condition_table(sheet, status, ("type", "status"))
    _volumes(sheet, spec.get("volumes") or [])
    if status.get("qosClass"):
        sheet.field("QoS Class", status["qosClass"])
    sheet.fields("Node-Selectors", pairs(spec.get("nodeSelector")))
    sheet.fields("Tolerations", [_toleration(t) for t in spec.get("tolerations") or ()])


def _containers(sheet: Sheet, heading: str, containers: list[Object] | None, statuses: list[Object] | None) -> None:
    if not containers:
        return
    by_name = {status.get("name"): status for status in statuses or ()}
    with sheet.section(heading):
        for container in containers:
            with sheet.section(container.get("name") or ""):
                _container(sheet, container, by_name.get(container.get("name")) or {})


def _container(sheet: Sheet, container: Object, status: Object) -> None:
    sheet.field("Container ID", status.get("containerID") or "")
    sheet.field("Image", container.get("image") or "")
    sheet.field("Image ID", status.get("imageID") or "")
    ports = [f"{p.get('containerPort')}/{p.get('protocol') or 'TCP'}" for p in container.get("ports") or ()]
    sheet.field("Ports" if len(ports) > 1 else "Port", ", ".join(ports) or NONE)
    for name in ("command", "args"):
        if container.get(name):
            with sheet.section(name.title()):
                for word in container[name]:
                    sheet.line(word)
    if status.get("state"):
        _state(sheet, "State", status["state"])
    if status.get("lastState"):
        _state(sheet, "Last State", status["lastState"])
    sheet.field("Ready", "True" if status.get("ready") else "False")
    sheet.field("Restart Count", status.get("restartCount") or 0)
    resources = container.get("resources") or {}
    for name in ("limits", "requests"):
        if resources.get(name):
            with sheet.section(name.title()):
                for key, amount in sorted(resources[name].items()):
                    sheet.field(key, amount)
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name):
            sheet.field(name.removesuffix("Probe").title(), _probe(container[name]))
    sheet.fields(
        "Environment",
        [_variable(v) for v in container.get("env") or ()] + [_source(s) for s in container.get("envFrom") or ()],
    )
    mounts = [
        f"{m.get('mountPath')} from {m.get('name')} ({'ro' if m.get('readOnly') else 'rw'})"
        for m in container.get("volumeMounts") or ()
    ]
    sheet.fields("Mounts", mounts)


def _state(sheet: Sheet, heading: str, state: Object) -> None:
    kind = next((k for k in ("running", "waiting", "terminated") if state.get(k) is not None), None)
    sheet.field(heading, (kind or "waiting").title())
    detail = state.get(kind or "") or {}
    for key, label in (("reason", "Reason"), ("message", "Message"), ("exitCode", "Exit Code"), ("signal", "Signal")):
        if detail.get(key) is not None:
            sheet.line(f"  {label}:", detail[key])
    for key, label in (("startedAt", "Started"), ("finishedAt", "Finished")):
        if detail.get(key):
            sheet.line(f"  {label}:", moment(detail[key]))


def _probe(probe: Object) -> str:
    how = "unknown"
    if probe.get("exec"):
        how = f"exec {' '.join(probe['exec'].get('command') or ())}"
    elif probe.get("httpGet"):
        get = probe["httpGet"]
        scheme = (get.get("scheme") or "HTTP").lower()
        how = f"http-get {scheme}://{get.get('host') or ''}:{get.get('port')}{get.get('path') or ''}"
    elif probe.get("tcpSocket"):
        how = f"tcp-socket {probe['tcpSocket'].get('host') or ''}:{probe['tcpSocket'].get('port')}"
    elif probe.get("grpc"):
        how = f"grpc :{probe['grpc'].get('port')} {probe['grpc'].get('service') or ''}".rstrip()
    return (
        f"{how} delay={probe.get('initialDelaySeconds') or 0}s timeout={probe.get('timeoutSeconds') or 1}s "
        f"period={probe.get('periodSeconds') or 10}s #success={probe.get('successThreshold') or 1} "
        f"#failure={probe.get('failureThreshold') or 3}"
    )


def _variable(variable: Object) -> str:
    source = variable.get("valueFrom") or {}
    name = variable.get("name")
    for key, what in (("secretKeyRef", "secret"), ("configMapKeyRef", "config map")):
        if source.get(key):
            return f"{name}: <set to the key '{source[key].get('key')}' in {what} '{source[key].get('name')}'>"
    if source.get("fieldRef"):
        return f"{name}: ({source['fieldRef'].get('apiVersion') or 'v1'}:{source['fieldRef'].get('fieldPath')})"
    if source.get("resourceFieldRef"):
        return f"{name}: ({source['resourceFieldRef'].get('resource')})"
    return f"{name}: {variable.get('value') or ''}"


def _source(source: Object) -> str:
    kind, what = (
        ("Secret", source["secretRef"]) if source.get("secretRef") else ("ConfigMap", source.get("configMapRef") or {})
    )
    prefix = f" with prefix '{source['prefix']}'" if source.get("prefix") else ""
    return f"all of {kind} {what.get('name')}{prefix}"


def _volumes(sheet: Sheet, volumes: list[Object]) -> None:
    if not volumes:
        sheet.field("Volumes", NONE)
        return
    with sheet.section("Volumes"):
        for volume in volumes:
            with sheet.section(volume.get("name") or ""):
                for kind in sorted(volume.keys() - {"name"}):
                    sheet.field("Type", kind[:1].upper() + kind[1:])
                    write_fields(sheet, volume[kind] or {})


def _toleration(toleration: Object) -> str:
    text = toleration.get("key") or ""
    if toleration.get("value"):
        text += f"={toleration['value']}"
    if toleration.get("effect"):
        text += f":{toleration['effect']}"
    if toleration.get("operator") == "Exists":
        text += " op=Exists"
    if toleration.get("tolerationSeconds") is not None:
        text += f" for {toleration['tolerationSeconds']}s"
    return text.strip()


def _condition_table(sheet: Sheet, status: Object, fields: tuple[str, ...]) -> None:
    conditions = status.get("conditions") or []
    if conditions:
        with sheet.section("Conditions"):
            rows = [
                [moment(c[f]) if f.endswith("Time") and c.get(f) else c.get(f) or "" for f in fields]
                for c in conditions
            ]
            headers = [f[:1].upper() + f[1:] for f in fields]
            sheet.table(headers, rows)


def node(sheet: Sheet, obj: Object, now: float) -> None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    sheet.field("Roles", ",".join(node_roles(obj)) or NONE)
    sheet.field("CreationTimestamp", moment((obj.get("metadata") or {}).get("creationTimestamp")))
    taints = [
        f"{t.get('key')}{'=' + t['value'] if t.get('value') else ''}:{t.get('effect')}"
        for t in spec.get("taints") or ()
    ]
    sheet.fields("Taints", taints)
    sheet.field("Unschedulable", "true" if spec.get("unschedulable") else "false")
    _condition_table(sheet, status, ("type", "status", "lastHeartbeatTime", "lastTransitionTime", "reason", "message"))
    with sheet.section("Addresses"):
        for address in status.get("addresses") or ():
            sheet.field(address.get("type") or "", address.get("address"))
    for name in ("capacity", "allocatable"):
        with sheet.section(name.title()):
            for key, amount in sorted((status.get(name) or {}).items()):
                sheet.field(key, amount)
    if status.get("nodeInfo"):
        write_value(sheet, "systemInfo", status["nodeInfo"])
    if spec.get("podCIDR"):
        sheet.field("PodCIDR", spec["podCIDR"])


def deployment(sheet: Sheet, obj: Object, now: float) -> None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    sheet.field("CreationTimestamp", moment((obj.get("metadata") or {}).get("creationTimestamp")))
    sheet.field("Selector", selector(spec.get("selector")) or NONE)
    sheet.field(
        "Replicas",
        f"{spec.get('replicas') or 0} desired | {status.get('updatedReplicas') or 0} updated | "
        f"{status.get('replicas') or 0} total | {status.get('availableReplicas') or 0} available | "
        f"{status.get('unavailableReplicas') or 0} unavailable",
    )
    strategy = spec.get("strategy") or {}
    sheet.field("StrategyType", strategy.get("type") or "")
    sheet.field("MinReadySeconds", spec.get("minReadySeconds") or 0)
    rolling = strategy.get("rollingUpdate")
    if rolling:
        sheet.field(
            "RollingUpdateStrategy",
            f"{rolling.get('maxUnavailable')} max unavailable, {rolling.get('maxSurge')} max surge",
        )
    template = spec.get("template") or {}
    with sheet.section("Pod Template"):
        sheet.fields("Labels", pairs((template.get("metadata") or {}).get("labels")))
        _containers(sheet, "Containers", (template.get("spec") or {}).get("containers"), None)
        _volumes(sheet, (template.get("spec") or {}).get("volumes") or [])
    _condition_table(sheet, status, ("type", "status", "reason"))


def service(sheet: Sheet, obj: Object, now: float) -> None:
    spec = obj.get("spec") or {}
    sheet.fields("Selector", [",".join(pairs(spec.get("selector"))) or NONE])
    sheet.field("Type", spec.get("type") or "ClusterIP")
    sheet.field("IP", spec.get("clusterIP") or NONE)
    sheet.field("IPs", ",".join(spec.get("clusterIPs") or ()) or NONE)
    if spec.get("externalIPs"):
        sheet.field("External IPs", ",".join(spec["externalIPs"]))
    if spec.get("externalName"):
        sheet.field("External Name", spec["externalName"])
    ingress = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    if ingress:
        sheet.field("LoadBalancer Ingress", ", ".join(i.get("ip") or i.get("hostname") or "" for i in ingress))
    for port in spec.get("ports") or ():
        text = service_ports({"ports": [port]})
        sheet.field("Port", f"{port['name']} {text}" if port.get("name") else text)
        sheet.field("TargetPort", port.get("targetPort", port.get("port")))
    sheet.field("Session Affinity", spec.get("sessionAffinity") or "None")


def namespace(sheet: Sheet, obj: Object, now: float) -> None:
    status = obj.get("status") or {}
    sheet.field("Status", status.get("phase") or "")
    _condition_table(sheet, status, ("type", "status", "reason", "message"))


def config_map(sheet: Sheet, obj: Object, now: float) -> None:
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    with sheet.section("Data"):
        for key in sorted(data):
            with sheet.section(key):
                for line in str(data[key]).splitlines():
                    sheet.line(line)
    if binary:
        with sheet.section("Binary Data"):
            for key in sorted(binary):
                sheet.field(key, _decoded_size(binary[key]))


def secret(sheet: Sheet, obj: Object, now: float) -> None:
    sheet.field("Type", obj.get("type") or "Opaque")
    data = obj.get("data") or {}
    with sheet.section("Data"):
        for key in sorted(data):
            sheet.field(key, _decoded_size(data[key]))


def _decoded_size(value: Any) -> str:
    """Bytes of a value that travels as base64; its own length when it is none."""
    text = str(value)
    try:
        return f"{len(base64.b64decode(text, validate=True))} bytes"
    except (binascii.Error, ValueError):
        return f"{len(text.encode())} bytes"
