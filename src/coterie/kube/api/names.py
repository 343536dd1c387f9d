"""What names, labels, annotations, keys and ports may look like, in the words Kubernetes uses when they do not.

Every `*_faults(text)` returns the complaints about one text, empty when it is fine; callers put them behind a field
path. The common good case is one cached set of regular expressions, because each create asks dozens of times.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from coterie.kube.api.errors import FieldError, forbidden_field, invalid, required, too_long
from coterie.kube.api.resources import Resource

Faults = tuple[str, ...]
NameRule = Callable[[str], Faults]

_REMEMBERED = 1024
"""The same few come again and again; names of pods and jobs come once."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = _LABEL + r"(\." + _LABEL + ")*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_QUALIFIED})?"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"

_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(_SUBDOMAIN)
_DNS_1035 = re.compile(_LABEL_1035)
_QUALIFIED_NAME = re.compile(_QUALIFIED)
_VALUE = re.compile(_LABEL_VALUE)
_KEY = re.compile(_CONFIG_KEY)
_ENV_NAME = re.compile("[ -<>-~]+")
_WILDCARD = re.compile(r"\*\." + _SUBDOMAIN)
_PORT_NAME = re.compile("[-a-z0-9]+")
_C_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")

TOTAL_ANNOTATION_SIZE: Final = 256 * 1024
STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
IMMUTABLE: Final = "field is immutable"
PORT_RANGE: Final = "must be between 1 and 65535, inclusive"


def _shape(message: str, pattern: str, *examples: str) -> str:
    shown = "".join(f"{' or ' if index else ''}'{example}', " for index, example in enumerate(examples))
    return f"{message} ({'e.g. ' + shown if shown else ''}regex used for validation is '{pattern}')"


_LABEL_SHAPE = _shape(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character",
    _LABEL,
    "my-name",
    "123-abc",
)
_SUBDOMAIN_SHAPE = _shape(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character",
    _SUBDOMAIN,
    "example.com",
)
_LABEL_1035_SHAPE = _shape(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    _LABEL_1035,
    "my-name",
    "abc-123",
)
_QUALIFIED_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_QUALIFIED_SHAPE = _shape(_QUALIFIED_TEXT, _QUALIFIED, "MyName", "my.name", "123-abc")
_VALUE_SHAPE = _shape(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character",
    _LABEL_VALUE,
    "MyValue",
    "my_value",
    "12345",
)
_KEY_SHAPE = _shape(
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    _CONFIG_KEY,
    "key.name",
    "KEY_NAME",
    "key-name",
)
_WILDCARD_SHAPE = _shape(
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of "
    "lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
    r"\*\." + _SUBDOMAIN,
    "*.example.com",
)
_ENV_SHAPE = "a valid environment variable name must consist only of printable ASCII characters other than '='"


def _longer(text: str, limit: int) -> Faults:
    return (f"must be no more than {limit} characters",) if len(text) > limit else ()


@lru_cache(maxsize=_REMEMBERED)
def dns_label_faults(text: str, longest: int = 63) -> Faults:
    """RFC 1123 label: names of namespaces, containers, volumes."""
    return _longer(text, longest) + (() if _DNS_LABEL.fullmatch(text) else (_LABEL_SHAPE,))


@lru_cache(maxsize=_REMEMBERED)
def dns_subdomain_faults(text: str) -> Faults:
    """RFC 1123 subdomain: names of most objects."""
    return _longer(text, 253) + (() if _DNS_SUBDOMAIN.fullmatch(text) else (_SUBDOMAIN_SHAPE,))


@lru_cache(maxsize=_REMEMBERED)
def dns1035_label_faults(text: str) -> Faults:
    """RFC 1035 label: names of services."""
    return _longer(text, 63) + (() if _DNS_1035.fullmatch(text) else (_LABEL_1035_SHAPE,))


def wildcard_subdomain_faults(text: str) -> Faults:
    return _longer(text, 253) + (() if _WILDCARD.fullmatch(text) else (_WILDCARD_SHAPE,))


@lru_cache(maxsize=_REMEMBERED)
def qualified_name_faults(text: str) -> Faults:
    """`name` or `example.com/name`: keys of labels and annotations, finalizers, taints, conditions."""
    prefix, slash, name = text.rpartition("/")
    faults: Faults = ()
    if slash:
        if "/" in prefix:
            return (
                f"a qualified name {_QUALIFIED_SHAPE} with an optional DNS subdomain prefix and '/' "
                "(e.g. 'example.com/MyName')",
            )
        faults = (
            tuple(f"prefix part {fault}" for fault in dns_subdomain_faults(prefix))
            if prefix
            else ("prefix part must be non-empty",)
        )
    if not name:
        faults += ("name part must be non-empty",)
    faults += tuple(f"name part {fault}" for fault in _longer(name, 63))
    return faults if _QUALIFIED_NAME.fullmatch(name) else (*faults, f"name part {_QUALIFIED_SHAPE}")


