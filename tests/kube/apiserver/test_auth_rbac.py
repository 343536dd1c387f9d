"""Authorisation: a table of who may do what, and the cached engine against a naive one."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.http.messages import UserInfo
from coterie.kube.api.errors import Forbidden
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer, forbidden
from coterie.kube.apiserver.auth.rules import Attributes, compile_rule, compile_rules, covers


def role(name: str, *rules: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"kind": "Role" if namespace else "ClusterRole", "metadata": meta, "rules": list(rules)}


def rule(verbs: str, group: str = "", resources: str = "", names: str = "", urls: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {"verbs": verbs.split()}
    if urls:
        return out | {"nonResourceURLs": urls.split()}
    out |= {"apiGroups": [group], "resources": resources.split()}
    return out | ({"resourceNames": names.split()} if names else {})


def binding(name: str, role_ref: str, *subjects: str, namespace: str = "") -> dict[str, Any]:
    kind, role_name = role_ref.split("/")
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {
        "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role_name},
        "subjects": [subject(text) for text in subjects],
    }


def subject(text: str) -> dict[str, str]:
    kind, name = text.split(" ")
    if kind == "ServiceAccount" and "/" in name:
        namespace, name = name.split("/")
        return {"kind": kind, "name": name, "namespace": namespace}
    return {"kind": kind, "name": name}


class World:
    """Roles and bindings a test can change."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = list(objects)
        self.reads = 0
        self.authorizer = RbacAuthorizer(
            roles=lambda: self._of(False, False),
            role_bindings=lambda: self._of(True, False),
            cluster_roles=lambda: self._of(False, True),
            cluster_role_bindings=lambda: self._of(True, True),
        )

    def _of(self, is_binding: bool, cluster: bool) -> list[dict[str, Any]]:
        self.reads += 1
        return [
            each
            for each in self.objects
            if ("roleRef" in each) is is_binding and ("namespace" not in each["metadata"]) is cluster
        ]


WORLD = World(
    role("reader", rule("get list watch", "", "pods pods/log")),
    role("everything", rule("*", "*", "*"), rule("*", urls="*")),
    role("scaler", rule("update", "*", "*/scale")),
    role("one-secret", rule("get", "", "secrets", names="tls other")),
    role("urls", rule("get", urls="/metrics /logs/*")),
    role("stars", rule("get", "apps", "pods/* deploy*")),
    role("configs", rule("get update", "", "configmaps"), namespace="dev"),
    binding("r1", "ClusterRole/reader", "User ann", "Group readers"),
    binding("r2", "ClusterRole/scaler", "User sue"),
    binding("r3", "ClusterRole/one-secret", "User tim"),
    binding("r4", "ClusterRole/urls", "User uma"),
    binding("r5", "ClusterRole/stars", "User wes"),
    binding("r6", "ClusterRole/missing", "User lost"),
    binding("r7", "ClusterRole/reader", "ServiceAccount nowhere"),
    binding("r8", "Role/configs", "User odd"),
    binding("n1", "ClusterRole/everything", "User bob", "ServiceAccount robot", namespace="dev"),
    binding("n2", "Role/configs", "ServiceAccount ops/robot", "User cat", namespace="dev"),
    binding("n3", "ClusterRole/urls", "User vic", namespace="dev"),
    binding("n4", "Role/configs", "User cat", namespace="prod"),
)

