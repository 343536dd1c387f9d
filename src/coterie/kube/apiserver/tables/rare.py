"""Rows of kinds that few people look at: CSI, devices, flow control, runtime classes, addresses of Services, components."""

from __future__ import annotations

from coterie.kube.apiserver.tables.ages import age
from coterie.kube.apiserver.tables.columns import (
    AGE,
    NAME,
    NONE,
    UNSET,
    Cell,
    Cells,
    Object,
    TableColumn,
    TableLayout,
    number,
    text,
)
from coterie.kube.apiserver.tables.formats import created, items, name_of, part


def _boolean(name: str, description: str) -> TableColumn:
    return TableColumn(name, type="boolean", description=description)


# ---- storage --------------------------------------------------------------------------------------------------------


def csi_driver(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    requests = spec.get("tokenRequests")
    return [
        name_of(obj),
        bool(spec.get("attachRequired", True)),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        UNSET if requests is None else ",".join(each.get("audience") or "" for each in requests),
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or ()) or NONE,
        age(created(obj), now),
    ]


def csi_node(obj: Object, now: float) -> Cells:
    return [name_of(obj), len(items(part(obj, "spec"), "drivers")), age(created(obj), now)]


def csi_storage_capacity(obj: Object, now: float) -> Cells:
    capacity = obj.get("capacity")
    return [name_of(obj), obj.get("storageClassName") or "", UNSET if capacity is None else str(capacity)]