@lru_cache(maxsize=_REMEMBERED)
def label_value_faults(text: str) -> Faults:
    return _longer(text, 63) + (() if _VALUE.fullmatch(text) else (_VALUE_SHAPE,))


@lru_cache(maxsize=_REMEMBERED)
def config_key_faults(text: str) -> Faults:
    """Keys of ConfigMaps and Secrets: they become file names."""
    faults = _longer(text, 253) + (() if _KEY.fullmatch(text) else (_KEY_SHAPE,))
    if text == ".":
        faults += ("must not be '.'",)
    elif text == "..":
        faults += ("must not be '..'",)
    elif text.startswith(".."):
        faults += ("must not start with '..'",)
    return faults


@lru_cache(maxsize=_REMEMBERED)
def env_name_faults(text: str) -> Faults:
    return () if _ENV_NAME.fullmatch(text) else (_ENV_SHAPE,)


@lru_cache(maxsize=_REMEMBERED)
def port_name_faults(text: str) -> Faults:
    """IANA service names: names of container and target ports."""
    faults = _longer(text, 15)
    if not _PORT_NAME.fullmatch(text):
        faults += ("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",)
    if not any("a" <= char <= "z" for char in text):
        faults += ("must contain at least one letter (a-z)",)
    if "--" in text:
        faults += ("must not contain consecutive hyphens",)
    if text[:1] == "-" or text[-1:] == "-":
        faults += ("must not begin or end with a hyphen",)
    return faults


def port_number_faults(port: int) -> Faults:
    return () if 1 <= port <= 65535 else (PORT_RANGE,)


def path_segment_faults(text: str) -> Faults:
    """Names that only have to fit into a URL: RBAC objects."""
    if text in (".", ".."):
        return (f"may not be '{text}'",)
    return tuple(f"may not contain '{char}'" for char in "/%" if char in text)


def finalizer_faults(text: str, standard_only_when_bare: bool = True) -> Faults:
    faults = qualified_name_faults(text)
    if not faults and standard_only_when_bare and "/" not in text and text not in STANDARD_FINALIZERS:
        return ("name is neither a standard finalizer name nor is it fully qualified",)
    return faults


