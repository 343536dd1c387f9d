"""Tokens of service accounts: made on request, bound to the life of objects, checked against what lives now.

A token names its account by name *and* uid, so an account that is deleted and made again does not inherit old tokens.
It may further be bound to a pod, a secret or a node, and dies with it. Nothing is stored: the signature says that we made
it, and the look-ups say whether what it stands for still exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from coterie.base import jwt
from coterie.base.clock import Clock, parse_rfc3339, rfc3339
from coterie.base.ids import uid4
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import BadRequest, Conflict, FieldError, NotFound, invalid, invalid_object

if TYPE_CHECKING:
    from coterie.base.pki import PrivateKey, PublicKey

Object = Mapping[str, Any]
ISSUER = "https://kubernetes.default.svc.cluster.local"
CLAIM = "kubernetes.io"
_PREFIX = "system:serviceaccount:"
_EXTRA = "authentication.kubernetes.io/"
_SHORTEST, _LONGEST = 600, 1 << 32
_DEFAULT_LIFE = 3600
# A pod that is told to end may still report and clean up.
_DELETION_GRACE = timedelta(seconds=60)
_EARLY = 60.0
"""Seconds a token is good before it was made: a clock that is set back a little must not refuse it."""
AUTHENTICATED = "system:authenticated"

BoundTo = tuple[str, str, str]
"""(kind, namespace, name) of an object whose change can end a token."""


def _nothing(*_: str) -> Object | None:
    return None


@dataclass(frozen=True, slots=True)
class Lookups:
    """How living objects are found; each answers the object or None, at once."""

    service_account: Callable[[str, str], Object | None] = _nothing
    secret: Callable[[str, str], Object | None] = _nothing
    pod: Callable[[str, str], Object | None] = _nothing
    node: Callable[[str], Object | None] = _nothing


class TokenSigner:
    """The key that signs, and the keys (old ones too) whose signatures are believed."""

    def __init__(
        self,
        key: PrivateKey | Callable[[], PrivateKey],
        *,
        issuer: str = ISSUER,
        audiences: Sequence[str] = (),
        more_keys: Sequence[PublicKey] = (),
    ) -> None:
        """`key`: the key, or how to get it: then it is fetched with the first token."""
        self._given = key
        self._more_keys = tuple(more_keys)
        self.issuer = issuer
        self.audiences = tuple(audiences) or (issuer,)
        """What the API itself is called in `aud`; tokens made without audiences are for it."""

    @cached_property
    def _key(self) -> PrivateKey:
        return self._given() if callable(self._given) else self._given

    @cached_property
    def keys(self) -> dict[str, PublicKey]:
        """By their key ids."""
        return {jwt.key_id(each): each for each in (self._key.public_key(), *self._more_keys)}

    def sign(self, claims: Mapping[str, Any]) -> str:
        return jwt.sign(claims, self._key, kid=next(iter(self.keys)))

    def key_set(self) -> dict[str, Any]:
        """`/openid/v1/jwks`"""
        return {"keys": [jwt.jwk(key) for key in self.keys.values()]}

    def discovery(self, jwks_uri: str) -> dict[str, Any]:
        """`/.well-known/openid-configuration`"""
        return {
            "issuer": self.issuer,
            "jwks_uri": jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": sorted({jwt.algorithm(key) for key in self.keys.values()}),
        }


def request_token(
    request: Object, account: Object, signer: TokenSigner, lookups: Lookups, now: datetime
) -> dict[str, Any]:
    """Answer a TokenRequest for a ServiceAccount. Raises Invalid, NotFound, BadRequest or Conflict."""
    spec: Object = request.get("spec") or {}
    meta = account["metadata"]
    requested_seconds = spec.get("expirationSeconds")
    seconds = _DEFAULT_LIFE if requested_seconds is None else requested_seconds
    faults = _life_faults(seconds)
    if faults:
        raise invalid_object("TokenRequest", "authentication.k8s.io", "", faults)
    audiences = list(spec.get("audiences") or ()) or list(signer.audiences)
    reference = spec.get("boundObjectRef")
    about: dict[str, Any] = {
        "namespace": meta["namespace"],
        "serviceaccount": {"name": meta["name"], "uid": meta["uid"]},
    }
    if reference:
        about |= _bound_claims(reference, account, lookups)
    begins = int(now.timestamp())
    claims = {
        "aud": audiences,
        "exp": begins + seconds,
        "iat": begins,
        "iss": signer.issuer,
        "jti": uid4(),
        CLAIM: dict(sorted(about.items())),
        "nbf": begins,
        "sub": f"{_PREFIX}{meta['namespace']}:{meta['name']}",
    }
    answered = {"audiences": audiences, "expirationSeconds": seconds}
    if reference:
        answered["boundObjectRef"] = dict(reference)
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "creationTimestamp": rfc3339(now)},
        "spec": answered,
        "status": {"token": signer.sign(claims), "expirationTimestamp": rfc3339(now + timedelta(seconds=seconds))},
    }


def _life_faults(seconds: object) -> list[FieldError]:
    where = "spec.expirationSeconds"
    if isinstance(seconds, bool) or not isinstance(seconds, int):
        return [invalid(where, seconds, "must be an integer")]
    if seconds < _SHORTEST:
        return [invalid(where, seconds, "may not specify a duration less than 10 minutes")]
    if seconds > _LONGEST:
        return [invalid(where, seconds, "may not specify a duration larger than 2^32 seconds")]
    return []


def _bound_claims(reference: Object, account: Object, lookups: Lookups) -> dict[str, Any]:
    kind, version, name = reference.get("kind"), reference.get("apiVersion") or "v1", reference.get("name") or ""
    namespace, account_name = account["metadata"]["namespace"], account["metadata"]["name"]
    found: Object | None
    if kind not in ("Pod", "Secret", "Node") or version != "v1":
        raise BadRequest(f"cannot bind token to object of type {version}, Kind={kind}")
    if kind == "Node":
        found = lookups.node(name)
    elif kind == "Pod":
        found = lookups.pod(namespace, name)
    else:
        found = lookups.secret(namespace, name)
    plural = f"{kind.lower()}s"
    if found is None:
        raise NotFound(f'{plural} "{name}" not found', name=name, kind=plural)
    uid = found["metadata"]["uid"]
    if reference.get("uid") and reference["uid"] != uid:
        raise Conflict(
            f'Operation cannot be fulfilled on {kind} "{name}": the UID in the bound object reference '
            f"({reference['uid']}) does not match the UID in record. The object might have been deleted and then recreated",
            name=name,
            kind=plural,
        )
    claims: dict[str, Any] = {kind.lower(): {"name": name, "uid": uid}}
    if kind == "Pod":
        spec: Object = found.get("spec") or {}
        if (spec.get("serviceAccountName") or "default") != account_name:
            raise BadRequest(
                f'cannot bind token for serviceaccount "{account_name}" to pod running with different serviceaccount name.'
            )
        node = lookups.node(spec["nodeName"]) if spec.get("nodeName") else None
        if node is not None:
            claims["node"] = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    return claims


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    user: UserInfo
    audiences: tuple[str, ...]
    """Those of the wanted audiences that the token is for."""
    expires: float
    """Seconds since 1970."""
    bound_to: tuple[BoundTo, ...] = field(default=())
    """When one of these changes, the token must be looked at again."""


def verify_service_account(
    token: str, signer: TokenSigner, lookups: Lookups, clock: Clock, audiences: Sequence[str] = ()
) -> VerifiedToken:
    """Who a service account's token stands for. Raises jwt.TokenError when for nobody (any more)."""
    wanted = tuple(audiences) or signer.audiences
    claims = jwt.verify(token, signer.keys, issuer=signer.issuer, audiences=wanted, clock=clock, early=_EARLY)
    now = clock.now()
    about = claims.get(CLAIM)
    if not isinstance(about, dict):
        raise jwt.MalformedToken("the token names no service account")
    namespace = about.get("namespace")
    account_name, account_uid = _reference(about, "serviceaccount")
    if not isinstance(namespace, str) or not account_name:
        raise jwt.MalformedToken("the token names no service account")
    if claims.get("sub") != f"{_PREFIX}{namespace}:{account_name}":
        raise jwt.MalformedToken("the token's subject is not its service account")
    _alive(lookups.service_account(namespace, account_name), account_uid, "service account", now)
    bound: list[BoundTo] = [("ServiceAccount", namespace, account_name)]
    extra: list[tuple[str, tuple[str, ...]]] = [
        (f"{_EXTRA}credential-id", (f"JTI={claims['jti']}",))] if isinstance(claims.get("jti"), str) else []  # fmt: skip
    pod_name, pod_uid = _reference(about, "pod")
    node_name, node_uid = _reference(about, "node")
    secret_name, secret_uid = _reference(about, "secret")
    if node_name:
        # A token of a pod only tells on which node it ran; a token of a node must find it alive.
        if not pod_name:
            _alive(lookups.node(node_name), node_uid, "node", now)
            bound.append(("Node", "", node_name))
        extra += [(f"{_EXTRA}node-name", (node_name,)), (f"{_EXTRA}node-uid", (node_uid,))]
    if pod_name:
        _alive(lookups.pod(namespace, pod_name), pod_uid, "pod", now)
        bound.append(("Pod", namespace, pod_name))
        extra += [(f"{_EXTRA}pod-name", (pod_name,)), (f"{_EXTRA}pod-uid", (pod_uid,))]
    if secret_name:
        _alive(lookups.secret(namespace, secret_name), secret_uid, "secret", now)
        bound.append(("Secret", namespace, secret_name))
    user = service_account_user(namespace, account_name, account_uid, tuple(sorted(extra)))
    token_audiences = set(jwt.audiences_of(claims))
    return VerifiedToken(
        user, tuple(each for each in wanted if each in token_audiences), float(claims["exp"]), tuple(bound)
    )


def service_account_user(
    namespace: str, name: str, uid: str = "", extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
) -> UserInfo:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return UserInfo(f"{_PREFIX}{namespace}:{name}", groups, uid, extra)


def _reference(about: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """(name, uid) of an object the token speaks of, or empty texts."""
    reference = about.get(kind)
    if not isinstance(reference, dict):
        return "", ""
    name, uid = reference.get("name"), reference.get("uid")
    return (name, uid) if isinstance(name, str) and isinstance(uid, str) else ("", "")


def _alive(found: Object | None, uid: str, what: str, now: datetime) -> None:
    if found is None or found["metadata"].get("uid") != uid:
        raise jwt.ExpiredToken(f"the {what} of the token is gone")
    going = found["metadata"].get("deletionTimestamp")
    if going and now > parse_rfc3339(going) + _DELETION_GRACE:
        raise jwt.ExpiredToken(f"the {what} of the token is being deleted")
