"""Label selectors and field selectors: parsed once per request, asked once per object.

A list of five thousand pods asks a selector five thousand times, so parsing does the work: a selector becomes a tuple
of small requirements with frozen sets, and `matches` is a loop without allocation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coterie.kube.api.errors import BadRequest, FieldError, forbidden_field, invalid, required
from coterie.kube.api.names import label_value_faults, qualified_name_faults
from coterie.kube.api.resources import Resource

Labels = Mapping[str, str]

IN, NOT_IN, EXISTS, NOT_EXISTS, GREATER, LESS = "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        if value is None or not _INTEGER.fullmatch(value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == GREATER else int(value) < bound

    def __str__(self) -> str:
        listed = ",".join(sorted(self.values))
        match self.operator:
            case "In":
                return f"{self.key}={listed}" if len(self.values) == 1 else f"{self.key} in ({listed})"
            case "NotIn":
                return f"{self.key}!={listed}" if len(self.values) == 1 else f"{self.key} notin ({listed})"
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
        return f"{self.key}{'>' if self.operator == GREATER else '<'}{listed}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold; `nothing` is the selector of a missing LabelSelector object."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Labels | None) -> bool:
        if self.nothing:
            return False
        found = labels or {}
        for requirement in self.requirements:  # noqa: SIM110 - a generator would cost more than the comparison
            if not requirement.matches(found):
                return False
        return True

    @property
    def everything(self) -> bool:
        return not self.nothing and not self.requirements

    def exact(self, key: str) -> str | None:
        """The one value the selector demands of a label, for indexes."""
        for requirement in self.requirements:
            if requirement.key == key and requirement.operator == IN and len(requirement.values) == 1:
                return next(iter(requirement.values))
        return None

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in sorted(self.requirements, key=lambda r: r.key))


EVERYTHING: Final = LabelSelector()
NOTHING: Final = LabelSelector(nothing=True)

_INTEGER = re.compile("[+-]?[0-9]{1,19}")
_TOKEN = re.compile(r"\s*(==|!=|=|!|,|\(|\)|<|>|[^\s=!,()<>]+)")
_SYMBOLS: Final = frozenset({"==", "!=", "=", "!", ",", "(", ")", "<", ">", ""})


class _Parser:
    """Recursive descent over the tokens of one selector; complaints are worded as Kubernetes words them."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def parse(self) -> tuple[Requirement, ...]:
        out: list[Requirement] = []
        if not self.tokens:
            return ()
        while True:
            token = self.peek()
            if token in _SYMBOLS and token != "!":
                raise BadRequest(
                    f"unable to parse requirement: found '{token}', expected: !, identifier, or 'end of string'"
                )
            out.append(self.requirement())
            token = self.take()
            if not token:
                return tuple(out)
            if token != ",":
                raise BadRequest(f"unable to parse requirement: found '{token}', expected: ',' or 'end of string'")
            if self.peek() in _SYMBOLS and self.peek() != "!":
                raise BadRequest(f"unable to parse requirement: found '{self.peek()}', expected: identifier after ','")

    def requirement(self) -> Requirement:
        negated = self.peek() == "!"
        if negated:
            self.take()
        key = self.take()
        if key in _SYMBOLS:
            raise BadRequest(f"unable to parse requirement: found '{key}', expected: identifier")
        if faults := qualified_name_faults(key):
            raise BadRequest(f"unable to parse requirement: {invalid('key', key, '; '.join(faults))}")
        operator = self.peek()
        if negated or operator in ("", ","):
            return Requirement(key, NOT_EXISTS if negated else EXISTS)
        self.take()
        if operator in ("=", "=="):
            return self.checked(key, IN, frozenset({self.exact_value()}))
        if operator == "!=":
            return self.checked(key, NOT_IN, frozenset({self.exact_value()}))
        if operator in ("<", ">"):
            return self.bound(key, operator)
        if operator in ("in", "notin"):
            return self.checked(key, IN if operator == "in" else NOT_IN, self.value_list())
        raise BadRequest(f"unable to parse requirement: found '{operator}', expected: in, notin, =, ==, !=, <, >")

    def exact_value(self) -> str:
        token = self.peek()
        if token in ("", ","):
            return ""  # `x=` asks for the empty value
        if token in _SYMBOLS:
            raise BadRequest(f"unable to parse requirement: found '{token}', expected: identifier")
        return self.take()

    def bound(self, key: str, operator: str) -> Requirement:
        value = self.exact_value()
        if not _INTEGER.fullmatch(value):
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise BadRequest(f"unable to parse requirement: {invalid('values[0]', value, why)}")
        return Requirement(key, GREATER if operator == ">" else LESS, frozenset({value}))

    def value_list(self) -> frozenset[str]:
        token = self.take()
        if token != "(":
            raise BadRequest(f"unable to parse requirement: found '{token}' expected: '('")
        values: list[str] = [""]
        while True:
            token = self.take()
            if token == ")":
                return frozenset(values)
            if token == ",":
                values.append("")
            elif token in _SYMBOLS or values[-1]:
                raise BadRequest(f"unable to parse requirement: found '{token}', expected: ',', ')' or identifier")
            else:
                values[-1] = token

    def checked(self, key: str, operator: str, values: frozenset[str]) -> Requirement:
        for index, value in enumerate(sorted(values)):
            if faults := label_value_faults(value):
                fault = invalid(f"values[{index}][{key}]", value, "; ".join(faults))
                raise BadRequest(f"unable to parse requirement: {fault}")
        return Requirement(key, operator, values)