def volume_attachment(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    return [
        name_of(obj),
        spec.get("attacher") or "",
        part(spec, "source").get("persistentVolumeName") or "",
        spec.get("nodeName") or "",
        bool(part(obj, "status").get("attached")),
        age(created(obj), now),
    ]


def volume_attributes_class(obj: Object, now: float) -> Cells:
    return [name_of(obj), obj.get("driverName") or "", age(created(obj), now)]


def only_age(obj: Object, now: float) -> Cells:
    return [name_of(obj), age(created(obj), now)]


# ---- devices --------------------------------------------------------------------------------------------------------


def resource_claim(obj: Object, now: float) -> Cells:
    return [name_of(obj), _claim_state(obj), age(created(obj), now)]


def _claim_state(obj: Object) -> str:
    deleted, status = bool(obj["metadata"].get("deletionTimestamp")), part(obj, "status")
    states = ["deleted"] if deleted else []
    if status.get("allocation") is None:
        states += [] if deleted else ["pending"]
    else:
        states += ["allocated", "reserved"] if status.get("reservedFor") else ["allocated"]
    return ",".join(states)


def resource_slice(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    pool = part(spec, "pool").get("name") or ""
    return [name_of(obj), spec.get("nodeName") or "", spec.get("driver") or "", pool, age(created(obj), now)]


# ---- flow control ---------------------------------------------------------------------------------------------------


def flow_schema(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    conditions = items(part(obj, "status"), "conditions")
    dangling = next((each.get("status") or "" for each in conditions if each.get("type") == "Dangling"), "?")
    return [
        name_of(obj),
        part(spec, "priorityLevelConfiguration").get("name") or "",
        spec.get("matchingPrecedence") or 0,
        part(spec, "distinguisherMethod").get("type") or NONE,
        age(created(obj), now),
        dangling,
    ]


def priority_level(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    limited = part(spec, "limited")
    queuing = part(part(limited, "limitResponse"), "queuing")

    def shown(source: Object, key: str) -> Cell:
        value: Cell = source.get(key)
        return NONE if value is None else value

    return [
        name_of(obj),
        spec.get("type") or "",
        shown(limited, "nominalConcurrencyShares"),
        shown(queuing, "queues"),
        shown(queuing, "handSize"),
        shown(queuing, "queueLengthLimit"),
        age(created(obj), now),
    ]


# ---- the rest -------------------------------------------------------------------------------------------------------


def runtime_class(obj: Object, now: float) -> Cells:
    return [name_of(obj), obj.get("handler") or "", age(created(obj), now)]


def ip_address(obj: Object, now: float) -> Cells:
    parent = part(obj, "spec").get("parentRef")
    shown = NONE
    if parent:
        group, resource = parent.get("group"), parent.get("resource") or ""
        names = (f"{resource}.{group}" if group else resource, parent.get("namespace"), parent.get("name") or "")
        shown = "/".join(name for name in names if name)
    return [name_of(obj), shown, age(created(obj), now)]


def service_cidr(obj: Object, now: float) -> Cells:
    return [name_of(obj), ",".join(part(obj, "spec").get("cidrs") or ()), age(created(obj), now)]


def component_status(obj: Object, now: float) -> Cells:
    for condition in items(obj, "conditions"):
        if condition.get("type") == "Healthy":
            state = "Healthy" if condition.get("status") == "True" else "Unhealthy"
            return [name_of(obj), state, condition.get("message") or "", condition.get("error") or ""]
    return [name_of(obj), "Unknown", "", ""]


_FLOW, _STORAGE, _NETWORK = "flowcontrol.apiserver.k8s.io", "storage.k8s.io", "networking.k8s.io"

RARE: dict[tuple[str, str], TableLayout] = {
    ("", "componentstatuses"): TableLayout(
        (
            NAME,
            text("Status", "Whether the component is healthy."),
            text("Message", "What the component says."),
            text("Error", "What is wrong with it."),
        ),
        component_status,
    ),
    (_FLOW, "flowschemas"): TableLayout(
        (
            NAME,
            text("PriorityLevel", "Priority level of the requests."),
            text("MatchingPrecedence", "The schema with the lowest number that matches a request is taken."),
            text("DistinguisherMethod", "What makes two requests of one flow."),
            AGE,
            text("MissingPL", "Whether the priority level does not exist."),
        ),
        flow_schema,
    ),
    (_FLOW, "prioritylevelconfigurations"): TableLayout(
        (
            NAME,
            text("Type", "Whether requests of this level are limited."),
            text("NominalConcurrencyShares", "Share of the server's concurrency."),
            text("Queues", "Number of queues."),
            text("HandSize", "Queues of one flow."),
            text("QueueLengthLimit", "Requests that may wait in one queue."),
            AGE,
        ),
        priority_level,
    ),
    (_NETWORK, "ipaddresses"): TableLayout((NAME, text("ParentRef", "Who has the address."), AGE), ip_address),
    (_NETWORK, "servicecidrs"): TableLayout((NAME, text("CIDRs", "Ranges of addresses."), AGE), service_cidr),
    ("node.k8s.io", "runtimeclasses"): TableLayout(
        (NAME, text("Handler", "Runtime that runs the pods."), AGE), runtime_class
    ),
    ("resource.k8s.io", "deviceclasses"): TableLayout((NAME, AGE), only_age),
    ("resource.k8s.io", "resourceclaimtemplates"): TableLayout((NAME, AGE), only_age),
    ("resource.k8s.io", "resourceclaims"): TableLayout(
        (NAME, text("State", "Whether devices are allocated, and reserved for pods."), AGE), resource_claim
    ),
    ("resource.k8s.io", "resourceslices"): TableLayout(
        (
            NAME,
            text("Node", "Node that has the devices."),
            text("Driver", "Driver of the devices."),
            text("Pool", "Pool that the devices belong to."),
            AGE,
        ),
        resource_slice,
    ),
    (_STORAGE, "csidrivers"): TableLayout(
        (
            NAME,
            _boolean("AttachRequired", "Whether volumes are attached before they are mounted."),
            _boolean("PodInfoOnMount", "Whether the driver is told about the pod."),
            _boolean("StorageCapacity", "Whether the driver tells its capacity."),
            text("TokenRequests", "Audiences of the tokens that the driver gets."),
            _boolean("RequiresRepublish", "Whether volumes are published again and again."),
            text("Modes", "Life cycles that the driver supports."),
            AGE,
        ),
        csi_driver,
    ),
    (_STORAGE, "csinodes"): TableLayout((NAME, number("Drivers", "Number of drivers on the node."), AGE), csi_node),
    (_STORAGE, "csistoragecapacities"): TableLayout(
        (NAME, text("StorageClassName", "Class of the volumes."), text("Capacity", "What is left.")),
        csi_storage_capacity,
    ),
    (_STORAGE, "volumeattachments"): TableLayout(
        (
            NAME,
            text("Attacher", "Driver that attaches the volume."),
            text("PV", "The volume."),
            text("Node", "Node that the volume is attached to."),
            _boolean("Attached", "Whether the volume is attached."),
            AGE,
        ),
        volume_attachment,
    ),
    (_STORAGE, "volumeattributesclasses"): TableLayout(
        (NAME, text("DriverName", "Driver that changes the attributes."), AGE), volume_attributes_class
    ),
}
