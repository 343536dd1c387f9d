"""Nobody gives what they do not have: limits on writing roles and bindings.

Who may create roles could otherwise create one that allows everything. So a role may only hold rules that its writer
holds too, and a binding may only name a role whose rules its writer holds, unless the writer was given the verbs
`escalate` or `bind` on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.http.messages import UserInfo
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer, forbidden_because
from coterie.kube.apiserver.auth.rules import ALL, GROUP, Attributes, PolicyRule, compile_rules, covers

Object = Mapping[str, Any]
_PLURAL = {"Role": "roles", "ClusterRole": "clusterroles"}
_EVERY = frozenset({ALL})
_EVERYTHING = (PolicyRule(_EVERY, _EVERY, _EVERY), PolicyRule(_EVERY, urls=(ALL,)))


def escalation_errors(user_rules: Sequence[PolicyRule], new_rules: Iterable[PolicyRule]) -> list[str]:
    """What `new_rules` would give beyond `user_rules`, one line for each resource; empty: nothing."""
    lacking: dict[tuple[str, ...], dict[str, None]] = {}
    for rule in new_rules:
        for piece in covers(user_rules, rule):
            parts = [_listed("APIGroups", piece.groups)] if piece.groups else []
            parts += [_listed("Resources", piece.resources)] if piece.resources else []
            parts += [_listed("ResourceNames", piece.names)] if piece.names else []
            parts += [_listed("NonResourceURLs", piece.urls)] if piece.urls else []
            lacking.setdefault(tuple(parts), {}).update(dict.fromkeys(sorted(piece.verbs)))
    return ["{" + ", ".join([*parts, _listed("Verbs", verbs)]) + "}" for parts, verbs in sorted(lacking.items())]


def _listed(title: str, items: Iterable[str]) -> str:
    return f"{title}:[" + " ".join(f'"{item}"' for item in sorted(items)) + "]"


def check_role(authorizer: RbacAuthorizer, user: UserInfo, role: Object, old: Object | None = None) -> None:
    """Raise Forbidden when writing this Role or ClusterRole would give more than its writer has."""
    kind, meta = role["kind"], role["metadata"]
    if old is not None and (old.get("rules"), old.get("aggregationRule")) == (
        role.get("rules"),
        role.get("aggregationRule"),
    ):
        return
    namespace, name = meta.get("namespace") or "", meta.get("name") or ""
    asked = Attributes("escalate", GROUP, _PLURAL[kind], "", namespace, "", name)
    if authorizer.allowed(user, asked).allowed:
        return
    new_rules: tuple[PolicyRule, ...] = compile_rules(role.get("rules"))
    if role.get("aggregationRule"):
        # Whatever is labelled tomorrow flows into this role, so its writer must hold everything today.
        new_rules = (*new_rules, *_EVERYTHING)
    _refuse(authorizer, user, new_rules, asked)


def check_binding(authorizer: RbacAuthorizer, user: UserInfo, binding: Object, old: Object | None = None) -> None:
    """Raise Forbidden when this binding would hand out a role that its writer neither holds nor may bind."""
    if old is not None and (old.get("subjects"), old.get("roleRef")) == (
        binding.get("subjects"),
        binding.get("roleRef"),
    ):
        return
    meta, ref = binding["metadata"], binding.get("roleRef") or {}
    namespace = meta.get("namespace") or ""
    kind, name = ref.get("kind") or "", ref.get("name") or ""
    if kind not in _PLURAL:
        return  # validation refuses it with a better message
    if authorizer.allowed(user, Attributes("bind", GROUP, _PLURAL[kind], "", namespace, "", name)).allowed:
        return
    resource = "rolebindings" if namespace else "clusterrolebindings"
    asked = Attributes("create", GROUP, resource, "", namespace, "", meta.get("name") or "")
    rules = authorizer.role_rules(kind, namespace, name)
    if rules is None:
        # A binding may wait for its role only when its writer may bind any: the role could become anything.
        raise forbidden_because(asked, f'{kind.lower()}.{GROUP} "{name}" not found')
    _refuse(authorizer, user, rules, asked)


def _refuse(authorizer: RbacAuthorizer, user: UserInfo, rules: Sequence[PolicyRule], asked: Attributes) -> None:
    lacking = escalation_errors(authorizer.rules(user, asked.namespace), rules)
    if lacking:
        groups = " ".join(f'"{group}"' for group in user.groups)
        message = "\n".join(lacking)
        raise forbidden_because(
            asked,
            f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n{message}',
        )