def parse_label_selector(text: str | None) -> LabelSelector:
    """The selector of `?labelSelector=`; BadRequest when it cannot be read."""
    requirements = _Parser(text).parse() if text else ()
    return LabelSelector(requirements) if requirements else EVERYTHING


def selector_of(obj: Mapping[str, Any] | None) -> LabelSelector:
    """The selector that a LabelSelector object (already validated) stands for: none selects nothing, {} everything."""
    if obj is None:
        return NOTHING
    requirements = [Requirement(key, IN, frozenset({value})) for key, value in (obj.get("matchLabels") or {}).items()]
    requirements += [
        Requirement(term.get("key") or "", term.get("operator") or "", frozenset(term.get("values") or ()))
        for term in obj.get("matchExpressions") or ()
    ]
    return LabelSelector(tuple(requirements)) if requirements else EVERYTHING


def selector_of_map(labels: Labels | None) -> LabelSelector:
    """The selector of services and replication controllers: a plain map, where an empty one selects nothing."""
    if not labels:
        return NOTHING
    return LabelSelector(tuple(Requirement(key, IN, frozenset({value})) for key, value in labels.items()))


def validate_selector(selector: Mapping[str, Any], path: str, *, require_values: bool = True) -> list[FieldError]:
    """Faults of a LabelSelector object."""
    errors: list[FieldError] = []
    for key, value in (selector.get("matchLabels") or {}).items():
        errors += [invalid(f"{path}.matchLabels", key, fault) for fault in qualified_name_faults(key)]
        errors += [invalid(f"{path}.matchLabels", value, fault) for fault in label_value_faults(value or "")]
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        at = f"{path}.matchExpressions[{index}]"
        operator, values = term.get("operator") or "", term.get("values") or []
        if operator in (IN, NOT_IN):
            if not values:
                errors.append(required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator in (EXISTS, NOT_EXISTS):
            if values:
                why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                errors.append(forbidden_field(f"{at}.values", why))
        else:
            errors.append(invalid(f"{at}.operator", operator, "not a valid selector operator"))
        key = term.get("key") or ""
        errors += [invalid(f"{at}.key", key, fault) for fault in qualified_name_faults(key)]
        errors += [
            invalid(f"{at}.values[{place}]", value, fault)
            for place, value in enumerate(values)
            for fault in label_value_faults(value)
        ]
    return errors


# ---- field selectors -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldTerm:
    field: str
    value: str
    equal: bool


@dataclass(frozen=True, slots=True)
class FieldSelector:
    terms: tuple[FieldTerm, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all((fields.get(term.field, "") == term.value) == term.equal for term in self.terms)

    def exact(self, field: str) -> str | None:
        """The one value the selector demands of a field: `metadata.name=x` is answered by a get."""
        for term in self.terms:
            if term.field == field and term.equal:
                return term.value
        return None

    def bind(self, resource: Resource, custom_fields: Sequence[str] = ()) -> Callable[[Mapping[str, Any]], bool]:
        """A predicate over objects of one resource; BadRequest names the first field the resource does not offer."""
        checks = tuple((_getter(resource, term.field, custom_fields), term.value, term.equal) for term in self.terms)

        def matches(obj: Mapping[str, Any]) -> bool:
            for read, value, equal in checks:  # noqa: SIM110 - as above
                if (read(obj) == value) != equal:
                    return False
            return True

        return matches


def parse_field_selector(text: str | None) -> FieldSelector:
    """The selector of `?fieldSelector=`; BadRequest when it cannot be read."""
    terms = [_field_term(part, text or "") for part in _split_unescaped(text or "", ",") if part]
    return FieldSelector(tuple(terms))


def _split_unescaped(text: str, separator: str) -> list[str]:
    parts, start, index = [], 0, 0
    while index < len(text):
        if text[index] == "\\":
            index += 1
        elif text[index] == separator:
            parts.append(text[start:index])
            start = index + 1
        index += 1
    return [*parts, text[start:]]


def _field_term(part: str, whole: str) -> FieldTerm:
    index = 0
    while index < len(part):
        if part[index] == "\\":
            index += 2
            continue
        for operator, equal in (("!=", False), ("==", True), ("=", True)):
            if part.startswith(operator, index):
                return FieldTerm(part[:index], _unescape(part[index + len(operator) :]), equal)
        index += 1
    raise BadRequest(f"invalid selector: '{whole}'; can't understand '{part}'")


def _unescape(value: str) -> str:
    out: list[str] = []
    index = 0
    while index < len(value):
        char = value[index]
        if char == "\\":
            index += 1
            if value[index : index + 1] not in ("\\", ",", "="):
                shown = value[index - 1 : index + 1]
                raise BadRequest(f"invalid field selector: invalid escape sequence: {shown}")
            out.append(value[index])
        elif char == "=":
            raise BadRequest(f"invalid field selector: unescaped character in value: {char}")
        else:
            out.append(char)
        index += 1
    return "".join(out)


_META_FIELDS: Final = ("metadata.name", "metadata.namespace")
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

_FIELDS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("", "pods"): (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    ("", "events"): (
        *(f"involvedObject.{key}" for key in _INVOLVED),
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    ("events.k8s.io", "events"): (
        *(f"regarding.{key}" for key in _INVOLVED),
        "reason",
        "reportingController",
        "type",
    ),
    ("", "secrets"): ("type",),
    ("", "namespaces"): ("status.phase",),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("apps", "replicasets"): ("status.replicas",),
    ("apps", "statefulsets"): ("status.successful",),
    ("batch", "jobs"): ("status.successful",),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (),
    ("resource.k8s.io", "resourceslices"): ("spec.nodeName", "spec.driver"),
    ("certificates.k8s.io", "certificatesigningrequests"): ("spec.signerName",),
}

_SPECIAL: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "spec.hostNetwork": lambda obj: _text((obj.get("spec") or {}).get("hostNetwork") or False),
    "spec.unschedulable": lambda obj: _text((obj.get("spec") or {}).get("unschedulable") or False),
    "status.replicas": lambda obj: _text((obj.get("status") or {}).get("replicas") or 0),
    # The field keeps its old name; the status calls it `succeeded`.
    "status.successful": lambda obj: _text((obj.get("status") or {}).get("succeeded") or 0),
    "status.podIPs": lambda obj: (obj.get("status") or {}).get("podIP") or "",
    "source": lambda obj: (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or "",
    "reportingController": lambda obj: obj.get("reportingController") or obj.get("reportingComponent") or "",
}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _path_getter(field: str) -> Callable[[Mapping[str, Any]], str]:
    first, *rest = field.split(".")

    def read(obj: Mapping[str, Any]) -> str:
        value: Any = obj.get(first)
        for part in rest:
            if not isinstance(value, Mapping):
                return ""
            value = value.get(part)
        return _text(value)

    return read


def supported_fields(resource: Resource, custom_fields: Sequence[str] = ()) -> tuple[str, ...]:
    """Fields by which a resource can be selected; `custom_fields` are a CRD version's selectable paths."""
    extra = tuple(path.lstrip(".") for path in custom_fields)
    return (*_META_FIELDS, *_FIELDS.get((resource.group, resource.plural), ()), *extra)


def _getter(resource: Resource, field: str, custom_fields: Sequence[str]) -> Callable[[Mapping[str, Any]], str]:
    if field not in supported_fields(resource, custom_fields):
        if resource.custom or (resource.group, resource.plural) in _FIELDS:
            raise BadRequest(f"field label not supported: {field}")
        known = ", ".join(f'"{name}"' for name in _META_FIELDS)
        raise BadRequest(f'"{field}" is not a known field selector: only {known}')
    if resource.custom:
        return _path_getter(field)
    if field.startswith("regarding."):
        # Events are stored in the core form, whichever group asks.
        return _path_getter("involvedObject." + field.removeprefix("regarding."))
    return _SPECIAL.get(field) or _path_getter(field)


def selectable_fields(resource: Resource, obj: Mapping[str, Any], custom_fields: Sequence[str] = ()) -> dict[str, str]:
    """All selectable fields of one (stored) object with their values as text."""
    return {field: _getter(resource, field, custom_fields)(obj) for field in supported_fields(resource, custom_fields)}
