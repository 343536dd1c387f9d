"""Role-based access: may this user do this?

Roles and bindings come from functions that are handed in and are read when something is asked for the first time after
`invalidate()`. From them one index is made (subject -> bindings), from that one set of compiled rules for each user who
asks, and from those one remembered answer for each question. A question asked again is two dictionary look-ups.

Answers do not depend on an object's name unless a rule has resource names, so they are remembered without it: reading
ten thousand pods is one question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from coterie.http.messages import UserInfo
from coterie.kube.api.errors import Forbidden
from coterie.kube.apiserver.auth.rules import ALL, Attributes, PolicyRule, compile_rules, rule_json

MASTERS = "system:masters"
_SERVICE_ACCOUNT = "system:serviceaccount:"
_MOST_USERS = 4096
_MOST_ANSWERS = 8192

Object = Mapping[str, Any]
Source = Callable[[], Iterable[Object]]


class RbacDecision(NamedTuple):
    allowed: bool
    reason: str = ""


class _Grant(NamedTuple):
    """One binding seen from one of its subjects."""

    namespace: str
    """Where it holds; empty: everywhere."""
    role_kind: str
    role_name: str
    reason: str
    missing: str


class _Held(NamedTuple):
    """The rules one binding gives a user (shared with everyone who has the role), and the sentence that says why."""

    rules: tuple[PolicyRule, ...]
    decision: RbacDecision


class _Answer:
    """`decision` for any name, unless `by_name` knows better."""

    __slots__ = ("by_name", "decision")

    def __init__(self, decision: RbacDecision, by_name: dict[str, RbacDecision] | None = None) -> None:
        self.decision = decision
        self.by_name = by_name


class _UserRules:
    """Everything one user holds, and what was answered to it so far."""

    __slots__ = ("answers", "everywhere", "in_namespace", "master", "missing", "user")

    def __init__(self, user: UserInfo) -> None:
        self.user = user  # held, so that its id() cannot come to mean somebody else
        self.master = MASTERS in user.groups
        self.everywhere: list[_Held] = []
        self.in_namespace: dict[str, list[_Held]] = {}
        self.missing: dict[str, list[str]] = {}
        self.answers: dict[tuple[str, ...], _Answer] = {}


_ALLOWED_MASTER = RbacDecision(True, "")


class RbacAuthorizer:
    def __init__(
        self,
        *,
        roles: Source,
        role_bindings: Source,
        cluster_roles: Source,
        cluster_role_bindings: Source,
    ) -> None:
        self._roles = roles
        self._role_bindings = role_bindings
        self._cluster_roles = cluster_roles
        self._cluster_role_bindings = cluster_role_bindings
        self._by_identity: dict[int, _UserRules] = {}
        self._by_value: dict[tuple[str, tuple[str, ...]], _UserRules] = {}
        self._grants: dict[tuple[str, str], list[_Grant]] | None = None
        self._role_objects: dict[tuple[str, str, str], Object] = {}
        self._compiled: dict[tuple[str, str, str], tuple[PolicyRule, ...]] = {}

    def invalidate(self) -> None:
        """A role or binding changed: the next question reads them again."""
        self._by_identity.clear()
        self._by_value.clear()
        self._compiled.clear()
        self._role_objects = {}
        self._grants = None

    def allowed(self, user: UserInfo, attributes: Attributes) -> RbacDecision:
        rules = self._by_identity.get(id(user))
        if rules is None:
            rules = self._rules_of(user)
        answer = rules.answers.get(attributes[:6])
        if answer is None:
            answer = _remember(rules, attributes)
        if answer.by_name is None:
            return answer.decision
        return answer.by_name.get(attributes.name, answer.decision)

    def acting_as(self, user: UserInfo, other: UserInfo) -> UserInfo:
        """Whom a user is that may impersonate the other: a subclass may limit what it can do then."""
        return other

    def check(self, user: UserInfo, attributes: Attributes) -> None:
        """Raise Forbidden, worded as Kubernetes words it, unless allowed."""
        decision = self.allowed(user, attributes)
        if not decision.allowed:
            raise forbidden(user, attributes, decision.reason)

    def rules(self, user: UserInfo, namespace: str = "") -> list[PolicyRule]:
        """All rules that hold for the user in a namespace (and everywhere)."""
        rules = self._rules_of(user)
        if rules.master:
            every = frozenset({ALL})
            return [PolicyRule(every, every, every), PolicyRule(every, urls=(ALL,))]
        local = rules.in_namespace.get(namespace, []) if namespace else []
        return [rule for held in (*rules.everywhere, *local) for rule in held.rules]

    def rules_json(self, user: UserInfo, namespace: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """(resource rules, non-resource rules), as SelfSubjectRulesReview shows them."""
        resource_rules: list[dict[str, Any]] = []
        url_rules: list[dict[str, Any]] = []
        for rule in self.rules(user, namespace):
            shown = rule_json(rule)
            if "resources" in shown:
                resource_rules.append({key: value for key, value in shown.items() if key != "nonResourceURLs"})
            if "nonResourceURLs" in shown:
                url_rules.append({"verbs": shown.get("verbs", []), "nonResourceURLs": shown["nonResourceURLs"]})
        return resource_rules, url_rules

    def role_rules(self, kind: str, namespace: str, name: str) -> tuple[PolicyRule, ...] | None:
        """The rules of a Role or ClusterRole, or None when there is none."""
        self._index()
        key = (kind, namespace if kind == "Role" else "", name)
        found = self._compiled.get(key)
        if found is None:
            role = self._role_objects.get(key)
            if role is None:
                return None
            found = self._compiled[key] = compile_rules(role.get("rules"))
        return found

    def _rules_of(self, user: UserInfo) -> _UserRules:
        known = self._by_identity.get(id(user))
        if known is not None:
            return known
        # Another connection of the same user brings another object; what it may do is the same.
        value = (user.name, user.groups)
        shared = self._by_value.get(value)
        if shared is None:
            if len(self._by_value) >= _MOST_USERS:
                self._by_value.clear()
            shared = self._by_value[value] = self._collect(user)
        rules = shared
        if shared.user is not user:
            rules = _UserRules(user)
            rules.everywhere, rules.in_namespace = shared.everywhere, shared.in_namespace
            rules.missing, rules.answers = shared.missing, shared.answers
        if len(self._by_identity) >= _MOST_USERS:
            self._by_identity.clear()
        self._by_identity[id(user)] = rules
        return rules

    def _collect(self, user: UserInfo) -> _UserRules:
        out = _UserRules(user)
        if out.master:
            return out
        grants = self._index()
        mine = list(grants.get(("User", user.name), ()))
        for group in dict.fromkeys(user.groups):
            mine.extend(grants.get(("Group", group), ()))
        for grant in mine:
            rules = self.role_rules(grant.role_kind, grant.namespace, grant.role_name)
            if rules is None:
                out.missing.setdefault(grant.namespace, []).append(grant.missing)
                continue
            target = out.in_namespace.setdefault(grant.namespace, []) if grant.namespace else out.everywhere
            target.append(_Held(rules, RbacDecision(True, grant.reason)))
        return out

    def _index(self) -> dict[tuple[str, str], list[_Grant]]:
        if self._grants is not None:
            return self._grants
        objects: dict[tuple[str, str, str], Object] = {}
        for role in self._cluster_roles():
            objects["ClusterRole", "", role["metadata"]["name"]] = role
        for role in self._roles():
            meta = role["metadata"]
            objects["Role", meta["namespace"], meta["name"]] = role
        grants: dict[tuple[str, str], list[_Grant]] = {}
        for binding in self._cluster_role_bindings():
            _add_binding(grants, binding, "ClusterRoleBinding", "")
        for binding in self._role_bindings():
            _add_binding(grants, binding, "RoleBinding", binding["metadata"]["namespace"])
        self._role_objects, self._grants = objects, grants
        return grants


def _add_binding(grants: dict[tuple[str, str], list[_Grant]], binding: Object, kind: str, namespace: str) -> None:
    ref = binding.get("roleRef") or {}
    role_kind, role_name = ref.get("kind") or "", ref.get("name") or ""
    if role_kind not in ("Role", "ClusterRole") or (role_kind == "Role" and not namespace):
        return
    name = binding["metadata"]["name"]
    shown = f"{name}/{namespace}" if namespace else name
    missing = f'{role_kind.lower()}.rbac.authorization.k8s.io "{role_name}" not found'
    for subject in binding.get("subjects") or ():
        key = _subject_key(subject, namespace)
        if key is None:
            continue
        message = f'{subject["kind"]} "{subject["name"]}"'
        if subject["kind"] == "ServiceAccount":
            message = f'ServiceAccount "{subject["name"]}/{subject.get("namespace") or namespace}"'
        reason = f'RBAC: allowed by {kind} "{shown}" of {role_kind} "{role_name}" to {message}'
        grants.setdefault(key, []).append(_Grant(namespace, role_kind, role_name, reason, missing))


def _subject_key(subject: Object, namespace: str) -> tuple[str, str] | None:
    kind, name = subject.get("kind"), subject.get("name")
    if not name:
        return None
    if kind in ("User", "Group"):
        return kind, name
    if kind == "ServiceAccount":
        home = subject.get("namespace") or namespace
        return ("User", f"{_SERVICE_ACCOUNT}{home}:{name}") if home else None
    return None


def _remember(rules: _UserRules, attributes: Attributes) -> _Answer:
    if len(rules.answers) >= _MOST_ANSWERS:
        rules.answers.clear()
    answer = rules.answers[attributes[:6]] = _decide(rules, attributes)
    return answer


def _decide(rules: _UserRules, attributes: Attributes) -> _Answer:
    if rules.master:
        return _Answer(_ALLOWED_MASTER)
    verb, group, resource, subresource, namespace, path = attributes[:6]
    if not resource:
        for held in rules.everywhere:
            if any(rule.allows_url(verb, path) for rule in held.rules):
                return _Answer(held.decision)
        return _Answer(_denied(rules, ""))
    by_name: dict[str, RbacDecision] = {}
    places = (rules.everywhere, rules.in_namespace.get(namespace, ()) if namespace else ())
    for held in chain(*places):
        for rule in held.rules:
            if not rule.allows_resource(verb, group, resource, subresource):
                continue
            if not rule.names:
                return _Answer(held.decision, by_name or None)
            for name in rule.names:
                by_name.setdefault(name, held.decision)
    return _Answer(_denied(rules, namespace), by_name or None)


def _denied(rules: _UserRules, namespace: str) -> RbacDecision:
    missing = [*rules.missing.get("", ()), *(rules.missing.get(namespace, ()) if namespace else ())]
    if not missing:
        return RbacDecision(False, "")
    message = missing[0] if len(missing) == 1 else "[" + ", ".join(missing) + "]"
    return RbacDecision(False, f"RBAC: {message}")


def forbidden_message(user: UserInfo, attributes: Attributes) -> str:
    """`User "x" cannot list resource "pods" in API group "" in the namespace "default"`."""
    if not attributes.resource:
        return f'User "{user.name}" cannot {attributes.verb} path "{attributes.path}"'
    resource = attributes.resource + (f"/{attributes.subresource}" if attributes.subresource else "")
    where = f'in the namespace "{attributes.namespace}"' if attributes.namespace else "at the cluster scope"
    return (
        f'User "{user.name}" cannot {attributes.verb} resource "{resource}" in API group "{attributes.group}" {where}'
    )


def forbidden(user: UserInfo, attributes: Attributes, reason: str = "") -> Forbidden:
    message = forbidden_message(user, attributes)
    return forbidden_because(attributes, f"{message}: {reason}" if reason else message)


def forbidden_because(attributes: Attributes, why: str) -> Forbidden:
    """`pods "x" is forbidden: <why>`, with the details clients look at."""
    if not attributes.resource:
        return Forbidden(f"forbidden: {why}")
    shown = f"{attributes.resource}.{attributes.group}" if attributes.group else attributes.resource
    named = f' "{attributes.name}"' if attributes.name else ""
    return Forbidden(
        f"{shown}{named} is forbidden: {why}",
        name=attributes.name,
        group=attributes.group,
        kind=attributes.resource,
    )
