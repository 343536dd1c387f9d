"""Who is asking: certificates, tokens, nobody, and acting as somebody else."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coterie.base import jwt, pki
from coterie.base.clock import VirtualClock, rfc3339
from coterie.base.secret import SecretValue
from coterie.http.messages import Peer, Request, UserInfo
from coterie.kube.api.errors import ApiError, BadRequest, Conflict, Forbidden, Invalid, NotFound, Unauthorized
from coterie.kube.apiserver.auth.authn import ANONYMOUS, Authenticator, impersonation, user_from_certificate
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.auth.tokens import ISSUER, Lookups, TokenSigner, request_token, service_account_user

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = pki.new_key("rsa")


class World:
    """A few objects, a clock, and an authenticator that looks at them."""

    def __init__(self, **more: Any) -> None:
        self.clock = VirtualClock(START)
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.checks = 0
        self.lookups = Lookups(
            service_account=lambda namespace, name: self._get("ServiceAccount", namespace, name),
            secret=lambda namespace, name: self._get("Secret", namespace, name),
            pod=lambda namespace, name: self._get("Pod", namespace, name),
            node=lambda name: self._get("Node", "", name),
        )
        self.signer = TokenSigner(KEY)
        self.authenticator = Authenticator(signer=self.signer, lookups=self.lookups, clock=self.clock, **more)
        self.account = self.put("ServiceAccount", "dev", "robot", "uid-robot")

    def _get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.checks += 1
        return self.objects.get((kind, namespace, name))

    def put(self, kind: str, namespace: str, name: str, uid: str, **more: Any) -> dict[str, Any]:
        meta = {"name": name, "namespace": namespace, "uid": uid}
        obj = {"kind": kind, "metadata": meta, **more}
        self.objects[kind, namespace, name] = obj
        return obj

    def token(self, **spec: Any) -> str:
        return self.request(**spec)["status"]["token"]

    def request(self, **spec: Any) -> dict[str, Any]:
        return request_token({"spec": spec}, self.account, self.signer, self.lookups, self.clock.now())

    def ask(self, token: str) -> UserInfo:
        return self.authenticator.authenticate(Request("GET", "/api", headers={"authorization": f"Bearer {token}"}))


# ---- certificates ----


def test_user_from_certificate():
    shown = {"subject": ((("organizationName", "dev"),), (("organizationName", "ops"),), (("commonName", "alice"),))}
    assert user_from_certificate(shown) == UserInfo("alice", ("dev", "ops", "system:authenticated"))


@pytest.mark.parametrize("nothing", [None, {}, {"subject": ((("organizationName", "x"),),)}])
def test_certificates_that_name_nobody(nothing):
    assert user_from_certificate(nothing) is None


def test_the_connections_certificate_is_used_as_it_is():
    user = UserInfo("alice", ("system:authenticated",))
    request = Request("GET", "/api", peer=Peer("1.2.3.4", certificate_user=user))
    assert World().authenticator.authenticate(request) is user


# ---- nobody ----


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_nobody_may_ask_for_health(path):
    assert World().authenticator.authenticate(Request("GET", path)) is ANONYMOUS


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/version"), ("GET", "/api/v1/pods"), ("POST", "/healthz"), ("GET", "/healthz/../api")]
)  # fmt: skip
def test_nobody_may_ask_for_nothing_else(method, path):
    with pytest.raises(Unauthorized, match=r"^Unauthorized$"):
        World().authenticator.authenticate(Request(method, path))


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer nonsense", "Bearer a.b.c", "Bearer é"]
)
def test_bad_credentials_are_refused_even_for_health(header):
    with pytest.raises(Unauthorized):
        World().authenticator.authenticate(Request("GET", "/healthz", headers={"authorization": header}))


# ---- service accounts ----


def test_token_of_a_service_account():
    world = World()
    user = world.ask(world.token())
    assert user.name == "system:serviceaccount:dev:robot"
    assert user.uid == "uid-robot"
    assert user.groups == ("system:serviceaccounts", "system:serviceaccounts:dev", "system:authenticated")
    assert dict(user.extra)["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")


def test_claims_are_those_of_kubernetes():
    world = World()
    answer = world.request(expirationSeconds=7200)
    now = int(START.timestamp())
    claims = jwt.unverified_claims(answer["status"]["token"])
    assert len(claims.pop("jti")) == 36
    assert claims == {
        "aud": [ISSUER],
        "exp": now + 7200,
        "iat": now,
        "iss": ISSUER,
        "kubernetes.io": {"namespace": "dev", "serviceaccount": {"name": "robot", "uid": "uid-robot"}},
        "nbf": now,
        "sub": "system:serviceaccount:dev:robot",
    }
    assert answer["kind"] == "TokenRequest"
    assert answer["spec"] == {"audiences": [ISSUER], "expirationSeconds": 7200}
    assert answer["status"]["expirationTimestamp"] == "2026-01-02T05:04:05Z"


async def test_a_token_ends_in_time_even_when_remembered():
    world = World()
    token = world.token(expirationSeconds=600)
    for step in (0, 30, 569):
        await world.clock.advance(step)
        assert world.ask(token)
    await world.clock.advance(1)
    with pytest.raises(Unauthorized):
        world.ask(token)


def test_a_token_is_checked_once():
    world = World()
    token = world.token()
    first = world.ask(token)
    checks = world.checks
    assert world.ask(token) is first
    assert world.checks == checks


async def test_a_remembered_token_is_looked_at_again_after_a_minute():
    world = World()
    token = world.token()
    world.ask(token)
    del world.objects["ServiceAccount", "dev", "robot"]
    assert world.ask(token)
    await world.clock.advance(61)
    with pytest.raises(Unauthorized):
        world.ask(token)


@pytest.mark.parametrize("all_at_once", [False, True])
def test_a_deleted_account_ends_its_tokens(all_at_once):
    world = World()
    token = world.token()
    world.ask(token)
    del world.objects["ServiceAccount", "dev", "robot"]
    world.authenticator.invalidate("ServiceAccount", "dev", "other")
    assert world.ask(token), "another account changed"
    if all_at_once:
        world.authenticator.invalidate()
    else:
        world.authenticator.invalidate("ServiceAccount", "dev", "robot")
    with pytest.raises(Unauthorized):
        world.ask(token)


def test_an_account_made_again_does_not_inherit_tokens():
    world = World()
    token = world.token()
    world.put("ServiceAccount", "dev", "robot", "another-uid")
    with pytest.raises(Unauthorized):
        world.ask(token)


def bound(kind: str, name: str, **more: str) -> dict[str, Any]:
    return {"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name, **more}}


def test_a_token_bound_to_a_pod_dies_with_it():
    world = World()
    world.put("Node", "", "n1", "uid-node")
    world.put("Pod", "dev", "p", "uid-pod", spec={"serviceAccountName": "robot", "nodeName": "n1"})
    token = world.token(**bound("Pod", "p", uid="uid-pod"))
    extra = dict(world.ask(token).extra)
    assert extra["authentication.kubernetes.io/pod-name"] == ("p",)
    assert extra["authentication.kubernetes.io/pod-uid"] == ("uid-pod",)
    assert extra["authentication.kubernetes.io/node-name"] == ("n1",)
    del world.objects["Pod", "dev", "p"]
    world.authenticator.invalidate("Pod", "dev", "p")
    with pytest.raises(Unauthorized):
        world.ask(token)


@pytest.mark.parametrize("kind", ["Secret", "Node"])
def test_tokens_bound_to_other_objects(kind):
    world = World()
    namespace = "dev" if kind == "Secret" else ""
    world.put(kind, namespace, "x", "uid-x")
    token = world.token(**bound(kind, "x"))
    assert world.ask(token)
    world.put(kind, namespace, "x", "uid-y")
    world.authenticator.invalidate(kind, namespace, "x")
    with pytest.raises(Unauthorized):
        world.ask(token)


async def test_a_pod_that_ends_may_still_say_its_last_words():
    world = World()
    pod = world.put("Pod", "dev", "p", "u", spec={"serviceAccountName": "robot"})
    token = world.token(**bound("Pod", "p"))
    pod["metadata"]["deletionTimestamp"] = rfc3339(START)
    await world.clock.advance(59)
    assert world.ask(token)
    await world.clock.advance(62)
    with pytest.raises(Unauthorized):
        world.ask(token)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"expirationSeconds": 599}, Invalid, "may not specify a duration less than 10 minutes"),
        ({"expirationSeconds": 2**32 + 1}, Invalid, "larger than 2^32 seconds"),
        ({"expirationSeconds": "600"}, Invalid, "integer"),
        ({"expirationSeconds": True}, Invalid, "integer"),
        (bound("Pod", "none"), NotFound, 'pods "none" not found'),
        (bound("Pod", "p", uid="other"), Conflict, "does not match the UID"),
        (bound("Pod", "foreign"), BadRequest, "different serviceaccount name"),
        (bound("ConfigMap", "x"), BadRequest, "cannot bind token"),
    ],
    ids=str,
)
def test_refused_token_requests(spec, error, message):
    world = World()
    world.put("Pod", "dev", "p", "uid", spec={"serviceAccountName": "robot"})
    world.put("Pod", "dev", "foreign", "uid2", spec={})
    with pytest.raises(error) as caught:
        world.request(**spec)
    assert message in caught.value.message


def test_kuscias_ten_years_are_allowed():
    world = World()
    seconds = 3650 * 24 * 3600
    assert world.request(expirationSeconds=seconds)["spec"]["expirationSeconds"] == seconds


def test_a_token_for_somebody_else_does_not_open_this_api():
    world = World()
    token = world.token(audiences=["vault"])
    with pytest.raises(Unauthorized):
        world.ask(token)
    assert world.authenticator.verify_token(token, ["vault", "x"]).audiences == ("vault",)


def test_old_signing_keys_are_still_believed():
    world = World()
    token = world.token()
    rotated = TokenSigner(pki.new_key("ec"), more_keys=[KEY.public_key()])
    fresh = Authenticator(signer=rotated, lookups=world.lookups, clock=world.clock)
    assert fresh.authenticate(Request("GET", "/api", headers={"authorization": f"bearer {token}"}))
    with pytest.raises(Unauthorized):
        Authenticator(signer=TokenSigner(pki.new_key("ec")), lookups=world.lookups, clock=world.clock).authenticate(
            Request("GET", "/api", headers={"authorization": f"Bearer {token}"})
        )
    assert [key["kty"] for key in rotated.key_set()["keys"]] == ["EC", "RSA"]
    told = rotated.discovery("https://x/openid/v1/jwks")
    assert told["id_token_signing_alg_values_supported"] == ["ES256", "RS256"]


@pytest.mark.parametrize(
    "change",
    [
        {"sub": "system:serviceaccount:kube-system:admin"},
        {"kubernetes.io": None},
        {"kubernetes.io": {"namespace": "dev"}},
        {"kubernetes.io": {"namespace": "dev", "serviceaccount": {"name": "robot"}}},
        {"kubernetes.io": {"namespace": 5, "serviceaccount": {"name": "robot", "uid": "uid-robot"}}},
    ],
    ids=str,
)
def test_odd_claims_are_refused_even_when_well_signed(change):
    world = World()
    claims = jwt.unverified_claims(world.token()) | change
    with pytest.raises(Unauthorized):
        world.ask(jwt.sign(claims, KEY))


def test_memory_of_tokens_is_bounded_and_forgets_its_index():
    world = World()
    token = world.token()
    world.ask(token)
    assert len(world.authenticator._known) == 1
    world.authenticator.invalidate("ServiceAccount", "dev", "robot")
    assert not world.authenticator._known and not world.authenticator._by_object


# ---- bootstrap and static tokens ----


def bootstrap_secret(world: World, **changes: str | None) -> None:
    data = {
        "token-id": "abcdef",
        "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true",
        "expiration": rfc3339(START + timedelta(hours=1)),
        "auth-extra-groups": "system:bootstrappers:lite, system:bootstrappers:x",
    }
    kind = changes.pop("type", "bootstrap.kubernetes.io/token")
    data = {key: value for key, value in (data | changes).items() if value is not None}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    world.put("Secret", "kube-system", "bootstrap-token-abcdef", "u", type=kind, data=encoded)


BOOTSTRAP = "abcdef.0123456789abcdef"


def test_bootstrap_token():
    world = World()
    bootstrap_secret(world)
    user = world.ask(BOOTSTRAP)
    assert user.name == "system:bootstrap:abcdef"
    assert user.groups == (
        "system:bootstrappers",
        "system:bootstrappers:lite",
        "system:bootstrappers:x",
        "system:authenticated",
    )
    del world.objects["Secret", "kube-system", "bootstrap-token-abcdef"]
    world.authenticator.invalidate("Secret", "kube-system", "bootstrap-token-abcdef")
    with pytest.raises(Unauthorized):
        world.ask(BOOTSTRAP)


@pytest.mark.parametrize(
    "change",
    [
        {"token-secret": "0123456789abcdee"},
        {"token-id": "abcdee"},
        {"usage-bootstrap-authentication": "false"},
        {"usage-bootstrap-authentication": None},
        {"expiration": rfc3339(START)},
        {"expiration": "whenever"},
        {"auth-extra-groups": "system:masters"},
        {"auth-extra-groups": "system:bootstrappers:a\nsystem:masters"},
        {"type": "Opaque"},
    ],
    ids=str,
)
def test_refused_bootstrap_tokens(change):
    world = World()
    bootstrap_secret(world, **change)
    with pytest.raises(Unauthorized):
        world.ask(BOOTSTRAP)


async def test_a_bootstrap_token_ends_in_time():
    world = World()
    bootstrap_secret(world, expiration=rfc3339(START + timedelta(seconds=30)))
    assert world.ask(BOOTSTRAP)
    await world.clock.advance(30)
    with pytest.raises(Unauthorized):
        world.ask(BOOTSTRAP)


def test_a_bootstrap_token_without_end():
    world = World()
    bootstrap_secret(world, expiration=None)
    assert world.ask(BOOTSTRAP)


def test_static_tokens():
    world = World(static_tokens=[(SecretValue("letmein"), UserInfo("root", ("system:masters",)))])
    assert world.ask("letmein") == UserInfo("root", ("system:masters", "system:authenticated"))
    with pytest.raises(Unauthorized):
        world.ask("letmeout")


# ---- acting as somebody else ----


def impersonators(*rules: dict[str, Any]) -> RbacAuthorizer:
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "name": "boss"}],
    }
    return RbacAuthorizer(
        roles=list,
        role_bindings=list,
        cluster_roles=lambda: [{"metadata": {"name": "r"}, "rules": list(rules)}],
        cluster_role_bindings=lambda: [binding],
    )


def rule(resources: str, names: str = "", group: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {"verbs": ["impersonate"], "apiGroups": [group], "resources": resources.split()}
    return out | ({"resourceNames": names.split()} if names else {})


AUTHN = "authentication.k8s.io"


def act(authorizer: RbacAuthorizer | None, **headers: str) -> UserInfo:
    boss = UserInfo("boss", ("system:authenticated",))
    request = Request(
        "GET",
        "/api",
        headers={key.replace("_", "-"): value for key, value in headers.items()},
        peer=Peer(certificate_user=boss),
    )
    return Authenticator(authorizer=authorizer).authenticate(request)


def test_acting_as_a_user():
    allowed = impersonators(rule("users groups"))
    assert act(allowed, impersonate_user="ann") == UserInfo("ann", ("system:authenticated",))
    assert act(allowed, impersonate_user="ann", impersonate_group="a\nb").groups == ("a", "b", "system:authenticated")
    assert act(allowed, impersonate_user="system:anonymous").groups == ("system:unauthenticated",)


def test_acting_as_a_service_account_brings_its_groups():
    allowed = impersonators(rule("serviceaccounts"))
    name = "system:serviceaccount:dev:robot"
    assert act(allowed, impersonate_user=name) == service_account_user("dev", "robot")
    with pytest.raises(Forbidden, match='cannot impersonate resource "users"'):
        act(allowed, impersonate_user="system:serviceaccount:dev")


def test_extras_and_uid_are_asked_for_too():
    allowed = impersonators(rule("users"), rule("userextras/scopes uids", group=AUTHN))
    user = act(allowed, impersonate_user="ann", impersonate_uid="7", **{"impersonate-extra-scopes": "x\ny"})
    assert user.uid == "7" and user.extra == (("scopes", ("x", "y")),)
    with pytest.raises(Forbidden, match="userextras/other"):
        act(allowed, impersonate_user="ann", **{"impersonate-extra-other": "x"})


def test_extra_keys_are_percent_decoded():
    asked = impersonation({"impersonate-user": "a", "impersonate-extra-acme.com%2fproject": "p"})
    assert asked is not None and asked.extra == (("acme.com/project", ("p",)),)


@pytest.mark.parametrize(
    "headers",
    [
        {"impersonate_user": "other"},
        {"impersonate_user": "ann", "impersonate_group": "system:masters"},
        {"impersonate_user": "ann", "impersonate_group": "ok\nsystem:masters"},
        {"impersonate_user": "ann", "impersonate_uid": "1"},
    ],
    ids=str,
)
def test_one_refused_part_refuses_all(headers):
    allowed = impersonators(rule("users", "ann"), rule("groups", "ok"))
    with pytest.raises(Forbidden):
        act(allowed, **headers)


@pytest.mark.parametrize(
    "headers", [{"impersonate_group": "g"}, {"impersonate_uid": "1"}, {"impersonate-extra-a": "1"}]
)
def test_parts_without_a_user_are_refused(headers):
    with pytest.raises(ApiError) as caught:
        act(impersonators(rule("*")), **headers)
    assert caught.value.code == 400


def test_without_an_authorizer_nobody_acts_as_somebody_else():
    with pytest.raises(BadRequest):
        act(None, impersonate_user="ann")