MATRIX = [
    ("ann", "get", "", "pods", "", "dev", "x", True),
    ("ann", "list", "", "pods", "", "", "", True),
    ("ann", "get", "", "pods", "log", "dev", "x", True),
    ("ann", "get", "", "pods", "exec", "dev", "x", False),
    ("ann", "delete", "", "pods", "", "dev", "x", False),
    ("ann", "get", "apps", "pods", "", "dev", "x", False),
    ("ann", "get", "", "nodes", "", "", "x", False),
    ("nobody", "get", "", "pods", "", "dev", "x", False),
    ("nobody+readers", "watch", "", "pods", "", "dev", "", True),
    ("nobody+system:masters", "anything", "any.group", "things", "sub", "", "", True),
    ("sue", "update", "apps", "deployments", "scale", "dev", "x", True),
    ("sue", "update", "", "replicationcontrollers", "scale", "dev", "x", True),
    ("sue", "update", "apps", "deployments", "", "dev", "x", False),
    ("sue", "update", "apps", "scale", "", "dev", "x", False),
    ("tim", "get", "", "secrets", "", "dev", "tls", True),
    ("tim", "get", "", "secrets", "", "dev", "other", True),
    ("tim", "get", "", "secrets", "", "dev", "third", False),
    ("tim", "get", "", "secrets", "", "dev", "", False),
    ("wes", "get", "apps", "pods", "log", "dev", "x", False),
    ("wes", "get", "apps", "deployments", "", "dev", "x", False),
    ("lost", "get", "", "pods", "", "dev", "x", False),
    ("odd", "get", "", "configmaps", "", "dev", "x", False),
    ("bob", "delete", "apps", "deployments", "", "dev", "x", True),
    ("bob", "delete", "apps", "deployments", "", "prod", "x", False),
    ("bob", "list", "", "pods", "", "", "", False),
    ("bob", "get", "", "pods", "exec", "dev", "x", True),
    ("cat", "get", "", "configmaps", "", "dev", "x", True),
    ("cat", "get", "", "configmaps", "", "prod", "x", False),
    ("system:serviceaccount:dev:robot", "delete", "", "pods", "", "dev", "x", True),
    ("system:serviceaccount:ops:robot", "update", "", "configmaps", "", "dev", "x", True),
    ("system:serviceaccount:ops:robot", "delete", "", "pods", "", "dev", "x", False),
    ("system:serviceaccount::nowhere", "get", "", "pods", "", "dev", "x", False),
]


def user(text: str) -> UserInfo:
    name, *groups = text.split("+")
    return UserInfo(name, tuple(groups))


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: "-".join(str(part) or "." for part in row))
def test_matrix(row):
    who, verb, group, resource, sub, namespace, name, expected = row
    attributes = Attributes(verb, group, resource, sub, namespace, "", name)
    for _ in range(2):  # the second answer comes from memory
        assert WORLD.authorizer.allowed(user(who), attributes).allowed is expected


@pytest.mark.parametrize(
    ("who", "path", "verb", "expected"),
    [
        ("uma", "/metrics", "get", True),
        ("uma", "/metrics/x", "get", False),
        ("uma", "/logs/a/b", "get", True),
        ("uma", "/logs", "get", False),
        ("uma", "/metrics", "post", False),
        ("vic", "/metrics", "get", False),  # a RoleBinding gives nothing outside its namespace
        ("bob", "/metrics", "get", False),
        ("nobody+system:masters", "/anything", "put", True),
    ],
)
def test_urls(who, path, verb, expected):
    assert WORLD.authorizer.allowed(user(who), Attributes(verb, path=path)).allowed is expected


def test_reasons():
    allowed = WORLD.authorizer.allowed
    asked = Attributes("get", "", "pods", "", "dev", "", "x")
    assert allowed(user("ann"), asked).reason == (
        'RBAC: allowed by ClusterRoleBinding "r1" of ClusterRole "reader" to User "ann"'
    )
    robot = user("system:serviceaccount:dev:robot")
    assert allowed(robot, asked).reason == (
        'RBAC: allowed by RoleBinding "n1/dev" of ClusterRole "everything" to ServiceAccount "robot/dev"'
    )
    assert allowed(user("lost"), asked).reason == 'RBAC: clusterrole.rbac.authorization.k8s.io "missing" not found'
    assert allowed(user("nobody"), asked).reason == ""


@pytest.mark.parametrize(
    ("attributes", "message", "details"),
    [
        (
            Attributes("list", "", "pods", "", "default"),
            'pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "default"',
            {"kind": "pods"},
        ),
        (
            Attributes("get", "apps", "deployments", "scale", "default", "", "web"),
            'deployments.apps "web" is forbidden: User "x" cannot get resource "deployments/scale" in API group "apps"'
            ' in the namespace "default"',
            {"name": "web", "group": "apps", "kind": "deployments"},
        ),
        (
            Attributes("delete", "", "nodes", name="n"),
            'nodes "n" is forbidden: User "x" cannot delete resource "nodes" in API group "" at the cluster scope',
            {"name": "n", "kind": "nodes"},
        ),
        (Attributes("get", path="/metrics"), 'forbidden: User "x" cannot get path "/metrics"', None),
    ],
)
def test_refusals_are_worded_as_kubernetes_words_them(attributes, message, details):
    status = forbidden(UserInfo("x"), attributes).status()
    assert status["message"] == message
    assert status.get("details") == details
    assert status["code"] == 403


