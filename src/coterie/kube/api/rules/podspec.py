"""What is wrong with a pod's spec, wherever it stands: in a pod, or in the template of a workload.

`path` is the place of the spec (`spec`, `spec.template.spec`, `spec.jobTemplate.spec.template.spec`).
"""

from __future__ import annotations

from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import (
    dns_label_faults,
    dns_subdomain_faults,
    qualified_name_faults,
    validate_annotations,
    validate_labels,
)
from coterie.kube.api.rules.base import Errors, Obj
from coterie.kube.api.rules.common import check_resource_list, one_of, optional_named, valid_ip
from coterie.kube.api.rules.containers import (
    check_container,
    check_ephemeral_container,
    check_host_ports,
    check_ids,
    check_init_container,
    check_resize_policies,
    check_seccomp,
)
from coterie.kube.api.rules.scheduling import (
    check_affinity,
    check_host_aliases,
    check_tolerations,
    check_topology_spread,
)
from coterie.kube.api.rules.volumes import check_volumes
from coterie.kube.api.selectors import selector_of, validate_selector

RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_MAX_SECONDS = 2**31 - 1


def check_pod_spec(spec: Obj, path: str = "spec") -> Errors:
    errors: Errors = []
    get = spec.get
    by_name: dict[str, Obj] = {}
    if volumes := get("volumes"):
        by_name, errors = check_volumes(volumes, f"{path}.volumes")
    errors += _check_containers(spec, path, by_name)
    if get("restartPolicy") not in RESTART_POLICIES:
        errors += one_of(get("restartPolicy"), RESTART_POLICIES, f"{path}.restartPolicy")
    if get("dnsPolicy") not in _DNS_POLICIES:
        errors += one_of(get("dnsPolicy"), _DNS_POLICIES, f"{path}.dnsPolicy")
    if get("dnsPolicy") == "None" or get("dnsConfig"):
        errors += _check_dns(spec, f"{path}.dnsConfig")
    deadline = get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _MAX_SECONDS:
        why = f"must be between 1 and {_MAX_SECONDS}, inclusive"
        errors.append(invalid(f"{path}.activeDeadlineSeconds", deadline, why))
    if context := get("securityContext"):
        errors += _check_security(context, f"{path}.securityContext")
    if get("hostPID") and get("shareProcessNamespace"):
        why = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.append(invalid(f"{path}.shareProcessNamespace", True, why))
    for key, rule in _NAMED_FIELDS:
        if (value := get(key)) and rule(value):
            errors += optional_named(value, f"{path}.{key}", rule)
    if selector := get("nodeSelector"):
        errors += validate_labels(selector, f"{path}.nodeSelector")
    if tolerations := get("tolerations"):
        errors += check_tolerations(tolerations, f"{path}.tolerations")
    if affinity := get("affinity"):
        errors += check_affinity(affinity, f"{path}.affinity")
    if constraints := get("topologySpreadConstraints"):
        errors += check_topology_spread(constraints, f"{path}.topologySpreadConstraints")
    if aliases := get("hostAliases"):
        errors += check_host_aliases(aliases, f"{path}.hostAliases")
    if gates := get("schedulingGates"):
        errors += _check_scheduling_gates(gates, f"{path}.schedulingGates")
    if gates := get("readinessGates"):
        for index, gate in enumerate(gates):
            kind = gate.get("conditionType") or ""
            errors += [
                invalid(f"{path}.readinessGates[{index}].conditionType", kind, fault)
                for fault in qualified_name_faults(kind)
            ]
    if overhead := get("overhead"):
        errors += check_resource_list(overhead, f"{path}.overhead")
    if (system := get("os")) and system.get("name") not in ("linux", "windows"):
        errors += one_of(system.get("name"), ("linux", "windows"), f"{path}.os.name")
    if get("preemptionPolicy") not in (None, "PreemptLowerPriority", "Never"):
        allowed = ("Never", "PreemptLowerPriority")
        errors.append(not_supported(f"{path}.preemptionPolicy", get("preemptionPolicy"), allowed))
    return errors


_NAMED_FIELDS = (
    ("serviceAccountName", dns_subdomain_faults),
    ("nodeName", dns_subdomain_faults),
    ("hostname", dns_label_faults),
    ("subdomain", dns_label_faults),
    ("priorityClassName", dns_subdomain_faults),
    ("runtimeClassName", dns_subdomain_faults),
    ("schedulerName", qualified_name_faults),
)


def _check_containers(spec: Obj, path: str, volumes: dict[str, Obj]) -> Errors:
    containers = spec.get("containers") or []
    if not containers:
        return [required(f"{path}.containers")]
    errors: Errors = []
    host_network = bool(spec.get("hostNetwork"))
    names: set[str] = set()
    for index, container in enumerate(containers):
        errors += check_container(container, f"{path}.containers[{index}]", volumes, host_network)
        if container.get("restartPolicy") is not None:
            why = "may not be set for non-init containers"
            errors.append(forbidden_field(f"{path}.containers[{index}].restartPolicy", why))
        if container.get("resizePolicy"):
            at, policy = f"{path}.containers[{index}]", spec.get("restartPolicy") or ""
            errors += check_resize_policies(container, at, policy)
        errors += _check_unique(container, names, f"{path}.containers[{index}].name")
    errors += check_host_ports(containers, f"{path}.containers")
    for index, container in enumerate(spec.get("initContainers") or ()):
        at = f"{path}.initContainers[{index}]"
        errors += check_container(container, at, volumes, host_network)
        errors += check_init_container(container, at)
        if container.get("resizePolicy"):
            errors += check_resize_policies(container, at, "Always")
        errors += _check_unique(container, names, f"{at}.name")
    if ephemeral := spec.get("ephemeralContainers"):
        targets = frozenset(container.get("name") or "" for container in containers)
        for index, container in enumerate(ephemeral):
            at = f"{path}.ephemeralContainers[{index}]"
            errors += check_container(container, at, volumes)
            errors += check_ephemeral_container(container, at, targets)
            errors += _check_unique(container, names, f"{at}.name")
    return errors


