"""Rows of nodes, namespaces, events, configuration, access rules and the API's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coterie.kube.apiserver.tables.ages import UNKNOWN, age, human_duration
from coterie.kube.apiserver.tables.columns import (
    AGE,
    NAME,
    NONE,
    UNSET,
    Cells,
    Object,
    TableColumn,
    TableLayout,
    number,
    text,
)
from coterie.kube.apiserver.tables.formats import created, items, name_of, part

_ROLE_PREFIX = "node-role.kubernetes.io/"


def node(obj: Object, now: float) -> Cells:
    status = part(obj, "status")
    info = part(status, "nodeInfo")
    return [
        name_of(obj),
        node_state(obj),
        ",".join(node_roles(obj)) or NONE,
        age(created(obj), now),
        info.get("kubeletVersion") or "",
        _address(status, "InternalIP"),
        _address(status, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def node_state(obj: Object) -> str:
    ready = [c for c in items(part(obj, "status"), "conditions") if c.get("type") == "Ready"]
    states = ("Ready" if ready[-1].get("status") == "True" else "NotReady") if ready else "Unknown"
    return states + ",SchedulingDisabled" if part(obj, "spec").get("unschedulable") else states


def node_roles(obj: Object) -> list[str]:
    """Roles that the labels of a node tell, in both ways of telling them."""
    labels = part(obj["metadata"], "labels")
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    roles.add(labels.get("kubernetes.io/role") or "")
    return sorted(roles - {""})


def _address(status: Object, kind: str) -> str:
    return next((a.get("address") or "" for a in items(status, "addresses") if a.get("type") == kind), NONE)


def signing_request(obj: Object, now: float) -> Cells:
    spec, status = part(obj, "spec"), part(obj, "status")
    seconds = spec.get("expirationSeconds")
    types = {each.get("type") for each in items(status, "conditions")}
    shown = ["Denied" if "Denied" in types else "Approved" if "Approved" in types else "Pending"]
    shown += ["Failed"] if "Failed" in types else []
    shown += ["Issued"] if status.get("certificate") else []
    return [
        name_of(obj),
        age(created(obj), now),
        spec.get("signerName") or NONE,
        spec.get("username") or "",
        NONE if seconds is None else human_duration(seconds),
        ",".join(shown),
    ]


def namespace(obj: Object, now: float) -> Cells:
    return [name_of(obj), part(obj, "status").get("phase") or "", age(created(obj), now)]


def event(obj: Object, now: float) -> Cells:
    """Both spellings of an event: that of core/v1 and that of events.k8s.io/v1."""
    about = obj.get("involvedObject") or part(obj, "regarding")
    first_time = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    first = age(first_time, now)
    last_time = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp")
    last = age(last_time, now) if last_time else first
    count = obj.get("count") or obj.get("deprecatedCount") or 1
    series = obj.get("series")
    if series:
        last, count = age(series.get("lastObservedTime"), now), series.get("count") or 0
    kind = (about.get("kind") or "").lower()
    return [
        last,
        obj.get("type") or "",
        obj.get("reason") or "",
        f"{kind}/{about['name']}" if about.get("name") else kind,
        about.get("fieldPath") or "",
        event_source(obj),
        (obj.get("message") or obj.get("note") or "").strip(),
        first,
        count,
        name_of(obj),
    ]


def event_source(obj: Object) -> str:
    source = obj.get("source") or part(obj, "deprecatedSource")
    component = source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    instance = source.get("host") or obj.get("reportingInstance") or ""
    return f"{component}, {instance}" if instance else component


def secret(obj: Object, now: float) -> Cells:
    return [name_of(obj), obj.get("type") or "", len(part(obj, "data")), age(created(obj), now)]


def config_map(obj: Object, now: float) -> Cells:
    return [name_of(obj), len(part(obj, "data")) + len(part(obj, "binaryData")), age(created(obj), now)]


def service_account(obj: Object, now: float) -> Cells:
    return [name_of(obj), len(items(obj, "secrets")), age(created(obj), now)]


def resource_quota(obj: Object, now: float) -> Cells:
    status = part(obj, "status")
    hard, used = part(status, "hard"), part(status, "used")
    amounts = [(name, f"{name}: {used.get(name, 0)}/{hard[name]}") for name in sorted(hard)]
    limits = [amount for name, amount in amounts if name.startswith("limits.")]
    requests = [amount for name, amount in amounts if not name.startswith("limits.")]
    return [name_of(obj), ", ".join(requests), ", ".join(limits), age(created(obj), now)]


def priority_class(obj: Object, now: float) -> Cells:
    return [
        name_of(obj),
        obj.get("value") or 0,
        bool(obj.get("globalDefault")),
        age(created(obj), now),
        obj.get("preemptionPolicy") or "",
    ]


def lease(obj: Object, now: float) -> Cells:
    return [name_of(obj), part(obj, "spec").get("holderIdentity") or "", age(created(obj), now)]


def role_binding(obj: Object, now: float) -> Cells:
    role = part(obj, "roleRef")
    subjects = items(obj, "subjects")
    accounts = (
        f"{s.get('namespace') or ''}/{s.get('name') or ''}" for s in subjects if s.get("kind") == "ServiceAccount"
    )
    return [
        name_of(obj),
        f"{role.get('kind') or ''}/{role.get('name') or ''}",
        age(created(obj), now),
        ", ".join(_named(subjects, "User")),
        ", ".join(_named(subjects, "Group")),
        ", ".join(accounts),
    ]


def _named(subjects: Iterable[Object], kind: str) -> list[str]:
    return [subject.get("name") or "" for subject in subjects if subject.get("kind") == kind]


def api_service(obj: Object, now: float) -> Cells:
    service = part(obj, "spec").get("service")
    available = next((c for c in items(part(obj, "status"), "conditions") if c.get("type") == "Available"), None)
    availability = "Unknown"
    if available is not None:
        availability = available.get("status") or "Unknown"
        if availability != "True":
            availability = f"{availability} ({available.get('reason') or ''})"
    return [
        name_of(obj),
        f"{service.get('namespace') or ''}/{service.get('name') or ''}" if service else "Local",
        availability,
        age(created(obj), now),
    ]


def plain(obj: Object, now: float) -> Cells:
    """Kinds that Kubernetes gives no columns of their own: the time itself, not the age."""
    return [name_of(obj), created(obj) or ""]


PLAIN = TableLayout((NAME, TableColumn("Created At", type="date", description="When the object was created.")), plain)

_EVENTS = TableLayout(
    (
        text("Last Seen", "Time since it happened last."),
        text("Type", "Normal or Warning."),
        text("Reason", "Why it was recorded, in a word."),
        text("Object", "What it is about."),
        text("Subobject", "Part of the object it is about.", 1),
        text("Source", "Who recorded it.", 1),
        text("Message", "What happened."),
        text("First Seen", "Time since it happened first.", 1),
        text("Count", "How often it happened.", 1),
        TableColumn("Name", format="name", description="Name of the event.", priority=1),
    ),
    event,
)
_BINDING = TableLayout(
    (
        NAME,
        text("Role", "Role that is given."),
        AGE,
        text("Users", "Users who get it.", 1),
        text("Groups", "Groups that get it.", 1),
        text("ServiceAccounts", "Service accounts that get it.", 1),
    ),
    role_binding,
)


def _admission_policy(counted: str) -> Callable[[Object, float], Cells]:
    def cells(obj: Object, now: float) -> Cells:
        spec = part(obj, "spec")
        kind = part(spec, "paramKind")
        shown = f"{kind.get('apiVersion')}/{kind.get('kind')}" if kind else UNSET
        return [name_of(obj), len(items(spec, counted)), shown, age(created(obj), now)]

    return cells


def admission_policy_binding(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    ref = part(spec, "paramRef")
    shown = UNSET
    if ref.get("name"):
        shown = f"{ref.get('namespace') or '*'}/{ref['name']}"
    elif ref:
        shown = f"{ref.get('namespace') or '*'}/*"
    return [name_of(obj), spec.get("policyName") or "", shown, age(created(obj), now)]


_PARAM_KIND = text("ParamKind", "Kind of the objects that parameterize the policy.")
_POLICY_BINDING = TableLayout(
    (NAME, text("PolicyName", "Policy that is bound."), text("ParamRef", "Objects that parameterize the policy."), AGE),
    admission_policy_binding,
)
_WEBHOOKS = TableLayout(
    (NAME, number("Webhooks", "Number of webhooks."), AGE),
    lambda obj, now: [name_of(obj), len(items(obj, "webhooks")), age(created(obj), now)],
)
_ADMISSION = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io"

CLUSTER: dict[tuple[str, str], TableLayout] = {
    ("", "configmaps"): TableLayout((NAME, text("Data", "Number of entries."), AGE), config_map),
    ("", "events"): _EVENTS,
    ("events.k8s.io", "events"): _EVENTS,
    ("", "namespaces"): TableLayout((NAME, text("Status", "Active or Terminating."), AGE), namespace),
    ("", "nodes"): TableLayout(
        (
            NAME,
            text("Status", "Whether the node takes pods."),
            text("Roles", "Roles of the node."),
            AGE,
            text("Version", "Version of the node agent."),
            text("Internal-IP", "Address inside the cluster.", 1),
            text("External-IP", "Address outside the cluster.", 1),
            text("OS-Image", "Operating system.", 1),
            text("Kernel-Version", "Version of the kernel.", 1),
            text("Container-Runtime", "What runs the containers.", 1),
        ),
        node,
    ),
    ("", "resourcequotas"): TableLayout(
        (
            NAME,
            text("Request", "Used and allowed amounts that are requested."),
            text("Limit", "Used and allowed amounts of limits."),
            AGE,
        ),
        resource_quota,
    ),
    ("", "secrets"): TableLayout(
        (NAME, text("Type", "What the secret is for."), text("Data", "Number of entries."), AGE), secret
    ),
    ("", "serviceaccounts"): TableLayout((NAME, text("Secrets", "Number of secrets."), AGE), service_account),
    (_ADMISSION, "mutatingadmissionpolicies"): TableLayout(
        (NAME, number("Mutations", "Number of mutations."), _PARAM_KIND, AGE), _admission_policy("mutations")
    ),
    (_ADMISSION, "mutatingadmissionpolicybindings"): _POLICY_BINDING,
    (_ADMISSION, "mutatingwebhookconfigurations"): _WEBHOOKS,
    (_ADMISSION, "validatingadmissionpolicies"): TableLayout(
        (NAME, number("Validations", "Number of validations."), _PARAM_KIND, AGE), _admission_policy("validations")
    ),
    (_ADMISSION, "validatingadmissionpolicybindings"): _POLICY_BINDING,
    (_ADMISSION, "validatingwebhookconfigurations"): _WEBHOOKS,
    ("apiregistration.k8s.io", "apiservices"): TableLayout(
        (
            NAME,
            text("Service", "Service that answers, or Local."),
            text("Available", "Whether the version can be asked."),
            AGE,
        ),
        api_service,
    ),
    ("certificates.k8s.io", "certificatesigningrequests"): TableLayout(
        (
            NAME,
            AGE,
            text("SignerName", "Who is asked to sign."),
            text("Requestor", "Who asked."),
            text("RequestedDuration", "How long the certificate should be valid."),
            text("Condition", "What was decided."),
        ),
        signing_request,
    ),
    ("coordination.k8s.io", "leases"): TableLayout((NAME, text("Holder", "Who holds the lease."), AGE), lease),
    (_RBAC, "clusterrolebindings"): _BINDING,
    (_RBAC, "rolebindings"): _BINDING,
    ("scheduling.k8s.io", "priorityclasses"): TableLayout(
        (
            NAME,
            number("Value", "Priority of pods of this class."),
            TableColumn("Global-Default", type="boolean", description="Whether pods without a class get this one."),
            AGE,
            text("PreemptionPolicy", "Whether such pods may displace others."),
        ),
        priority_class,
    ),
}