def test_check_raises():
    with pytest.raises(Forbidden, match="cannot list"):
        WORLD.authorizer.check(user("nobody"), Attributes("list", "", "pods"))
    WORLD.authorizer.check(user("ann"), Attributes("list", "", "pods"))


def test_changes_are_seen_after_invalidate():
    world = World()
    ann, asked = user("ann"), Attributes("get", "", "pods", "", "dev", "", "x")
    assert not world.authorizer.allowed(ann, asked).allowed
    world.objects += [role("r", rule("get", "", "pods")), binding("b", "ClusterRole/r", "User ann")]
    assert not world.authorizer.allowed(ann, asked).allowed
    world.authorizer.invalidate()
    assert world.authorizer.allowed(ann, asked).allowed
    world.objects.pop()
    world.authorizer.invalidate()
    assert not world.authorizer.allowed(ann, asked).allowed


def test_objects_are_read_once_for_many_questions():
    world = World(role("r", rule("get", "", "pods")), binding("b", "ClusterRole/r", "Group g"))
    for number in range(50):
        who = UserInfo(f"u{number % 5}", ("g",))
        assert world.authorizer.allowed(who, Attributes("get", "", "pods", "", "dev", "", f"p{number}")).allowed
    assert world.reads == 4


def test_memory_is_bounded():
    world = World(role("r", rule("get", "", "pods"), rule("get", urls="/a*")), binding("b", "ClusterRole/r", "Group g"))
    one = UserInfo("u", ("g",))
    for number in range(20_000):
        assert world.authorizer.allowed(one, Attributes("get", path=f"/a{number}")).allowed
    for number in range(10_000):
        assert world.authorizer.allowed(UserInfo(f"u{number}", ("g",)), Attributes("get", "", "pods")).allowed
    assert len(world.authorizer._by_identity) <= 4096
    assert len(world.authorizer._by_value) <= 4096
    assert all(len(each.answers) <= 8192 for each in world.authorizer._by_value.values())


