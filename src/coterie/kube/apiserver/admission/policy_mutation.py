"""Mutating admission policies: JSON patches and apply configurations that CEL expressions make.

What comes out is checked against the schema like a request, and what only the server may set stays as it was.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Final

from coterie.kube.api import errors
from coterie.kube.api.cel.lib_time import show_duration, show_timestamp
from coterie.kube.api.cel.policies import EvaluationFailed
from coterie.kube.api.cel.values import Duration, Optional, Timestamp
from coterie.kube.api.fields.layout import WHOLE, root_layout
from coterie.kube.api.fields.merge import merge
from coterie.kube.api.patch.jsonpatch import PatchTestFailed, json_patch
from coterie.kube.api.quantity import Quantity
from coterie.kube.api.schema import decode
from coterie.kube.api.schema.node import Schema
from coterie.kube.apiserver.admission.policy_evaluation import BoundPolicy, PolicyEvaluation, PolicyInvocation
from coterie.kube.apiserver.kinds import Strategy

Object = dict[str, Any]
_KEPT: Final = (
    "name", "generateName", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
    "generation", "resourceVersion", "managedFields",
)  # fmt: skip
_MOST_VALUES: Final = 100_000


class MutationFailed(Exception):
    """A mutation has no result that could be stored."""


def mutate(evaluation: PolicyEvaluation, policies: Sequence[BoundPolicy], strategy: Strategy) -> None:
    """Change the object of the request in place by all policies; those that want it see the changes of later ones."""
    done: list[PolicyInvocation] = []
    changed_at = -1
    for invocation in evaluation.invocations(policies):
        if _invoke(evaluation, invocation, strategy):
            changed_at = len(done)
        done.append(invocation)
    for index, invocation in enumerate(done):
        if index < changed_at and invocation.policy.spec.get("reinvocationPolicy") == "IfNeeded":
            _invoke(evaluation, invocation, strategy)


def _invoke(evaluation: PolicyEvaluation, invocation: PolicyInvocation, strategy: Strategy) -> bool:
    """Whether the object changed."""
    policy, attempt = invocation.policy, evaluation.attempt
    if invocation.error:
        _refuse(evaluation, invocation, invocation.error)
        return False
    changed = False
    for index, (kind, expression) in enumerate(policy.compiled.mutations):
        # Each mutation sees what those before it made.
        inputs = evaluation.inputs(invocation)
        try:
            if index == 0 and not evaluation.conditions_met(policy, inputs):
                return False
            value = inputs.evaluate(expression)
            before = attempt.obj
            after = _applied(kind, value, before, strategy)
        except (EvaluationFailed, MutationFailed) as fault:
            _refuse(evaluation, invocation, str(fault))
            continue
        finally:
            evaluation.settle(inputs)
        if after != before:
            changed = True
            attempt.obj.clear()
            attempt.obj.update(after)
    return changed


def _refuse(evaluation: PolicyEvaluation, invocation: PolicyInvocation, why: str) -> None:
    if not invocation.policy.fails_closed:
        return
    attempt = evaluation.attempt
    bound = f" with binding '{invocation.binding.name}'" if invocation.binding is not None else ""
    message = f"policy '{invocation.policy.name}'{bound} denied request: {why}"
    raise errors.Forbidden(
        message,
        name=attempt.name,
        group=attempt.resource.group,
        kind=attempt.resource.plural,
        causes=(errors.StatusCause("", message),),
    )


def _applied(kind: str, value: Any, obj: Object, strategy: Strategy) -> Object:
    made = _json(value, [_MOST_VALUES])
    try:
        after = _patched(made, obj) if kind == "JSONPatch" else _merged(made, obj, strategy.storage_schema)
    except errors.ApiError as fault:
        raise MutationFailed(fault.message) from fault
    except RecursionError as fault:
        raise MutationFailed("the object is nested too deeply") from fault
    metadata = after.get("metadata")
    if not isinstance(metadata, dict):
        raise MutationFailed("metadata must be an object")
    before = obj["metadata"]
    kept = {key: before[key] for key in _KEPT if key in before}
    after = {
        **after,
        "metadata": {**kept, **{key: each for key, each in metadata.items() if key not in _KEPT}},
    }
    for key in ("apiVersion", "kind"):
        if key in obj:
            after[key] = obj[key]
    if not strategy.resource.custom:
        wrong, _ = decode.decode_check(after, strategy.storage_schema)
        if wrong:
            raise MutationFailed(f"the mutated object is invalid: {wrong[0]}")
    strategy.default(after)
    return after


def _patched(operations: Any, obj: Object) -> Object:
    try:
        return json_patch(obj, operations)
    except PatchTestFailed:
        return obj


def _merged(config: Any, obj: Object, schema: Schema) -> Object:
    if not isinstance(config, dict):
        raise MutationFailed("unsupported return type from ApplyConfiguration expression")
    atomic = list(_atomics(config, schema, ""))
    if atomic:
        why = f"may not mutate atomic arrays, maps or structs: {', '.join(atomic)}"
        raise MutationFailed(f"error applying patch: invalid ApplyConfiguration: {why}")
    wrong, unknown = decode.decode_check(config, schema)
    if wrong or unknown:
        raise MutationFailed(f"error applying patch: failed to convert patch object: {(wrong or unknown)[0]}")
    merged: Object = merge(root_layout(schema, WHOLE), obj, config)
    return merged


def _atomics(value: Any, schema: Schema, path: str) -> list[str]:
    """Where a configuration would replace a whole list or map, though it may know only a part of it."""
    found: list[str] = []
    if isinstance(value, dict):
        if schema.atomic_map:
            found.append(path)
        for key, item in value.items():
            child = schema.properties.get(key) or schema.additional
            if child is not None:
                found += _atomics(item, child, f"{path}.{key}")
    elif isinstance(value, list) and schema.items is not None:
        if schema.list_type == "atomic":
            found.append(path)
        for index, item in enumerate(value):
            found += _atomics(item, schema.items, f"{path}[{index}]")
    return found


def _json(value: Any, budget: list[int]) -> Any:
    """A CEL value as JSON; copied, since parts of it can be parts of stored objects."""
    budget[0] -= 1
    if budget[0] < 0:
        raise MutationFailed("the value of the mutation is too large")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise MutationFailed("the value of the mutation is no JSON number")
        return value
    if isinstance(value, list):
        return [_json(item, budget) for item in value]
    if isinstance(value, dict):
        return {str(key): _json(item, budget) for key, item in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Timestamp):
        return show_timestamp(value)
    if isinstance(value, Duration):
        return show_duration(value)
    if isinstance(value, Quantity):
        return str(value)
    if isinstance(value, Optional) and value.has:
        return _json(value.value, budget)
    raise MutationFailed("the value of the mutation could not marshal to JSON")
