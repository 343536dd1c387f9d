"""`x-kubernetes-validations`: compiling the rules of a schema, and checking an object by them.

Compilation fills `ValidationRule.program` and tells what is wrong with the rules; checking walks the object beside the schema,
only along branches with rules. A rule that reads `oldSelf` is a transition rule: it runs on updates, and only where
the old value can be found by name or by list key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from coterie.kube.api.cel.decls import Decl, declare
from coterie.kube.api.cel.errors import CelError, CompileError, CostExceeded
from coterie.kube.api.cel.program import BUDGET, CelProgram, compile_expression
from coterie.kube.api.cel.types import BOOL, DYN, STRING, CelType, optional_of
from coterie.kube.api.cel.values import NONE, Optional, equal
from coterie.kube.api.errors import FieldError, forbidden_field, invalid, required
from coterie.kube.api.schema.node import MISSING, Schema, ValidationRule
from coterie.kube.api.schema.validate import freeze

_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\['((?:[^'\\]|\\.)+)'\]", re.ASCII)
_OUT_OF_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"


@dataclass(frozen=True, slots=True)
class CompiledRule:
    test: CelProgram
    message: CelProgram | None
    transition: bool
    field_path: str


# -- compiling --------------------------------------------------------------------------------------------------------


def compile_rules(schema: Schema, path: str) -> list[FieldError]:
    """Compile all rules below the root `schema`; `path` is e.g. `spec.versions[0].schema.openAPIV3Schema`."""
    return list(_compile_below(schema, path, "", is_root=True))


def _compile_below(schema: Schema, path: str, uncorrelated: str, is_root: bool = False) -> Iterator[FieldError]:
    if not schema.has_rules:
        return
    if schema.rules:
        decl = declare(schema, is_resource=is_root) or Decl(DYN)
        for index, rule in enumerate(schema.rules):
            yield from _compile_rule(rule, schema, decl, f"{path}.x-kubernetes-validations[{index}]", uncorrelated)
    for name, child in schema.properties.items():
        yield from _compile_below(child, f"{path}.properties[{name}]", uncorrelated)
    if schema.additional is not None:
        yield from _compile_below(schema.additional, f"{path}.additionalProperties", uncorrelated)
    if schema.items is not None:
        lost = uncorrelated or ("" if schema.list_type == "map" else path)
        yield from _compile_below(schema.items, f"{path}.items", lost)


def _compile_rule(
    rule: ValidationRule, schema: Schema, decl: Decl, path: str, uncorrelated: str
) -> Iterator[FieldError]:
    old_type = optional_of(decl.type) if rule.optional_old_self else decl.type
    variables: dict[str, CelType] = {"self": decl.type, "oldSelf": old_type}
    message: CelProgram | None = None
    try:
        test = compile_expression(rule.rule.strip(), variables)
    except CompileError as fault:
        yield _refused(f"{path}.rule", rule, f"compilation failed: {fault}")
        return
    if test.type is not BOOL and test.type is not DYN:
        yield _refused(f"{path}.rule", rule, "cel expression must evaluate to a bool")
        return
    transition = "oldSelf" in test.used
    if transition and uncorrelated:
        sentence = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelated}"
        yield _refused(f"{path}.rule", rule, sentence)
        return
    if rule.optional_old_self and not transition:
        yield FieldError(
            f"{path}.optionalOldSelf",
            "FieldValueInvalid",
            "Invalid value: true: may not be set if oldSelf is not used in rule",
        )
        return
    if rule.message_expression:
        try:
            message = compile_expression(rule.message_expression.strip(), variables)
        except CompileError as fault:
            yield _refused(f"{path}.messageExpression", rule, f"messageExpression compilation failed: {fault}")
            return
        if message.type is not STRING and message.type is not DYN:
            yield _refused(f"{path}.messageExpression", rule, "messageExpression must evaluate to a string")
            return
    place = _place(rule.field_path, schema)
    if place is None:
        yield invalid(
            f"{path}.fieldPath", rule.field_path, "fieldPath must be a valid path: does not refer to a valid field"
        )
        return
    rule.program = CompiledRule(test, message, transition, place)


def _refused(path: str, rule: ValidationRule, why: str) -> FieldError:
    shown = (
        f'apiextensions.ValidationRule{{Rule:"{rule.rule}", Message:"{rule.message}", '
        f'MessageExpression:"{rule.message_expression}", FieldPath:"{rule.field_path}"}}'
    )
    return FieldError(path, "FieldValueInvalid", f"Invalid value: {shown}: {why}")


def _place(field_path: str, schema: Schema) -> str | None:
    """The path to append to the node's own: `.spec['a.b']` is `.spec[a.b]`; None when no such field exists."""
    at, out, node = 0, "", schema
    while at < len(field_path):
        found = _STEP.match(field_path, at)
        if found is None:
            return None
        name = found[1] or re.sub(r"\\(.)", r"\1", found[2])
        child = node.properties.get(name)
        out += f".{name}" if child is not None else f"[{name}]"
        child = child or node.additional
        if child is None:
            return None
        node, at = child, found.end()
    return out


# -- checking ---------------------------------------------------------------------------------------------------------