def ip_address_faults(text: str) -> Faults:
    """Names of IPAddress objects: an address in its one spelling."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    if address is None or "%" in text:
        return ("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",)
    return () if str(address) == text else (f'must be in canonical form ("{address}")',)


_NAME_RULES: Final[Mapping[tuple[str, str], NameRule]] = {
    ("", "namespaces"): dns_label_faults,
    ("", "services"): dns1035_label_faults,
    ("networking.k8s.io", "ipaddresses"): ip_address_faults,
    ("apiregistration.k8s.io", "apiservices"): path_segment_faults,
    ("rbac.authorization.k8s.io", "roles"): path_segment_faults,
    ("rbac.authorization.k8s.io", "rolebindings"): path_segment_faults,
    ("rbac.authorization.k8s.io", "clusterroles"): path_segment_faults,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): path_segment_faults,
}


def name_rule(resource: Resource) -> NameRule:
    return _NAME_RULES.get((resource.group, resource.plural), dns_subdomain_faults)


def validate_meta(obj: Mapping[str, Any], resource: Resource, path: str = "metadata") -> list[FieldError]:
    """Faults of `metadata` at create and update: names, labels, annotations, finalizers, owners."""
    meta: Mapping[str, Any] = obj.get("metadata") or {}
    errors: list[FieldError] = []
    rule = name_rule(resource)
    name = meta.get("name") or ""
    prefix = meta.get("generateName") or ""
    if prefix:
        # The name will end in random letters: a trailing dash is fine.
        masked = prefix[:-1] + "a" if prefix.endswith("-") and len(prefix) > 1 else prefix
        errors += [invalid(f"{path}.generateName", prefix, fault) for fault in rule(masked)]
    if name:
        errors += [invalid(f"{path}.name", name, fault) for fault in rule(name)]
    else:
        errors.append(required(f"{path}.name", "name or generateName is required"))
    namespace = meta.get("namespace") or ""
    if not resource.namespaced:
        if namespace:
            errors.append(forbidden_field(f"{path}.namespace", "not allowed on this type"))
    elif namespace:
        errors += [invalid(f"{path}.namespace", namespace, fault) for fault in dns_label_faults(namespace)]
    else:
        errors.append(required(f"{path}.namespace"))
    if (meta.get("generation") or 0) < 0:
        errors.append(invalid(f"{path}.generation", meta["generation"], "must be greater than or equal to 0"))
    if labels := meta.get("labels"):
        errors += validate_labels(labels, f"{path}.labels")
    if annotations := meta.get("annotations"):
        errors += validate_annotations(annotations, f"{path}.annotations")
    if owners := meta.get("ownerReferences"):
        errors += validate_owners(owners, f"{path}.ownerReferences")
    if finalizers := meta.get("finalizers"):
        # Only kinds of the core group insist on a qualified name; definitions have a bare one by design.
        errors += _validate_finalizers(finalizers, f"{path}.finalizers", not resource.group)
    return errors


def validate_labels(labels: Mapping[str, str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for key, value in labels.items():
        if faults := qualified_name_faults(key):
            errors += [invalid(path, key, fault) for fault in faults]
        if faults := label_value_faults(value or ""):
            errors += [invalid(path, value, fault) for fault in faults]
    return errors


def validate_annotations(annotations: Mapping[str, str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    total = 0
    for key, value in annotations.items():
        # Kubernetes lets annotation keys be written in upper case.
        if faults := qualified_name_faults(key.lower()):
            errors += [invalid(path, key, fault) for fault in faults]
        total += len(key) + len(value or "")
    # Counting characters first keeps the usual small annotations from being encoded.
    if total * 4 > TOTAL_ANNOTATION_SIZE:
        total = sum(len(key.encode()) + len((value or "").encode()) for key, value in annotations.items())
        if total > TOTAL_ANNOTATION_SIZE:
            errors.append(too_long(path, TOTAL_ANNOTATION_SIZE))
    return errors


def validate_owners(owners: list[dict[str, Any]], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    controller = ""
    for index, owner in enumerate(owners):
        at = f"{path}[{index}]"
        version = owner.get("apiVersion") or ""
        group, slash, bare = version.rpartition("/")
        if not bare:
            errors.append(invalid(f"{at}.apiVersion", version, "version must not be empty"))
        elif slash and ("/" in group or not group):
            errors.append(invalid(f"{at}.apiVersion", version, f"unexpected GroupVersion string: {version}"))
        errors += [
            invalid(f"{at}.{key}", "", "must not be empty") for key in ("kind", "name", "uid") if not owner.get(key)
        ]
        if owner.get("kind") == "Event" and version == "v1":
            errors.append(invalid(at, owner, "/v1, Kind=Event is disallowed from being an owner"))
        if owner.get("controller"):
            if controller:
                why = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller} and {owner.get('name') or ''}"
                )
                errors.append(invalid(path, owners, why))
            controller = owner.get("name") or " "
    return errors


def _validate_finalizers(finalizers: list[str], path: str, standard_only_when_bare: bool) -> list[FieldError]:
    errors = [
        invalid(path, finalizer, fault)
        for finalizer in finalizers
        for fault in finalizer_faults(finalizer, standard_only_when_bare)
    ]
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        errors.append(invalid(path, finalizers, "finalizer orphan and foregroundDeletion cannot be both set"))
    return errors


_FIXED_META: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def validate_meta_update(new: Mapping[str, Any], old: Mapping[str, Any], path: str = "metadata") -> list[FieldError]:
    """Faults of a change of `metadata`. The resource version is compared by whoever writes to the store."""
    meta: Mapping[str, Any] = new.get("metadata") or {}
    before: Mapping[str, Any] = old.get("metadata") or {}
    errors: list[FieldError] = []
    for key in _FIXED_META:
        if meta.get(key) != before.get(key) and (meta.get(key) or before.get(key)):
            errors.append(invalid(f"{path}.{key}", meta.get(key), IMMUTABLE))
    if before.get("deletionTimestamp") and (
        added := set(meta.get("finalizers") or ()) - set(before.get("finalizers") or ())
    ):
        listed = ", ".join(f'"{name}"' for name in sorted(added))
        why = (
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
        )
        errors.append(forbidden_field(f"{path}.finalizers", why))
    if (meta.get("generation") or 0) < (before.get("generation") or 0):
        errors.append(invalid(f"{path}.generation", meta.get("generation") or 0, "must not be decremented"))
    return errors
