"""Nobody gives what they do not have; sums of roles; default roles and how they are kept up to date."""

import copy
from typing import Any

import msgspec
import pytest

from coterie.http.messages import UserInfo
from coterie.kube.api.aggregation import aggregated_rules
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.resources import BUILTIN, USAGE
from coterie.kube.api.types.rbac import ClusterRole
from coterie.kube.apiserver.auth.authn import ANONYMOUS
from coterie.kube.apiserver.auth.default_roles import AUTOUPDATE, default_objects, parse_rule, reconcile
from coterie.kube.apiserver.auth.grants import check_binding, check_role, escalation_errors
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.auth.rules import Attributes, compile_rules
from coterie.kuscia.extensions.apiserver import KUSCIA

GROUP = "rbac.authorization.k8s.io"


def rules(*lines: str):
    return [parse_rule(line) for line in lines]


def authorizer(objects: list[dict[str, Any]]) -> RbacAuthorizer:
    def of(kind: str):
        return lambda: [each for each in objects if each["kind"] == kind]

    return RbacAuthorizer(
        roles=of("Role"),
        role_bindings=of("RoleBinding"),
        cluster_roles=of("ClusterRole"),
        cluster_role_bindings=of("ClusterRoleBinding"),
    )


def bound(user: str, *lines: str, namespace: str = "") -> list[dict[str, Any]]:
    """A role with these rules, bound to the user, everywhere or in a namespace."""
    place = {"namespace": namespace} if namespace else {}
    name = f"{user}-{namespace}"
    return [
        {"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules(*lines)},
        {
            "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
            "metadata": {"name": name, **place},
            "roleRef": {"kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "name": user}],
        },
    ]


@pytest.mark.parametrize(
    ("held", "wanted", "lacking"),
    [
        (["get list | core | pods"], ["get | core | pods"], []),
        (["get | core | pods"], ["get delete | core | pods"], ['{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}']),
        (["* | * | *"], ["get | apps | deployments", "* | core | *"], []),
        (["* | * | *"], ["get | URL | /metrics"], ['{NonResourceURLs:["/metrics"], Verbs:["get"]}']),
        (["get | URL | /a/*"], ["get | URL | /a/b /a/*"], []),
        (["get | URL | /a/b"], ["get | URL | /a/*"], ['{NonResourceURLs:["/a/*"], Verbs:["get"]}']),
        (["get | core | pods", "list | core | pods"], ["get list | core | pods"], []),
        (["get | core | secrets | x y"], ["get | core | secrets | x"], []),
        (["get | core | secrets | x"], ["get | core | secrets"], ['{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}']),
        (
            ["get | core | secrets | x"],
            ["get | core | secrets | y"],
            ['{APIGroups:[""], Resources:["secrets"], ResourceNames:["y"], Verbs:["get"]}'],
        ),
        (["get | core | secrets"], ["get | core | secrets | y"], []),
        (["update | * | */scale"], ["update | apps | deployments/scale"], []),
        (["update | * | */scale"], ["update | apps | deployments"], ['{APIGroups:["apps"], Resources:["deployments"], Verbs:["update"]}']),
        ([], ["* | core | pods"], ['{APIGroups:[""], Resources:["pods"], Verbs:["*"]}']),
        ([], ["list get | core | pods"], ['{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}']),
    ],
    ids=str,
)  # fmt: skip
def test_escalation(held, wanted, lacking):
    assert escalation_errors(compile_rules(rules(*held)), compile_rules(rules(*wanted))) == lacking


def new_role(*lines: str, namespace: str = "dev", **more: Any) -> dict[str, Any]:
    kind = "Role" if namespace else "ClusterRole"
    place = {"namespace": namespace} if namespace else {}
    return {"kind": kind, "metadata": {"name": "new", **place}, "rules": rules(*lines), **more}


def test_a_role_may_only_hold_what_its_writer_holds():
    ann = UserInfo("ann", ("dev",))
    auth = authorizer(bound("ann", "get | core | pods", namespace="dev"))
    check_role(auth, ann, new_role("get | core | pods"))
    with pytest.raises(Forbidden) as caught:
        check_role(auth, ann, new_role("get delete | core | pods"))
    assert caught.value.message == (
        f'roles.{GROUP} "new" is forbidden: user "ann" (groups=["dev"]) is attempting to grant RBAC permissions not'
        ' currently held:\n{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}'
    )
    with pytest.raises(Forbidden):
        check_role(auth, ann, new_role("get | core | pods", namespace="prod"))
    with pytest.raises(Forbidden):
        check_role(auth, ann, new_role("get | core | pods", namespace=""))


def test_escalate_is_given_on_purpose():
    auth = authorizer(bound("ann", f"escalate | {GROUP} | roles", namespace="dev"))
    check_role(auth, UserInfo("ann"), new_role("* | * | *"))


def test_an_update_that_changes_no_rule_is_free():
    old = new_role("* | * | *")
    auth = authorizer([])
    check_role(auth, UserInfo("ann"), old, old=copy.deepcopy(old))
    with pytest.raises(Forbidden):
        check_role(auth, UserInfo("ann"), old, old=new_role("get | core | pods"))


def test_a_sum_needs_everything():
    auth = authorizer(bound("ann", "get | core | pods"))
    summed = new_role(namespace="", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    with pytest.raises(Forbidden):
        check_role(auth, UserInfo("ann"), summed)
    check_role(auth, UserInfo("root", ("system:masters",)), summed)


def new_binding(role: str, namespace: str = "dev", kind: str = "ClusterRole") -> dict[str, Any]:
    place = {"namespace": namespace} if namespace else {}
    return {
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": "new", **place},
        "roleRef": {"kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": "friend"}],
    }


def test_a_binding_may_only_give_what_its_writer_holds_or_may_bind():
    ann, bea = UserInfo("ann"), UserInfo("bea")
    objects = [
        *bound("ann", "get | core | pods", namespace="dev"),
        *bound("bea", f"bind | {GROUP} | clusterroles | big", namespace="dev"),
        {"kind": "ClusterRole", "metadata": {"name": "small"}, "rules": rules("get | core | pods")},
        {"kind": "ClusterRole", "metadata": {"name": "big"}, "rules": rules("* | * | *")},
    ]
    auth = authorizer(objects)
    check_binding(auth, ann, new_binding("small"))
    check_binding(auth, bea, new_binding("big"))
    for who, made in [
        (ann, new_binding("big")),
        (ann, new_binding("small", namespace="")),
        (ann, new_binding("none")),
        (bea, new_binding("small")),
        (bea, new_binding("big", namespace="prod")),
        (ann, new_binding("small", kind="Role")),
    ]:
        with pytest.raises(Forbidden):
            check_binding(auth, who, made)
    same = new_binding("big")
    check_binding(auth, ann, same, old=copy.deepcopy(same))
    check_binding(auth, ann, new_binding("x", kind="Nonsense"))  # validation says it better


DEFAULTS = default_objects([KUSCIA.roles])
AUTH = authorizer(DEFAULTS)


def as_user(name: str, role: str) -> tuple[UserInfo, RbacAuthorizer]:
    """A user who has a default role in namespace dev."""
    extra = {
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "dev"},
        "roleRef": {"kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": name}],
    }
    return UserInfo(name), authorizer([*DEFAULTS, extra])


