"""Admission policies: ValidatingAdmissionPolicy and MutatingAdmissionPolicy with their bindings.

Two steps of admission, `mutate` and `validate`. Without a binding of their kind both return at once, and nothing of CEL is
loaded. A policy is compiled when it is first needed and again when its generation changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.api import errors
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.auth.rules import Attributes
from coterie.kube.apiserver.kinds import Strategy
from coterie.kube.apiserver.state.state import ResourceStorage
from coterie.kube.apiserver.state.watching import StoredChange

if TYPE_CHECKING:
    from coterie.kube.api.cel import policies as cel_policies
    from coterie.kube.apiserver.admission import policy_evaluation, policy_mutation
else:
    cel_policies = lazy_import("coterie.kube.api.cel.policies")
    policy_evaluation = lazy_import("coterie.kube.apiserver.admission.policy_evaluation")
    policy_mutation = lazy_import("coterie.kube.apiserver.admission.policy_mutation")

Object = dict[str, Any]
_GROUP = "admissionregistration.k8s.io"
_KEY = "/registry/admissionregistration.k8s.io/"
_VALIDATING, _MUTATING = "validatingadmissionpolicies", "mutatingadmissionpolicies"
_BINDINGS = {_VALIDATING: "validatingadmissionpolicybindings", _MUTATING: "mutatingadmissionpolicybindings"}
_POLICY_OF = {plural: kind for kind, plural in _BINDINGS.items()}
_MOST_CHECKED = 10
"""Kinds that a policy's expressions are checked with."""


