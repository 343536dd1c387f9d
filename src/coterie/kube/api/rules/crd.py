"""Rules of CustomResourceDefinitions except their schemas, which `api/schema` checks."""

from __future__ import annotations

from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required, too_many
from coterie.kube.api.names import IMMUTABLE, dns1035_label_faults, dns_subdomain_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import named
from coterie.kube.api.rules.webhooks import check_client, check_review_versions, default_client

GROUP = "apiextensions.k8s.io"
APPROVED = "api-approved.kubernetes.io"
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_CONDITION_STATES = ("False", "True", "Unknown")
_PROTECTED = ("k8s.io", "kubernetes.io")


def _default_definition(obj: Obj) -> None:
    spec = section(obj, "spec")
    names = section(spec, "names")
    if kind := names.get("kind"):
        setdefaults(names, singular=kind.lower(), listKind=f"{kind}List")
    setdefaults(section(spec, "conversion"), strategy="None")
    default_client((spec["conversion"].get("webhook") or {}).get("clientConfig"))


def storage_version(spec: Obj) -> str:
    """Name of the version in which objects are stored."""
    return next((version.get("name") or "" for version in spec.get("versions") or () if version.get("storage")), "")


def _initial_status(obj: Obj) -> Obj:
    stored = storage_version(obj.get("spec") or {})
    return {
        "conditions": [],
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": [stored] if stored else [],
    }


def _add_stored_version(new: Obj, old: Obj) -> None:
    """A version that was ever the storage version stays listed until someone migrated its objects."""
    stored = storage_version(new.get("spec") or {})
    status = new.get("status") or {}
    listed = status.get("storedVersions") or []
    if stored and stored not in listed:
        new["status"] = {**status, "storedVersions": [*listed, stored]}