@pytest.mark.parametrize(
    ("role", "verb", "group", "resource", "allowed"),
    [
        ("view", "list", "", "pods", True),
        ("view", "get", "", "pods/log", True),
        ("view", "get", "", "secrets", False),
        ("view", "create", "", "pods", False),
        ("view", "get", "", "pods/exec", False),
        ("view", "get", GROUP, "roles", False),
        ("view", "list", "kuscia.secretflow", "kusciajobs", True),
        ("edit", "create", "", "pods", True),
        ("edit", "get", "", "secrets", True),
        ("edit", "create", "", "pods/exec", True),
        ("edit", "patch", "apps", "deployments/scale", True),
        ("edit", "update", "", "resourcequotas", False),
        ("edit", "create", GROUP, "rolebindings", False),
        ("edit", "create", "kuscia.secretflow", "kusciajobs", True),
        ("edit", "create", "kuscia.secretflow", "gateways", False),
        ("admin", "create", GROUP, "rolebindings", True),
        ("admin", "create", "authorization.k8s.io", "localsubjectaccessreviews", True),
        ("admin", "delete", "", "namespaces", False),
        ("admin", "escalate", GROUP, "roles", False),
        ("cluster-admin", "escalate", GROUP, "roles", True),
        ("domain-cluster-res", "own", "", "nodes", True),
        ("domain-cluster-res", "patch", "", "nodes/status", False),
        ("domain-cluster-res", "get", "", "secrets", False),
    ],
)
def test_default_roles(role, verb, group, resource, allowed):
    who, auth = as_user("ann", role)
    name, _, sub = resource.partition("/")
    assert auth.allowed(who, Attributes(verb, group, name, sub, "dev", "", "x")).allowed is allowed