class PolicyAdmission:
    def __init__(
        self,
        state: ResourceStorage,
        strategy_of: Callable[[str, str, str], Strategy | None],
        authorizer: RbacAuthorizer,
    ) -> None:
        """`strategy_of`: by group, version and plural."""
        self._state = state
        self._strategy_of = strategy_of
        self._authorizer = authorizer
        self._bindings = {kind: state.collection(_KEY + plural) for kind, plural in _BINDINGS.items()}
        self._policies = {kind: state.collection(_KEY + kind) for kind in _BINDINGS}
        self._bound: dict[str, Sequence[policy_evaluation.BoundPolicy]] = {}
        self._compiled: dict[tuple[str, str], tuple[str, int, cel_policies.CompiledAdmissionPolicy]] = {}
        for kind, plural in _BINDINGS.items():
            state.observe(_KEY + kind, self._forget(kind))
            state.observe(_KEY + plural, self._forget(kind))

    def mutate(self, attempt: AdmissionRequest) -> None:
        if not len(self._bindings[_MUTATING]) or attempt.repeated:
            return
        strategy = self._strategy_of(attempt.resource.group, attempt.resource.version, attempt.resource.plural)
        if strategy is not None and attempt.verb in ("create", "update"):
            evaluation = policy_evaluation.PolicyEvaluation(attempt, self._state, self._authorizer, strategy)
            policy_mutation.mutate(evaluation, self._active(_MUTATING), strategy)

    def validate(self, attempt: AdmissionRequest) -> None:
        if attempt.resource.group == _GROUP and attempt.verb in ("create", "update") and not attempt.subresource:
            self._check_author(attempt)
        if attempt.resource.plural == _VALIDATING:
            self._check_types(attempt)
        if not len(self._bindings[_VALIDATING]) or attempt.preview:
            return
        if attempt.subresource == "binding" and attempt.verb == "update":
            return  # the Binding itself was seen; that it changes the pod is how it is carried out
        strategy = self._strategy_of(attempt.resource.group, attempt.resource.version, attempt.resource.plural)
        evaluation = policy_evaluation.PolicyEvaluation(attempt, self._state, self._authorizer, strategy)
        evaluation.validate(self._active(_VALIDATING))

    def validate_request(self, attempt: Callable[[], AdmissionRequest]) -> None:
        """As `validate`, for deletions, connections and bodies of sub-resources, which other steps do not see."""
        if len(self._bindings[_VALIDATING]):
            self.validate(attempt())

    # -- what is bound ------------------------------------------------------------------------------------------

    def _forget(self, kind: str) -> Callable[[Sequence[StoredChange]], None]:
        def forget(changes: Sequence[StoredChange]) -> None:
            self._bound.pop(kind, None)
            for change in changes:
                if change.kind == "DELETED":
                    self._compiled.pop((kind, change.entry.name), None)

        return forget

    def _active(self, kind: str) -> Sequence[policy_evaluation.BoundPolicy]:
        """Policies with bindings, by name."""
        known = self._bound.get(kind)
        if known is None:
            known = self._bound[kind] = self._read(kind)
        return known

    def _read(self, kind: str) -> Sequence[policy_evaluation.BoundPolicy]:
        bindings: dict[str, list[policy_evaluation.PolicyBinding]] = {}
        for entry in self._bindings[kind].entries():
            spec = entry.load().get("spec") or {}
            bindings.setdefault(spec.get("policyName") or "", []).append(
                policy_evaluation.PolicyBinding(entry.name, spec)
            )
        out: list[policy_evaluation.BoundPolicy] = []
        for name in sorted(bindings):
            policy = self._policies[kind].get("", name)
            if policy is not None:
                out.append(self._bound_policy(kind, policy.load(), bindings[name]))
        return out

    def _bound_policy(
        self, kind: str, policy: Object, bindings: list[policy_evaluation.PolicyBinding]
    ) -> policy_evaluation.BoundPolicy:
        metadata, spec = policy["metadata"], policy.get("spec") or {}
        name, uid, generation = metadata["name"], metadata.get("uid") or "", metadata.get("generation") or 0
        known = self._compiled.get((kind, name))
        if known is None or known[:2] != (uid, generation):
            # What was stored has been compiled before; faults could only come from an older version of this program.
            known = self._compiled[kind, name] = (uid, generation, cel_policies.compile_policy(spec)[0])
        return policy_evaluation.BoundPolicy(name, spec, known[2], bindings)

    # -- policies themselves ------------------------------------------------------------------------------------

    def _check_types(self, attempt: AdmissionRequest) -> None:
        """`status.typeChecking`: made in the write of the policy, as nothing that it depends on changes later."""
        if attempt.resource.group != _GROUP or attempt.subresource or attempt.verb == "delete":
            return
        policy, metadata = attempt.obj, attempt.obj["metadata"]
        status = dict(policy.get("status") or {})
        if status.get("observedGeneration") == metadata.get("generation"):
            return
        warnings = cel_policies.type_warnings(policy.get("spec") or {}, self._named_kinds(policy))
        status["observedGeneration"] = metadata.get("generation")
        status["typeChecking"] = {"expressionWarnings": warnings} if warnings else {}
        policy["status"] = status

    def _check_author(self, attempt: AdmissionRequest) -> None:
        """Messages of a policy can repeat its parameters: their author must be allowed to read them."""
        plural, new, old = attempt.resource.plural, attempt.obj.get("spec") or {}, (attempt.old or {}).get("spec") or {}
        if plural in _BINDINGS:
            kind = new.get("paramKind")
            if kind is None or kind == old.get("paramKind"):
                return
            shown = f"kind={kind.get('kind')}, apiVersion={kind.get('apiVersion')}"
            why = f'must have "get" permission on all objects of the referenced paramKind ({shown})'
            self._require_read(attempt, kind, "*", "*", "spec.paramKind", why)
        elif plural in _POLICY_OF:
            ref = new.get("paramRef")
            if ref is None or (ref == old.get("paramRef") and new.get("policyName") == old.get("policyName")):
                return
            policy = self._policies[_POLICY_OF[plural]].get("", new.get("policyName") or "")
            # Without a policy it may become one of any kind.
            kind = (policy.load().get("spec") or {}).get("paramKind") if policy is not None else None
            name, namespace = ref.get("name") or "*", ref.get("namespace") or "*"
            why = 'does not have "get" permission on the object referenced by paramRef'
            self._require_read(attempt, kind or {}, namespace, name, "spec.paramRef", why)

    def _require_read(
        self, attempt: AdmissionRequest, kind: Object, namespace: str, name: str, field: str, why: str
    ) -> None:
        """`*` for a namespace or name means all of them."""
        version = kind.get("apiVersion") or ""
        resource = policy_evaluation.resource_of(self._state, kind)
        if resource is not None:
            group, plural, namespace = resource.group, resource.plural, namespace if resource.namespaced else ""
        else:
            group, plural = version.rpartition("/")[0] if version else "*", "*"
        read = Attributes("get", group, plural, namespace=namespace, name=name)
        if not self._authorizer.allowed(attempt.user, read).allowed:
            fault = errors.forbidden_field(field, f'user "{attempt.user.name}" {why}')
            raise errors.invalid_object(attempt.resource.kind, attempt.resource.group, attempt.name, [fault])

    def _named_kinds(self, policy: Object) -> list[tuple[str, Any]]:
        found: dict[str, Any] = {}
        match = (policy.get("spec") or {}).get("matchConstraints") or {}
        for rule in match.get("resourceRules") or ():
            for group in rule.get("apiGroups") or ():
                for version in rule.get("apiVersions") or ():
                    for plural in rule.get("resources") or ():
                        strategy = self._strategy_of(group, version, plural)
                        if strategy is not None and len(found) < _MOST_CHECKED:
                            resource = strategy.resource
                            found[f"{resource.api_version}, Kind={resource.kind}"] = strategy.schema
        return list(found.items())