def _validate_definition(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    group, names = spec.get("group") or "", spec.get("names") or {}
    errors: Errors = []
    name = (obj.get("metadata") or {}).get("name") or ""
    if name != f"{names.get('plural') or ''}.{group}":
        errors.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if not group:
        errors.append(required("spec.group"))
    elif faults := dns_subdomain_faults(group):
        errors += [invalid("spec.group", group, fault) for fault in faults]
    elif "." not in group:
        errors.append(invalid("spec.group", group, "should be a domain with at least one dot"))
    errors += _check_approval(obj, group)
    scope = spec.get("scope") or ""
    if scope not in ("Cluster", "Namespaced"):
        allowed = ("Cluster", "Namespaced")
        errors.append(not_supported("spec.scope", scope, allowed) if scope else required("spec.scope"))
    errors += _check_names(names, "spec.names")
    errors += _check_versions(spec)
    errors += _check_conversion(spec.get("conversion") or {}, "spec.conversion")
    if spec.get("preserveUnknownFields"):
        why = "must be false, set x-preserve-unknown-fields to true in the schema instead"
        errors.append(invalid("spec.preserveUnknownFields", True, why))
    return errors


def _check_approval(obj: Obj, group: str) -> Errors:
    if not any(group == domain or group.endswith("." + domain) for domain in _PROTECTED):
        return []
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    if annotations.get(APPROVED):
        return []
    why = (
        f'protected groups must have approval annotation "{APPROVED}", '
        "see https://github.com/kubernetes/enhancements/pull/1111"
    )
    return [required(f"metadata.annotations[{APPROVED}]", why)]


def _check_names(names: Obj, path: str) -> Errors:
    errors = named(names.get("plural"), f"{path}.plural", dns1035_label_faults)
    errors += named(names.get("singular"), f"{path}.singular", dns1035_label_faults)
    for key in ("kind", "listKind"):
        value = names.get(key) or ""
        if not value:
            errors.append(required(f"{path}.{key}"))
            continue
        errors += [
            invalid(f"{path}.{key}", value, f"may have mixed case, but should otherwise match: {fault}")
            for fault in dns1035_label_faults(value.lower())
        ]
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        errors.append(invalid(f"{path}.listKind", names["listKind"], "kind and listKind may not be the same"))
    for key in ("shortNames", "categories"):
        for index, value in enumerate(names.get(key) or ()):
            errors += [invalid(f"{path}.{key}[{index}]", value, fault) for fault in dns1035_label_faults(value)]
    return errors


def _check_versions(spec: Obj) -> Errors:
    versions = spec.get("versions") or []
    if not versions:
        return [required("spec.versions", "must have at least one version")]
    errors: Errors = []
    stored, seen = 0, set()
    for index, version in enumerate(versions):
        at, name = f"spec.versions[{index}]", version.get("name") or ""
        if name in seen:
            errors.append(invalid(f"{at}.name", name, "must contain unique version names"))
        seen.add(name)
        errors += [invalid(f"{at}.name", name, fault) for fault in dns1035_label_faults(name)]
        stored += bool(version.get("storage"))
        if (version.get("schema") or {}).get("openAPIV3Schema") is None:
            errors.append(required(f"{at}.schema.openAPIV3Schema", "schemas are required"))
        errors += _check_columns(version.get("additionalPrinterColumns") or [], f"{at}.additionalPrinterColumns")
        errors += _check_subresources(version.get("subresources") or {}, f"{at}.subresources")
        errors += _check_selectable(version.get("selectableFields") or [], f"{at}.selectableFields")
        if version.get("deprecationWarning") and not version.get("deprecated"):
            why = "can only be set for deprecated versions"
            errors.append(invalid(f"{at}.deprecationWarning", version["deprecationWarning"], why))
    if stored != 1:
        errors.append(invalid("spec.versions", versions, "must have exactly one version marked as storage version"))
    return errors


def json_path_faults(path: str) -> tuple[str, ...]:
    """Faults of a path such as `.status.conditions[?(@.type=="Ready")].status`."""
    if not path.startswith("."):
        return ("must be a simple json path starting with .",)
    depth, quote = 0, ""
    for char in path:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[(":
            depth += 1
        elif char in ")]":
            depth -= 1
            if depth < 0:
                break
    if depth or quote:
        return ("must be a json path with balanced brackets and quotes",)
    return ("must be a json path in the dot notation",) if path.endswith(".") and path != "." else ()


def _check_path(value: str, path: str, roots: tuple[str, ...] = ()) -> Errors:
    if not value:
        return [required(path)]
    if faults := json_path_faults(value):
        return [invalid(path, value, fault) for fault in faults]
    if roots and not any(value == root or value.startswith(root + ".") for root in roots):
        return [invalid(path, value, f"should be a json path under {' or '.join(roots)}")]
    return []


def _check_columns(columns: list[Obj], path: str) -> Errors:
    errors: Errors = []
    for index, column in enumerate(columns):
        at = f"{path}[{index}]"
        if not column.get("name"):
            errors.append(required(f"{at}.name"))
        kind = column.get("type") or ""
        if kind not in _COLUMN_TYPES:
            errors.append(not_supported(f"{at}.type", kind, _COLUMN_TYPES) if kind else required(f"{at}.type"))
        if column.get("format") and column["format"] not in _COLUMN_FORMATS:
            errors.append(invalid(f"{at}.format", column["format"], f"must be one of {','.join(_COLUMN_FORMATS)}"))
        errors += _check_path(column.get("jsonPath") or "", f"{at}.jsonPath")
    return errors


def _check_subresources(subresources: Obj, path: str) -> Errors:
    scale = subresources.get("scale")
    if scale is None:
        return []
    at = f"{path}.scale"
    errors = _check_path(scale.get("specReplicasPath") or "", f"{at}.specReplicasPath", (".spec",))
    errors += _check_path(scale.get("statusReplicasPath") or "", f"{at}.statusReplicasPath", (".status",))
    if scale.get("labelSelectorPath"):
        errors += _check_path(scale["labelSelectorPath"], f"{at}.labelSelectorPath", (".spec", ".status"))
    return errors


def _check_selectable(fields: list[Obj], path: str) -> Errors:
    errors: Errors = []
    if len(fields) > 8:
        errors.append(too_many(path, len(fields), 8))
    seen: set[str] = set()
    for index, item in enumerate(fields):
        text = item.get("jsonPath") or ""
        errors += _check_path(text, f"{path}[{index}].jsonPath")
        if "[" in text:
            errors.append(invalid(f"{path}[{index}].jsonPath", text, "must not use array notation"))
        if text in seen:
            errors.append(duplicate(f"{path}[{index}].jsonPath", text))
        seen.add(text)
    return errors


def _check_conversion(conversion: Obj, path: str) -> Errors:
    strategy = conversion.get("strategy") or ""
    if strategy == "Webhook":
        webhook = conversion.get("webhook")
        if webhook is None:
            return [required(f"{path}.webhook", 'required when strategy is set to "Webhook"')]
        at = f"{path}.webhook"
        errors = check_review_versions(webhook.get("conversionReviewVersions") or [], f"{at}.conversionReviewVersions")
        if webhook.get("clientConfig") is None:
            return [*errors, required(f"{at}.clientConfig", 'required when strategy is set to "Webhook"')]
        return errors + check_client(webhook["clientConfig"], f"{at}.clientConfig")
    if strategy != "None":
        known = ("None", "Webhook")
        return [not_supported(f"{path}.strategy", strategy, known)] if strategy else [required(f"{path}.strategy")]
    if conversion.get("webhook") is not None:
        return [forbidden_field(f"{path}.webhook", 'should not be set when strategy is not set to "Webhook"')]
    return []


def _established(obj: Obj) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Established" and item.get("status") == "True" for item in conditions)


def _check_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors: Errors = []
    if _established(old):
        if spec.get("scope") != before.get("scope"):
            errors.append(invalid("spec.scope", spec.get("scope"), IMMUTABLE))
        kind = (spec.get("names") or {}).get("kind")
        if kind != (before.get("names") or {}).get("kind"):
            errors.append(invalid("spec.names.kind", kind, IMMUTABLE))
    if spec.get("group") != before.get("group"):
        errors.append(invalid("spec.group", spec.get("group"), IMMUTABLE))
    plural = (spec.get("names") or {}).get("plural")
    if plural != (before.get("names") or {}).get("plural"):
        errors.append(invalid("spec.names.plural", plural, IMMUTABLE))
    return errors + _check_stored(new, old)


def _check_stored(new: Obj, old: Obj) -> Errors:
    """Objects in a version that no longer exists could not be read any more."""
    spec = new.get("spec") or {}
    known = {version.get("name") for version in spec.get("versions") or ()}
    listed = (new.get("status") or {}).get("storedVersions") or []
    errors = [
        invalid(
            f"status.storedVersions[{index}]",
            name,
            "missing from spec.versions; "
            f"{name} was previously a storage version, and must remain in spec.versions until a storage migration "
            f"ensures no data remains persisted in {name} and removes {name} from status.storedVersions",
        )
        for index, name in enumerate(listed)
        if name not in known
    ]
    stored = storage_version(spec)
    if stored and stored not in listed:
        errors.append(invalid("status.storedVersions", listed, f"must have the storage version {stored}"))
    return errors


def _check_status(new: Obj, old: Obj) -> Errors:
    errors: Errors = []
    for index, condition in enumerate((new.get("status") or {}).get("conditions") or ()):
        at = f"status.conditions[{index}]"
        if not condition.get("type"):
            errors.append(required(f"{at}.type"))
        if condition.get("status") not in _CONDITION_STATES:
            errors.append(not_supported(f"{at}.status", condition.get("status") or "", _CONDITION_STATES))
    return errors + _check_stored(new, old)


RULES: dict[tuple[str, str], KindRules] = {
    (GROUP, "CustomResourceDefinition"): make_rules(
        default=_default_definition,
        validate=_validate_definition,
        changed=_check_change,
        status=True,
        generation=("spec",),
        initial_status=_initial_status,
        update=_add_stored_version,
        validate_status=_check_status,
    ),
}
