"""One request before admission policies: which of them match, what they see, what they decide.

A policy is evaluated once for each binding that matches, and each object that parameterizes it. Everything happens in the
turn of the loop that decides on the write, so the work of all policies together is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import orjson

from coterie.http.messages import UserInfo
from coterie.kube.api import errors
from coterie.kube.api.admission_match import MatchedRequest, is_exempt, matching_version
from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.lib_authorization import AuthorizerValue, ResourceCheck
from coterie.kube.api.cel.lib_time import parse_timestamp
from coterie.kube.api.cel.policies import CompiledAdmissionPolicy, EvaluationFailed, PolicyInputs
from coterie.kube.api.cel.program import BUDGET
from coterie.kube.api.resources import Resource
from coterie.kube.api.selectors import selector_of
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.auth.cel_authorizer import authorizer_value
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.kinds import Strategy
from coterie.kube.apiserver.state.state import ResourceStorage

Object = dict[str, Any]
TOTAL_BUDGET: Final = 4 * BUDGET
"""Steps that all policies together may take for one request: about a second at worst."""
_LONGEST_ANNOTATION: Final = 10 * 1024
_OPERATIONS: Final = {"create": "CREATE", "update": "UPDATE", "delete": "DELETE", "connect": "CONNECT"}
_OPTIONS: Final = {"create": "CreateOptions", "update": "UpdateOptions", "delete": "DeleteOptions"}
_FAILURE: Final = "validation.policy.admission.k8s.io/validation_failure"
_ERRORS: Final[Mapping[str, type[errors.ApiError]]] = {
    "Forbidden": errors.Forbidden,
    "Invalid": errors.Invalid,
    "RequestEntityTooLarge": errors.RequestEntityTooLarge,
}
_TIMES: Final = ("creationTimestamp", "deletionTimestamp")
_NAMESPACE_FIELDS: Final = (
    "name", "generateName", "labels", "annotations", "deletionGracePeriodSeconds", "generation", "resourceVersion",
    "finalizers",
)  # fmt: skip


class PolicyBinding(NamedTuple):
    name: str
    spec: Object


@dataclass(frozen=True, slots=True)
class BoundPolicy:
    name: str
    spec: Object
    compiled: CompiledAdmissionPolicy
    bindings: Sequence[PolicyBinding]

    @property
    def fails_closed(self) -> bool:
        return self.spec.get("failurePolicy") != "Ignore"


class PolicyConfigurationError(Exception):
    """A policy or binding cannot be evaluated as it is configured; the failure policy decides."""


class PolicyInvocation(NamedTuple):
    policy: BoundPolicy
    binding: PolicyBinding | None
    """None: the policy itself is misconfigured."""
    version: Resource
    param: Object | None = None
    error: str = ""


class _Denial(NamedTuple):
    policy: str
    binding: str
    message: str
    reason: str = ""


class PolicyEvaluation:
    def __init__(
        self,
        attempt: AdmissionRequest,
        state: ResourceStorage,
        authorizer: RbacAuthorizer,
        strategy: Strategy | None,
    ) -> None:
        self.attempt = attempt
        self._state = state
        self._authorizer = authorizer
        self._strategy = strategy
        self._left = TOTAL_BUDGET

    # -- matching -----------------------------------------------------------------------------------------------

    def invocations(self, policies: Sequence[BoundPolicy]) -> Iterator[PolicyInvocation]:
        """Everything that is to be evaluated for this request, in the order of names."""
        if is_exempt(self.attempt.resource):
            return
        for policy in policies:
            version = matching_version(policy.spec.get("matchConstraints") or {}, self._facts)
            if version is None:
                continue
            source = None
            kind = policy.spec.get("paramKind")
            if kind is not None:
                source = resource_of(self._state, kind)
                if source is None:
                    shown = f"{kind.get('apiVersion')}, Kind={kind.get('kind')}"
                    why = f"failed to configure policy: failed to find resource referenced by paramKind: '{shown}'"
                    yield PolicyInvocation(policy, None, version, error=why)
                    continue
            for binding in policy.bindings:
                match = binding.spec.get("matchResources")
                if match is not None and matching_version(match, self._facts) is None:
                    continue
                try:
                    params = self._params(source, binding.spec.get("paramRef"))
                except PolicyConfigurationError as fault:
                    yield PolicyInvocation(policy, binding, version, error=f"failed to configure binding: {fault}")
                    continue
                for param in params:
                    yield PolicyInvocation(policy, binding, version, param)

    @cached_property
    def _facts(self) -> MatchedRequest:
        attempt = self.attempt
        resource = attempt.resource
        others = [
            view.resource
            for view in self._state.views()
            if view.resource.key == resource.key and view.resource is not resource
        ]
        objects = [obj for obj in (attempt.obj, attempt.old) if obj]
        labels = [(obj.get("metadata") or {}).get("labels") or {} for obj in objects]
        if resource.kind == "Namespace" and not resource.group:
            of_namespace: Mapping[str, Any] | None = labels[0] if labels else {}
        elif attempt.namespace:
            entry = self._state.collection("/registry/core/namespaces").get("", attempt.namespace)
            of_namespace = (entry.labels if entry is not None else None) or {}
        else:
            of_namespace = None
        operation = _OPERATIONS[attempt.verb]
        return MatchedRequest(
            operation, (resource, *others), attempt.subresource, attempt.name, of_namespace, labels or [{}]
        )

    def _params(self, source: Resource | None, ref: Mapping[str, Any] | None) -> list[Object | None]:
        """The objects that parameterize one binding. Without kind or reference the policy runs once, with null."""
        if source is None or ref is None:
            return [None]
        namespace = ref.get("namespace") or ""
        if namespace and not source.namespaced:
            raise PolicyConfigurationError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        if source.namespaced:
            namespace = namespace or self.attempt.namespace
            if not namespace:
                why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                raise PolicyConfigurationError(why)
        collection = self._state.collection(source.key)
        view = self._state.view(source.group, source.version, source.plural)
        assert view is not None
        if ref.get("name"):
            entry = collection.get(namespace, ref["name"])
            found = [entry] if entry is not None else []
        else:
            selector = selector_of(ref.get("selector"))
            found = [entry for entry in collection.entries(namespace) if selector.matches(entry.labels)]
        if not found and ref.get("parameterNotFoundAction") == "Deny":
            raise PolicyConfigurationError("no params found for policy binding with `Deny` parameterNotFoundAction")
        return [view.load(entry.raw) for entry in found]

    # -- what expressions see -----------------------------------------------------------------------------------

    def inputs(self, invocation: PolicyInvocation) -> PolicyInputs:
        attempt, version = self.attempt, invocation.version
        deleting = attempt.verb == "delete"
        values = {
            "object": None if deleting else self._shown(attempt.obj, version),
            "oldObject": None if attempt.old is None else self._shown(attempt.old, version),
            "request": self._request(version),
            "namespaceObject": self._namespace,
            "params": invocation.param,
            "authorizer": self._authorizer_value,
            "authorizer.requestResource": ResourceCheck(
                self._authorizer_value,
                attempt.resource.group,
                attempt.resource.plural,
                attempt.subresource,
                attempt.namespace,
                attempt.name,
            ),
        }
        return PolicyInputs(invocation.policy.compiled, values, min(BUDGET, self._left))

    def settle(self, inputs: PolicyInputs) -> None:
        """Count what an evaluation took."""
        used = [min(BUDGET, self._left) - max(left, 0) for left in (inputs.budget[0], inputs.variable_steps)]
        self._left = max(self._left - sum(used), 0)

    def _shown(self, obj: Object, version: Resource) -> Object:
        """The stored object as the version that matched has it."""
        if self.attempt.verb == "connect" or (self.attempt.verb == "create" and self.attempt.subresource):
            return obj  # an object of its own kind: options of a connection, an Eviction, a Binding
        if self.attempt.subresource == "scale" and self._strategy is not None:
            return self._strategy.scale_of(obj)
        view = self._state.view(version.group, version.version, version.plural)
        shown = view.of_stored(obj) if view is not None else obj
        if shown.get("apiVersion") != version.api_version:
            shown = {**shown, "apiVersion": version.api_version, "kind": version.kind}
        return shown

    def _request(self, version: Resource) -> Object:
        attempt = self.attempt
        asked = attempt.resource
        request: Object = {
            "kind": _kind_json(version, attempt),
            "resource": _resource_json(version),
            "requestKind": _kind_json(asked, attempt),
            "requestResource": _resource_json(asked),
            "operation": _OPERATIONS[attempt.verb],
            "userInfo": _user_json(attempt.user),
            "dryRun": attempt.dry_run,
        }
        if attempt.verb in _OPTIONS:
            request["options"] = {"kind": _OPTIONS[attempt.verb], "apiVersion": "meta.k8s.io/v1"}
        optional = {
            "name": attempt.name,
            "namespace": attempt.namespace,
            "subResource": attempt.subresource,
            "requestSubResource": attempt.subresource,
        }
        request.update((key, value) for key, value in optional.items() if value)
        return request

    @cached_property
    def _namespace(self) -> Object | None:
        attempt = self.attempt
        if not attempt.namespace or (attempt.resource.kind == "Namespace" and not attempt.resource.group):
            return None
        entry = self._state.collection("/registry/core/namespaces").get("", attempt.namespace)
        return _namespace_json(entry.load()) if entry is not None else None

    @cached_property
    def _authorizer_value(self) -> AuthorizerValue:
        return authorizer_value(self._authorizer, self.attempt.user)

    # -- deciding -----------------------------------------------------------------------------------------------

    def conditions_met(self, policy: BoundPolicy, inputs: PolicyInputs) -> bool:
        """Whether all match conditions are true: one that is false decides, also over errors. Raises EvaluationFailed."""
        failed: EvaluationFailed | None = None
        for condition in policy.compiled.conditions:
            try:
                if inputs.evaluate(condition) is not True:
                    return False
            except EvaluationFailed as fault:
                failed = failed or fault
                if fault.final:
                    break
        if failed is not None:
            if policy.fails_closed:
                raise failed
            return False
        return True

    def validate(self, policies: Sequence[BoundPolicy]) -> None:
        """Raise what the first denial says; warnings and audit annotations are those of all policies."""
        denials: list[_Denial] = []
        published: dict[str, list[str]] = {}
        for invocation in self.invocations(policies):
            if invocation.error:
                if invocation.policy.fails_closed:
                    name = invocation.binding.name if invocation.binding is not None else ""
                    denials.append(_Denial(invocation.policy.name, name, invocation.error))
                continue
            inputs = self.inputs(invocation)
            denials += self._validate_one(invocation, inputs, published)
            self.settle(inputs)
        for key, values in published.items():
            self.attempt.annotate(key, ", ".join(values))
        if denials:
            raise self._refusal(denials[0])

    def _validate_one(
        self, invocation: PolicyInvocation, inputs: PolicyInputs, published: dict[str, list[str]]
    ) -> Iterator[_Denial]:
        policy, binding = invocation.policy, invocation.binding
        assert binding is not None
        try:
            if not self.conditions_met(policy, inputs):
                return
        except EvaluationFailed as fault:
            yield from self._acted(policy, binding, -1, str(fault), "")
            return
        for index, validation in enumerate(policy.compiled.validations):
            try:
                if inputs.evaluate(validation.test) is True:
                    continue
                message, reason = inputs.message(validation), validation.reason
            except EvaluationFailed as fault:
                if policy.fails_closed:
                    yield from self._acted(policy, binding, index, str(fault), "")
                if fault.final:
                    break
                continue
            yield from self._acted(policy, binding, index, message, reason)
        yield from self._annotations(policy, binding, inputs, published)

    def _acted(
        self, policy: BoundPolicy, binding: PolicyBinding, index: int, message: str, reason: str
    ) -> Iterator[_Denial]:
        """What the binding wants done with a failure."""
        actions = binding.spec.get("validationActions") or ()
        if "Deny" in actions:
            yield _Denial(policy.name, binding.name, message, reason)
        if "Warn" in actions:
            self.attempt.warn(
                f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}': {message}"
            )
        if "Audit" in actions:
            failure = {
                "message": message,
                "policy": policy.name,
                "binding": binding.name,
                "expressionIndex": max(index, 0),
                "validationActions": list(actions),
            }
            self.attempt.annotate(_FAILURE, orjson.dumps([failure]).decode())

    def _annotations(
        self, policy: BoundPolicy, binding: PolicyBinding, inputs: PolicyInputs, published: dict[str, list[str]]
    ) -> Iterator[_Denial]:
        for key, expression in policy.compiled.annotations:
            try:
                value = inputs.evaluate(expression)
                if value is not None and not isinstance(value, str):
                    why = f"valueExpression '{expression.text}' resulted in unsupported return type. "
                    raise EvaluationFailed(why + "Return type must be either string or null.")
            except EvaluationFailed as fault:
                if policy.fails_closed:
                    yield _Denial(policy.name, binding.name, str(fault))
                continue
            text = (value or "").strip()[:_LONGEST_ANNOTATION]
            values = published.setdefault(f"{policy.name}/{key}", []) if text else []
            if text and text not in values:
                values.append(text)

    def _refusal(self, denial: _Denial) -> errors.ApiError:
        resource, name = self.attempt.resource, self.attempt.name
        bound = f" with binding '{denial.binding}'" if denial.binding else ""
        message = f"ValidatingAdmissionPolicy '{denial.policy}'{bound} denied request: {denial.message}"
        return _ERRORS.get(denial.reason, errors.Invalid)(
            f'{resource.group_resource} "{name}" is forbidden: {message}',
            name=name,
            group=resource.group,
            kind=resource.plural,
            causes=(errors.StatusCause("", message),),
        )


def resource_of(state: ResourceStorage, kind: Mapping[str, Any]) -> Resource | None:
    """Of a `paramKind`."""
    wanted = kind.get("apiVersion"), kind.get("kind")
    for view in state.views():
        if (view.resource.api_version, view.resource.kind) == wanted:
            return view.resource
    return None


def _kind_json(resource: Resource, attempt: AdmissionRequest) -> Object:
    if attempt.subresource:
        sub = resource.subresource(attempt.subresource)
        if sub is not None and sub.kind:
            return {"group": sub.group, "version": sub.version, "kind": sub.kind}
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _resource_json(resource: Resource) -> Object:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}


def _user_json(user: UserInfo) -> Object:
    out: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        out["uid"] = user.uid
    if user.extra:
        out["extra"] = {key: list(values) for key, values in user.extra}
    return out


def _namespace_json(namespace: Object) -> Object:
    """`namespaceObject`: the part of a Namespace that policies see, with times as times."""
    metadata = namespace["metadata"]
    shown: Object = {key: metadata[key] for key in _NAMESPACE_FIELDS if key in metadata}
    shown["UID"] = metadata.get("uid") or ""
    for key in _TIMES:
        if metadata.get(key):
            shown[key] = _time(metadata[key])
    status = dict(namespace.get("status") or {})
    if status.get("conditions"):
        status["conditions"] = [
            {**each, "lastTransitionTime": _time(each.get("lastTransitionTime"))} for each in status["conditions"]
        ]
    return {"metadata": shown, "spec": namespace.get("spec") or {}, "status": status}


def _time(text: Any) -> Any:
    try:
        return parse_timestamp(text) if isinstance(text, str) else None
    except CelError:
        return None