def check(
    obj: Any, old_obj: Any | None, schema: Schema, path: str = "", *, ratchet: bool = False, budget: int = BUDGET
) -> list[FieldError]:
    """The rules that `obj` breaks; `old_obj` is None on create. Rules must have been compiled.

    With `ratchet`, a value that an update leaves as it was is not held against rules that came after it.
    """
    walk = _Walk(ratchet, [budget])
    try:
        walk.node(obj, MISSING if old_obj is None else old_obj, schema, path)
    except CostExceeded:
        walk.errors.append(invalid(path or "<nil>", "", _OUT_OF_BUDGET))
    except RecursionError:
        walk.errors.append(invalid(path or "<nil>", "", "is nested too deeply"))
    return walk.errors


class _Walk:
    def __init__(self, ratchet: bool, budget: list[int]) -> None:
        self.ratchet = ratchet
        self.budget = budget
        self.errors: list[FieldError] = []

    def node(self, value: Any, old: Any, schema: Schema, path: str, kept: bool = False) -> None:
        """`kept`: part of a list that did not change, whose elements cannot be told apart."""
        if not schema.has_rules or value is None:
            return
        if schema.rules:
            self._rules(value, old, schema, path, kept)
        if type(value) is dict:
            old_map = old if type(old) is dict else {}
            prefix = f"{path}." if path else ""
            for name, child in schema.properties.items():
                if child.has_rules and name in value:
                    self.node(value[name], old_map.get(name, MISSING), child, prefix + name, kept)
            if schema.additional is not None and schema.additional.has_rules:
                for name, item in value.items():
                    self.node(item, old_map.get(name, MISSING), schema.additional, f"{path}[{name}]", kept)
        elif type(value) is list and schema.items is not None and schema.items.has_rules:
            previous = _by_key(old, schema)
            kept = kept or (self.ratchet and schema.list_type != "map" and value == old)
            for index, item in enumerate(value):
                was = previous.get(_key(item, schema), MISSING) if previous else MISSING
                self.node(item, was, schema.items, f"{path}[{index}]", kept)

    def _rules(self, value: Any, old: Any, schema: Schema, path: str, kept: bool) -> None:
        decl = declare(schema) or Decl(DYN)
        try:
            now = value if decl.convert is None else decl.convert(value)
            before = old if old is MISSING or old is None or decl.convert is None else decl.convert(old)
            unchanged = kept or (self.ratchet and old is not MISSING and _unchanged(value, old, now, before))
        except CelError as fault:
            self.errors.append(invalid(path or "<nil>", schema.type, str(fault)))
            return
        for rule in schema.rules:
            program: CompiledRule | None = rule.program
            if program is None or (unchanged and not program.transition):
                continue
            if program.transition and old is MISSING and not rule.optional_old_self:
                continue
            previous = before
            if rule.optional_old_self:
                previous = NONE if old is MISSING else Optional(True, before)
            self._rule(rule, program, [now, None if previous is MISSING else previous], schema, path)

    def _rule(self, rule: ValidationRule, program: CompiledRule, values: list[Any], schema: Schema, path: str) -> None:
        try:
            passed = program.test.evaluate(values, self.budget)
        except CelError as fault:
            self.errors.append(invalid(path or "<nil>", schema.type, f"{fault} evaluating rule: {_rule_message(rule)}"))
            return
        if passed is not True:
            where = (path + program.field_path).lstrip(".") or "<nil>"
            self.errors.append(_failure(where, rule, schema.type, self._message(rule, program, values)))

    def _message(self, rule: ValidationRule, program: CompiledRule, values: list[Any]) -> str:
        """What the message expression says, unless it fails or says nothing usable."""
        if program.message is not None:
            try:
                text = program.message.evaluate(values, self.budget)
            except CelError:
                return _rule_message(rule)
            if isinstance(text, str) and text.strip() and "\n" not in text.strip() and len(text) <= 5 * 1024:
                return text.strip()
        return _rule_message(rule)


def _unchanged(value: Any, old: Any, now: Any, before: Any) -> bool:
    if value == old:
        return True
    if now is value or type(old) is not type(value):
        return False
    try:
        # Sets and lists with keys may have changed their order only.
        return equal(now, before)
    except CelError:
        return False


def _rule_message(rule: ValidationRule) -> str:
    return rule.message.strip() or f"failed rule: {rule.rule.strip()}"


def _failure(path: str, rule: ValidationRule, type_: str, message: str) -> FieldError:
    if rule.reason == "FieldValueRequired":
        return required(path, message)
    if rule.reason == "FieldValueForbidden":
        return forbidden_field(path, message)
    if rule.reason == "FieldValueDuplicate":
        return FieldError(path, rule.reason, f'Duplicate value: "{type_}": {message}')
    return invalid(path, type_, message)


def _by_key(old: Any, schema: Schema) -> dict[object, Any]:
    if schema.list_type != "map" or type(old) is not list:
        return {}
    return {_key(item, schema): item for item in old}


def _key(item: Any, schema: Schema) -> object:
    if type(item) is not dict:
        return MISSING
    return freeze([item.get(key) for key in schema.list_keys])
