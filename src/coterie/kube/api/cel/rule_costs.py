"""Limits on the rules of a definition: each rule, and all of them together, may cost so much and no more.

A rule below a list or map runs once for each element, so its cost counts as often as there can be elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from coterie.kube.api.cel.cost import MOST, REQUEST_BYTES, estimate, least_bytes
from coterie.kube.api.cel.decls import Decl, declare
from coterie.kube.api.cel.types import DYN, CelType, optional_of
from coterie.kube.api.errors import FieldError, forbidden_field
from coterie.kube.api.schema.node import Schema

RULE_LIMIT: Final = 10_000_000
TOTAL_LIMIT: Final = 100_000_000
_SHOWN: Final = 4
"""Of the rules that make a total too high, the most expensive ones are named."""
_ADVICE: Final = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are "
    "declared)"
)


class _RuleCost(NamedTuple):
    path: str
    what: str
    cost: int


def cost_faults(schema: Schema, path: str) -> list[FieldError]:
    """What is too expensive below the root `schema`, whose rules compile."""
    costs = list(_costs(schema, path, 1, is_root=True))
    faults = [
        forbidden_field(each.path, _exceeded(f"estimated {each.what} cost", each.cost, RULE_LIMIT))
        for each in costs
        if each.cost > RULE_LIMIT
    ]
    total = min(sum(each.cost for each in costs), MOST)
    if total > TOTAL_LIMIT:
        expensive = sorted((each for each in costs if each.cost >= TOTAL_LIMIT // 100), key=lambda each: -each.cost)
        why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        faults += [forbidden_field(each.path, why) for each in expensive[:_SHOWN]]
        what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        faults.append(forbidden_field(path, _exceeded(what, total, TOTAL_LIMIT)))
    return faults


def _exceeded(what: str, cost: int, limit: int) -> str:
    factor = cost / limit
    shown = "more than 100x" if factor > 100 else f"{factor:f}x" if factor < 1.5 else f"{factor:.1f}x"
    return f"{what} exceeds budget by factor of {shown} {_ADVICE}"


def _costs(schema: Schema, path: str, times: int | None, is_root: bool = False) -> Iterator[_RuleCost]:
    """`times`: how many such values one object can hold; None: as many as fit into a request."""
    if not schema.has_rules:
        return
    if schema.rules:
        yield from _rule_costs(schema, path, times, is_root)
    for name, child in schema.properties.items():
        yield from _costs(child, f"{path}.properties[{name}]", times)
    if schema.additional is not None:
        inner = _repeated(times, schema.max_properties)
        yield from _costs(schema.additional, f"{path}.additionalProperties", inner)
    if schema.items is not None:
        yield from _costs(schema.items, f"{path}.items", _repeated(times, schema.max_items))


def _repeated(times: int | None, most: int | None) -> int | None:
    return None if times is None or most is None else min(times * most, MOST)


def _rule_costs(schema: Schema, path: str, times: int | None, is_root: bool) -> Iterator[_RuleCost]:
    decl = declare(schema, is_resource=is_root) or Decl(DYN)
    repeated = REQUEST_BYTES // (least_bytes(schema) + 1) if times is None else times
    for index, rule in enumerate(schema.rules):
        old = optional_of(decl.type) if rule.optional_old_self else decl.type
        variables: dict[str, CelType] = {"self": decl.type, "oldSelf": old}
        schemas = {"self": schema, "oldSelf": schema}
        at = f"{path}.x-kubernetes-validations[{index}]"
        cost = estimate(rule.rule.strip(), variables, schemas)
        yield _RuleCost(f"{at}.rule", "rule", min(cost * repeated, MOST))
        if rule.message_expression:
            cost = estimate(rule.message_expression.strip(), variables, schemas)
            yield _RuleCost(f"{at}.messageExpression", "messageExpression", cost)