@pytest.mark.parametrize(
    ("user", "attributes", "allowed"),
    [
        (ANONYMOUS, Attributes("get", path="/healthz"), True),
        (ANONYMOUS, Attributes("get", path="/apis"), False),
        (ANONYMOUS, Attributes("get", path="/metrics"), False),
        (UserInfo("a", ("system:authenticated",)), Attributes("get", path="/apis/apps/v1"), True),
        (UserInfo("a", ("system:authenticated",)), Attributes("get", path="/openapi/v3"), True),
        (UserInfo("a", ("system:authenticated",)), Attributes("get", path="/metrics"), False),
        (
            UserInfo("a", ("system:authenticated",)),
            Attributes("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
            True,
        ),
        (UserInfo("a", ("system:authenticated",)), Attributes("list", "", "pods", "", "default"), False),
        (UserInfo("n", ("system:nodes",)), Attributes("update", "", "nodes", "status", "", "", "n"), False),
        (UserInfo("n", ("system:nodes",)), Attributes("get", "", "secrets", "", "dev", "", "p"), False),
        (UserInfo("system:kube-scheduler"), Attributes("create", "", "pods", "binding", "dev", "", "p"), True),
    ],
)
def test_default_bindings(user, attributes, allowed):
    assert AUTH.allowed(user, attributes).allowed is allowed


def test_default_objects_are_well_formed_and_sums_are_added_up():
    names = [(each["kind"], each["metadata"]["name"]) for each in DEFAULTS]
    assert len(names) == len(set(names))
    roles = [msgspec.convert(each, ClusterRole) for each in DEFAULTS if each["kind"] == "ClusterRole"]
    for role in roles:
        assert aggregated_rules(role, roles) in (None, role.rules), f"{role.metadata.name} is not added up"
    for each in DEFAULTS:
        assert each["metadata"]["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults"
        assert each["metadata"]["annotations"][AUTOUPDATE] == "true"
        if each["kind"] == "ClusterRoleBinding":
            assert ("ClusterRole", each["roleRef"]["name"]) in names
        for rule in each.get("rules", ()):
            assert rule["verbs"] and (rule.get("resources") or rule.get("nonResourceURLs"))


def test_default_roles_speak_of_resources_that_exist():
    """Guards against typing errors; what we do not serve but Kubernetes does is named here."""
    not_served = {"signers"}
    known = {(each.group, each.plural) for each in (*BUILTIN, *USAGE)}
    for each in DEFAULTS:
        for rule in each.get("rules", ()):
            for group in rule.get("apiGroups", ()):
                for resource in rule.get("resources", ()):
                    plural = resource.partition("/")[0]
                    if "*" in (group, plural) or group in ("kuscia.secretflow", "coterie.io") or plural in not_served:
                        continue
                    assert (group, plural) in known, f"{each['metadata']['name']}: {group}/{resource}"


def test_reconcile_creates_adds_and_leaves_alone():
    default = next(each for each in DEFAULTS if each["metadata"]["name"] == "system:node-proxier" and "rules" in each)
    assert reconcile(None, default) == default
    assert reconcile(copy.deepcopy(default), default) is None
    mine = copy.deepcopy(default)
    mine["metadata"]["uid"] = "u"
    mine["metadata"]["labels"] = {"mine": "1"}
    extra = parse_rule("get | core | configmaps")
    mine["rules"] = [*mine["rules"][1:], extra]
    mended = reconcile(mine, default)
    assert mended is not None
    assert extra in mended["rules"] and default["rules"][0] in mended["rules"]
    assert mended["metadata"]["uid"] == "u"
    assert mended["metadata"]["labels"] == {"mine": "1", "kubernetes.io/bootstrapping": "rbac-defaults"}
    assert reconcile(mended, default) is None
    mine["metadata"]["annotations"][AUTOUPDATE] = "false"
    assert reconcile(mine, default) is None


def test_reconcile_leaves_the_rules_of_a_sum_to_its_controller():
    default = next(each for each in DEFAULTS if each["metadata"]["name"] == "edit")
    grown = copy.deepcopy(default)
    grown["rules"].append(parse_rule("get | mine | things"))
    assert reconcile(grown, default) is None
    shrunk = copy.deepcopy(default) | {"rules": []}
    assert reconcile(shrunk, default) is None


def test_reconcile_bindings():
    default = next(each for each in DEFAULTS if each["kind"] == "ClusterRoleBinding")
    more = copy.deepcopy(default)
    more["subjects"] = [{"kind": "User", "name": "me"}]
    mended = reconcile(more, default)
    assert mended is not None and mended["subjects"] == [{"kind": "User", "name": "me"}, *default["subjects"]]
    other = copy.deepcopy(default)
    other["roleRef"]["name"] = "mine"
    assert reconcile(other, default) is None
