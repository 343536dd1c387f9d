"""CEL in admission policies: what their expressions see, and a policy compiled as a whole.

    spec -> compile_policy -> CompiledAdmissionPolicy and the faults with their field paths
    CompiledAdmissionPolicy + PolicyInputs -> values of expressions (`PolicyInputs.evaluate`)

`object`, `oldObject` and `params` are untyped, as in Kubernetes; `type_warnings` compiles once more with the types of the
kinds that a policy names. Variables are computed when they are first used, and once for each evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from coterie.kube.api.cel.errors import CelError, CompileError, CostExceeded
from coterie.kube.api.cel.program import BUDGET, CelProgram, compile_expression
from coterie.kube.api.cel.scope import Messages, MessageType
from coterie.kube.api.cel.types import (
    AUTHORIZER,
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    NULL,
    RESOURCE_CHECK,
    STRING,
    TIMESTAMP,
    CelType,
    fits,
    list_of,
    map_of,
)
from coterie.kube.api.cel.values import KINDS
from coterie.kube.api.errors import FieldError, duplicate, invalid, required
from coterie.kube.api.schema.node import Schema

Obj = Mapping[str, Any]
OUT_OF_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"
MAX_MESSAGE: Final = 5 * 1024
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*", re.ASCII)
_MOST_DEEP: Final = 24


def _object(name: str, /, **fields: CelType) -> CelType:
    return CelType(name, fields={key: (key, type_) for key, type_ in fields.items()})


_TEXTS: Final = list_of(STRING)
_KIND: Final = _object("kubernetes.GroupVersionKind", group=STRING, version=STRING, kind=STRING)
_RESOURCE: Final = _object("kubernetes.GroupVersionResource", group=STRING, version=STRING, resource=STRING)
_USER: Final = _object("kubernetes.UserInfo", username=STRING, uid=STRING, groups=_TEXTS, extra=map_of(STRING, _TEXTS))
REQUEST: Final = _object(
    "kubernetes.AdmissionRequest",
    kind=_KIND,
    resource=_RESOURCE,
    subResource=STRING,
    requestKind=_KIND,
    requestResource=_RESOURCE,
    requestSubResource=STRING,
    name=STRING,
    namespace=STRING,
    operation=STRING,
    userInfo=_USER,
    dryRun=BOOL,
    options=DYN,
)
NAMESPACE: Final = _object(
    "kubernetes.Namespace",
    metadata=_object(
        "kubernetes.NamespaceMetadata",
        name=STRING,
        generateName=STRING,
        namespace=STRING,
        labels=map_of(STRING, STRING),
        annotations=map_of(STRING, STRING),
        UID=STRING,
        creationTimestamp=TIMESTAMP,
        deletionGracePeriodSeconds=INT,
        deletionTimestamp=TIMESTAMP,
        generation=INT,
        resourceVersion=STRING,
        finalizers=_TEXTS,
    ),
    spec=_object("kubernetes.NamespaceSpec", finalizers=_TEXTS),
    status=_object(
        "kubernetes.NamespaceStatus",
        conditions=list_of(
            _object(
                "kubernetes.NamespaceCondition",
                status=STRING,
                type=STRING,
                lastTransitionTime=TIMESTAMP,
                message=STRING,
                reason=STRING,
            )
        ),
        phase=STRING,
    ),
)
JSON_PATCH: Final = _object("JSONPatch", op=STRING, path=STRING, **{"from": STRING}, value=DYN)
OBJECT: Final = CelType("Object")


def _mutation_types(name: str) -> MessageType | None:
    """What mutations construct: `JSONPatch`, and `Object` with the path of a field behind it."""
    if name == "JSONPatch":
        fields = JSON_PATCH.fields or {}
        return MessageType(JSON_PATCH, lambda each: fields[each][1] if each in fields else None)
    if name == "Object" or name.startswith("Object."):
        return MessageType(CelType(name), lambda each: CelType(f"{name}.{each}"))
    return None


# -- a compiled policy ------------------------------------------------------------------------------------------------


class PolicyExpression(NamedTuple):
    text: str
    program: CelProgram
    names: tuple[str, ...]
    """The variables in the order in which the program takes them."""


@dataclass(frozen=True, slots=True)
class CompiledValidation:
    test: PolicyExpression
    message: str
    message_expression: PolicyExpression | None
    reason: str


@dataclass(frozen=True, slots=True)
class CompiledAdmissionPolicy:
    conditions: Sequence[PolicyExpression] = ()
    variables: Mapping[str, PolicyExpression] = field(default_factory=dict)
    validations: Sequence[CompiledValidation] = ()
    annotations: Sequence[tuple[str, PolicyExpression]] = ()
    mutations: Sequence[tuple[str, PolicyExpression]] = ()
    """(patchType, expression)"""


def compile_policy(spec: Obj, object_type: CelType = DYN) -> tuple[CompiledAdmissionPolicy, list[FieldError]]:
    """What can be compiled of the `spec` of a validating or mutating policy, and what is wrong with the rest."""
    return _Compilation(spec, object_type).whole()


class _Compilation:
    def __init__(self, spec: Obj, object_type: CelType) -> None:
        self.spec = spec
        self.faults: list[FieldError] = []
        self._base: dict[str, CelType] = {
            "object": object_type,
            "oldObject": object_type,
            "namespaceObject": NAMESPACE,
            "request": REQUEST,
        }
        if spec.get("paramKind") is not None:
            self._base["params"] = DYN
        self._fields: dict[str, tuple[str, CelType]] = {}

    def whole(self) -> tuple[CompiledAdmissionPolicy, list[FieldError]]:
        conditions = list(self._conditions(self.spec.get("matchConditions") or ()))
        variables = dict(self._variables(self.spec.get("variables") or ()))
        validations = list(self._validations(self.spec.get("validations") or ()))
        annotations = list(self._annotations(self.spec.get("auditAnnotations") or ()))
        mutations = list(self._mutations(self.spec.get("mutations") or ()))
        return CompiledAdmissionPolicy(conditions, variables, validations, annotations, mutations), self.faults

    def _expression(
        self,
        text: str,
        path: str,
        allowed: tuple[CelType, ...],
        *,
        composed: bool = True,
        authorizer: bool = True,
        messages: Messages | None = None,
    ) -> PolicyExpression | None:
        variables = dict(self._base)
        if composed and self._fields:
            variables["variables"] = CelType("kubernetes.variables", fields=dict(self._fields))
        if authorizer:
            variables["authorizer"] = AUTHORIZER
            variables["authorizer.requestResource"] = RESOURCE_CHECK
        try:
            program = compile_expression(text, variables, messages)
        except CompileError as fault:
            self.faults.append(invalid(path, text, f"compilation failed: {fault}"))
            return None
        if allowed and not any(fits(wanted, program.type, {}) for wanted in allowed):
            wanted = str(allowed[0]) if len(allowed) == 1 else f"one of [{' '.join(map(str, allowed))}]"
            self.faults.append(invalid(path, text, f"must evaluate to {wanted} but got {program.type}"))
            return None
        return PolicyExpression(text, program, tuple(variables))

    def _conditions(self, conditions: Sequence[Obj]) -> Iterable[PolicyExpression]:
        for index, condition in enumerate(conditions):
            text = (condition.get("expression") or "").strip()
            path = f"spec.matchConditions[{index}].expression"
            made = self._expression(text, path, (BOOL,), composed=False) if text else None
            if made is not None:
                yield made

    def _variables(self, variables: Sequence[Obj]) -> Iterable[tuple[str, PolicyExpression]]:
        for index, variable in enumerate(variables):
            path = f"spec.variables[{index}]"
            name, text = variable.get("name") or "", variable.get("expression") or ""
            if not name.strip():
                self.faults.append(required(f"{path}.name", "name is not specified"))
            elif not _IDENTIFIER.fullmatch(name):
                self.faults.append(invalid(f"{path}.name", name, "name is not a valid CEL identifier"))
            elif name in self._fields:
                self.faults.append(duplicate(f"{path}.name", name))
            if not text.strip():
                self.faults.append(required(f"{path}.expression", "expression is not specified"))
                continue
            messages = _mutation_types if self.spec.get("mutations") else None
            made = self._expression(text, f"{path}.expression", (), messages=messages)
            self._fields.setdefault(name, (name, made.program.type if made is not None else DYN))
            if made is not None:
                yield name, made

    def _validations(self, validations: Sequence[Obj]) -> Iterable[CompiledValidation]:
        for index, validation in enumerate(validations):
            path = f"spec.validations[{index}]"
            text = validation.get("expression") or ""
            if not text.strip():
                self.faults.append(required(f"{path}.expression", "expression is not specified"))
                continue
            test = self._expression(text, f"{path}.expression", (BOOL,))
            worded = validation.get("messageExpression") or ""
            message = None
            if worded.strip():
                at = f"{path}.messageExpression"
                message = self._expression(worded, at, (STRING,), authorizer=False)
            if test is not None:
                reason = validation.get("reason") or "Invalid"
                yield CompiledValidation(test, (validation.get("message") or "").strip(), message, reason)

    def _annotations(self, annotations: Sequence[Obj]) -> Iterable[tuple[str, PolicyExpression]]:
        for index, annotation in enumerate(annotations):
            text = (annotation.get("valueExpression") or "").strip()
            path = f"spec.auditAnnotations[{index}].valueExpression"
            made = self._expression(text, path, (STRING, NULL)) if text else None
            if made is not None:
                yield annotation.get("key") or "", made

    def _mutations(self, mutations: Sequence[Obj]) -> Iterable[tuple[str, PolicyExpression]]:
        for index, mutation in enumerate(mutations):
            kind = mutation.get("patchType") or ""
            key, wanted = {
                "JSONPatch": ("jsonPatch", list_of(JSON_PATCH)),
                "ApplyConfiguration": ("applyConfiguration", OBJECT),
            }.get(kind, ("", DYN))
            text = (mutation.get(key) or {}).get("expression") or "" if key else ""
            if not text.strip():
                continue
            path = f"spec.mutations[{index}].{key}.expression"
            made = self._expression(text, path, (wanted,), messages=_mutation_types)
            if made is not None:
                yield kind, made


# -- evaluation -------------------------------------------------------------------------------------------------------


class EvaluationFailed(Exception):
    """An expression has no value; the text is Kubernetes' own. `final`: nothing more may be evaluated."""

    def __init__(self, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class _LazyVariables(dict[str, Any]):
    """`variables`: each is evaluated when it is first asked for, and fails again with what it failed with."""

    def __init__(self, inputs: PolicyInputs, expressions: Mapping[str, PolicyExpression]) -> None:
        super().__init__()
        self._inputs = inputs
        self._expressions = expressions
        self._failed: dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._expressions

    def __missing__(self, name: str) -> Any:
        if name in self._failed:
            raise CelError(self._failed[name])
        expression = self._expressions[name]
        inputs = self._inputs
        # Variables have a budget of their own, since they are computed amid an expression that counts down its own. One that
        # uses others does not see what they spend until it ends: so all together may take twice what is allowed, not more.
        start = inputs.variable_steps
        left = [start]
        try:
            self[name] = expression.program.evaluate([inputs.values[each] for each in expression.names], left)
        except CelError as fault:
            self._failed[name] = f'composited variable "{name}" fails to evaluate: {fault}'
        finally:
            inputs.variable_steps -= start - left[0]
        if inputs.variable_steps < 0:
            raise CostExceeded("call cost exceeds limit")
        if name in self._failed:
            raise CelError(self._failed[name])
        return self[name]


KINDS[_LazyVariables] = "kubernetes.variables"


class PolicyInputs:
    """The values that one evaluation of a policy sees, and the work that is left for it."""

    def __init__(self, policy: CompiledAdmissionPolicy, values: dict[str, Any], budget: int = BUDGET) -> None:
        self.values = values
        self.budget = [budget]
        self.variable_steps = budget
        values["variables"] = _LazyVariables(self, policy.variables)

    def evaluate(self, expression: PolicyExpression) -> Any:
        values = self.values
        try:
            return expression.program.evaluate([values[name] for name in expression.names], self.budget)
        except CelError as fault:
            raise EvaluationFailed(f"expression '{expression.text}' resulted in error: {fault}") from fault
        except CostExceeded as fault:
            raise EvaluationFailed(OUT_OF_BUDGET, final=True) from fault

    def message(self, validation: CompiledValidation) -> str:
        """Why a validation failed: by its message expression if that gives one usable line, else by what else it has."""
        text = ""
        if validation.message_expression is not None:
            try:
                found = self.evaluate(validation.message_expression)
            except EvaluationFailed as fault:
                if fault.final:
                    raise
                found = None
            text = found.strip() if isinstance(found, str) else ""
            if "\n" in text or len(text) > MAX_MESSAGE:
                text = ""
        return text or validation.message or f"failed expression: {validation.test.text.strip()}"


# -- types of known kinds ---------------------------------------------------------------------------------------------


def type_warnings(spec: Obj, kinds: Iterable[tuple[str, Schema]]) -> list[dict[str, str]]:
    """`status.typeChecking.expressionWarnings`: what would fail for the kinds that a policy names.

    `kinds`: (`apps/v1, Kind=Deployment`, schema). Faults that do not depend on the kind are not repeated.
    """
    _, known = compile_policy(spec)
    found: dict[str, list[str]] = {}
    for shown, schema in kinds:
        _, faults = compile_policy(spec, object_type(schema))
        for fault in faults:
            if fault not in known:
                text = fault.detail.partition("compilation failed: ")[2] or fault.detail
                found.setdefault(fault.field, []).append(f"{shown}: {text}")
    return [{"fieldRef": path, "warning": "\n".join(texts)} for path, texts in found.items()]


def object_type(schema: Schema) -> CelType:
    """The type of a kind's objects. Made anew each time: kept on the nodes, all of them would be megabytes."""
    return _typed(schema, ())


_SCALARS: Final = {"string": STRING, "integer": INT, "number": DOUBLE, "boolean": BOOL}
_FORMATS: Final = {"byte": BYTES, "date-time": TIMESTAMP, "date": TIMESTAMP}


def _typed(schema: Schema, above: tuple[int, ...]) -> CelType:
    if schema.int_or_string or schema.quantity or id(schema) in above or len(above) > _MOST_DEEP:
        return DYN
    inside = (*above, id(schema))
    if schema.type == "array":
        return list_of(_typed(schema.items, inside)) if schema.items is not None else DYN
    if schema.type == "object":
        if schema.additional is not None:
            return map_of(STRING, _typed(schema.additional, inside))
        if schema.preserve_unknown or not schema.properties:
            return DYN
        return CelType(
            "object", fields={name: (name, _typed(node, inside)) for name, node in schema.properties.items()}
        )
    if schema.type == "string":
        return _FORMATS.get(schema.format, STRING)
    return _SCALARS.get(schema.type, DYN)