def _check_unique(container: Obj, names: set[str], path: str) -> Errors:
    name = container.get("name")
    if name in names:
        return [duplicate(path, name)]
    if name:
        names.add(name)
    return []


def _check_dns(spec: Obj, path: str) -> Errors:
    config = spec.get("dnsConfig")
    if not config:
        return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
    servers, searches = config.get("nameservers") or [], config.get("searches") or []
    errors: Errors = []
    if spec.get("dnsPolicy") == "None" and not servers:
        why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        errors.append(required(f"{path}.nameservers", why))
    if len(servers) > 3:
        errors.append(invalid(f"{path}.nameservers", servers, "must not have more than 3 nameservers"))
    for index, server in enumerate(servers):
        if not valid_ip(server):
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            errors.append(invalid(f"{path}.nameservers[{index}]", server, why))
    if len(searches) > 32:
        errors.append(invalid(f"{path}.searches", searches, "must not have more than 32 search paths"))
    for index, search in enumerate(searches):
        bare = search.removesuffix(".") or search
        if search != ".":
            errors += optional_named(bare, f"{path}.searches[{index}]", dns_subdomain_faults)
    for index, option in enumerate(config.get("options") or ()):
        if not option.get("name"):
            errors.append(required(f"{path}.options[{index}]", "must not be empty"))
    return errors


def _check_security(context: Obj, path: str) -> Errors:
    errors = check_ids(context, path, "runAsUser", "runAsGroup", "fsGroup")
    for index, group in enumerate(context.get("supplementalGroups") or ()):
        if not 0 <= group <= _MAX_SECONDS:
            why = f"must be between 0 and {_MAX_SECONDS}, inclusive"
            errors.append(invalid(f"{path}.supplementalGroups[{index}]", group, why))
    policy = context.get("fsGroupChangePolicy")
    if policy not in (None, "Always", "OnRootMismatch"):
        errors.append(not_supported(f"{path}.fsGroupChangePolicy", policy, ("Always", "OnRootMismatch")))
    seen: set[str] = set()
    for index, sysctl in enumerate(context.get("sysctls") or ()):
        name = sysctl.get("name") or ""
        if not name:
            errors.append(required(f"{path}.sysctls[{index}].name"))
        elif name in seen:
            errors.append(duplicate(f"{path}.sysctls[{index}].name", name))
        seen.add(name)
    if profile := context.get("seccompProfile"):
        errors += check_seccomp(profile, f"{path}.seccompProfile")
    return errors


def _check_scheduling_gates(gates: list[Obj], path: str) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        name = gate.get("name") or ""
        errors += [invalid(f"{path}[{index}]", name, fault) for fault in qualified_name_faults(name)]
        if name in seen:
            errors.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
    return errors


# ---- templates ----------------------------------------------------------------------------------------------------


def check_template(template: Obj | None, path: str = "spec.template") -> Errors:
    """Faults of a PodTemplateSpec by itself."""
    template = template or {}
    meta = template.get("metadata") or {}
    errors: Errors = []
    if labels := meta.get("labels"):
        errors += validate_labels(labels, f"{path}.labels")
    if annotations := meta.get("annotations"):
        errors += validate_annotations(annotations, f"{path}.annotations")
    spec = template.get("spec") or {}
    errors += check_pod_spec(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        why = "ephemeral containers not allowed in pod template"
        errors.append(forbidden_field(f"{path}.spec.ephemeralContainers", why))
    return errors


def check_selected_template(spec: Obj, path: str = "spec", *, workload: str = "deployment") -> Errors:
    """Faults of `selector` and `template` of a workload, and of their agreement."""
    errors: Errors = []
    selector, template = spec.get("selector"), spec.get("template")
    if selector is None:
        errors.append(required(f"{path}.selector"))
    else:
        errors += validate_selector(selector, f"{path}.selector")
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            errors.append(invalid(f"{path}.selector", selector, f"empty selector is invalid for {workload}"))
    if not template:
        errors.append(required(f"{path}.template"))
        return errors
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector and not errors and not selector_of(selector).matches(labels):
        why = "`selector` does not match template `labels`"
        errors.append(invalid(f"{path}.template.metadata.labels", labels, why))
    errors += check_template(template, f"{path}.template")
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy in ("OnFailure", "Never"):
        errors.append(not_supported(f"{path}.template.spec.restartPolicy", policy, ("Always",)))
    if (template.get("spec") or {}).get("activeDeadlineSeconds") is not None:
        why = "activeDeadlineSeconds in ReplicaSet is not Supported"
        errors.append(forbidden_field(f"{path}.template.spec.activeDeadlineSeconds", why))
    return errors