def test_rules_of_a_user_by_namespace():
    resource_rules, url_rules = WORLD.authorizer.rules_json(user("bob"), "dev")
    assert resource_rules == [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    assert url_rules == [{"verbs": ["*"], "nonResourceURLs": ["*"]}]
    assert WORLD.authorizer.rules_json(user("bob"), "prod") == ([], [])
    assert WORLD.authorizer.rules_json(user("tim"), "prod")[0] == [
        {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["other", "tls"]}
    ]
    assert WORLD.authorizer.rules_json(user("x+system:masters"), "prod")[0][0]["verbs"] == ["*"]


# ---- the cached engine against an evaluator that looks at everything, every time ----

VERBS, GROUPS, NAMESPACES, NAMES = ("get", "list", "*"), ("", "apps", "*"), ("a", "b"), ("x", "y")
RESOURCES = ("pods", "pods/log", "*/log", "*", "deployments", "deployments/scale", "*/scale")
URLS = ("/a", "/a/*", "/a/b", "*")
SUBJECTS = ("User u", "Group g", "Group h", "ServiceAccount s", "ServiceAccount a/s", "ServiceAccount b/s")


def lists(values, minimum=0):
    return st.lists(st.sampled_from(values), min_size=minimum, max_size=2, unique=True)


RULES = st.one_of(
    st.fixed_dictionaries(
        {"verbs": lists(VERBS, 1), "apiGroups": lists(GROUPS, 1), "resources": lists(RESOURCES, 1)},
        optional={"resourceNames": lists(NAMES)},
    ),
    st.fixed_dictionaries({"verbs": lists(VERBS, 1), "nonResourceURLs": lists(URLS, 1)}),
)
ROLES = st.builds(
    lambda name, rules, namespace: role(name, *rules, namespace=namespace),
    st.sampled_from(("r1", "r2")),
    st.lists(RULES, max_size=3),
    st.sampled_from(("", *NAMESPACES)),
)
BINDINGS = st.builds(
    lambda name, ref, subjects, namespace: binding(name, ref, *subjects, namespace=namespace),
    st.sampled_from(("b1", "b2")),
    st.sampled_from(("Role/r1", "Role/r2", "ClusterRole/r1", "ClusterRole/r2")),
    lists(SUBJECTS, 1),
    st.sampled_from(("", *NAMESPACES)),
)
USERS = st.sampled_from(
    (
        UserInfo("u"),
        UserInfo("v", ("g",)),
        UserInfo("v", ("g", "h")),
        UserInfo("system:serviceaccount:a:s"),
        UserInfo("system:serviceaccount:b:s", ("h",)),
    )
)
QUESTIONS = st.one_of(
    st.builds(
        Attributes,
        st.sampled_from(("get", "list", "delete")),
        st.sampled_from(("", "apps")),
        st.sampled_from(("pods", "deployments")),
        st.sampled_from(("", "log", "scale")),
        st.sampled_from(("", *NAMESPACES)),
        st.just(""),
        st.sampled_from(("", *NAMES, "z")),
    ),
    st.builds(
        lambda verb, path: Attributes(verb, path=path),
        st.sampled_from(("get", "list")),
        st.sampled_from(("/a", "/a/b", "/c")),
    ),
)


def naive(objects: list[dict[str, Any]], who: UserInfo, asked: Attributes) -> bool:
    for each in objects:
        home = each["metadata"].get("namespace", "")
        if "roleRef" not in each or (home and (not asked.resource or home != asked.namespace)):
            continue
        for one in each["subjects"]:
            if one["kind"] == "User":
                mine = one["name"] == who.name
            elif one["kind"] == "Group":
                mine = one["name"] in who.groups
            else:
                place = one.get("namespace") or home
                mine = bool(place) and who.name == f"system:serviceaccount:{place}:{one['name']}"
            if mine and any(naive_rule(r, asked) for r in naive_rules(objects, each["roleRef"], home)):
                return True
    return False


def naive_rules(objects, ref, home):
    wanted = home if ref["kind"] == "Role" else ""
    found = [
        each
        for each in objects
        if "rules" in each
        and each["kind"] == ref["kind"]
        and each["metadata"]["name"] == ref["name"]
        and each["metadata"].get("namespace", "") == wanted
    ]
    return found[-1]["rules"] if found else []


def naive_rule(one: dict[str, Any], asked: Attributes) -> bool:
    if not ({asked.verb, "*"} & set(one["verbs"])):
        return False
    if not asked.resource:
        return any(
            url == "*" or url == asked.path or (url.endswith("*") and asked.path.startswith(url[:-1]))
            for url in one.get("nonResourceURLs", ())
        )
    full = asked.resource + (f"/{asked.subresource}" if asked.subresource else "")
    fitting = {full, "*"} | ({f"*/{asked.subresource}"} if asked.subresource else set())
    names = one.get("resourceNames")
    return bool(
        {asked.group, "*"} & set(one.get("apiGroups", ()))
        and fitting & set(one.get("resources", ()))
        and (not names or asked.name in names)
    )


@settings(max_examples=300)
@given(
    objects=st.lists(st.one_of(ROLES, BINDINGS), max_size=8),
    questions=st.lists(st.tuples(USERS, QUESTIONS), min_size=1, max_size=8),
)
def test_cached_engine_equals_the_naive_one(objects, questions):
    world = World(*objects)
    for who, asked in questions * 2:
        assert world.authorizer.allowed(who, asked).allowed is naive(objects, who, asked)


@settings(max_examples=300)
@given(held=st.lists(RULES, max_size=3), wanted=RULES, question=QUESTIONS)
def test_what_covered_rules_allow_the_holder_is_allowed_too(held, wanted, question):
    if not covers(compile_rules(held), compile_rule(wanted)) and naive_rule(wanted, question):
        assert any(naive_rule(one, question) for one in held)
