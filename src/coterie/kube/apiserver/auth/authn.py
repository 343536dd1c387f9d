"""Who is asking? From a request to a `UserInfo`, or 401.

The order is: client certificate (found out once for the whole connection), bearer token (service account, bootstrap,
static), nobody. Nobody may ask for the server's health and nothing else. Afterwards a user may ask to act as somebody
else (`kubectl --as`), if allowed to.

A checked token is remembered by its hash, so that the signature is verified once and not with every request. It is
forgotten when it expires, when an object it is bound to changes (`invalidate`), and after a minute in any case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.jwt import TokenError
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.http.messages import Request, UserInfo
from coterie.kube.api.errors import BadRequest, Unauthorized
from coterie.kube.apiserver.auth.bootstrap import looks_like_bootstrap, verify_bootstrap
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.auth.rules import Attributes
from coterie.kube.apiserver.auth.tokens import (
    AUTHENTICATED,
    BoundTo,
    Lookups,
    TokenSigner,
    VerifiedToken,
    service_account_user,
    verify_service_account,
)

_log = logger("apiserver.authn")
UNAUTHENTICATED = "system:unauthenticated"
ANONYMOUS = UserInfo("system:anonymous", (UNAUTHENTICATED,))
HEALTH_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
_LONGEST_MEMORY = 60.0
_MOST_TOKENS = 10_000
_FOREVER = float("inf")
_NAMED_SEPARATOR = "\n"
"""Joins values of a header that was sent several times; it cannot stand inside a value."""


class _Known(NamedTuple):
    user: UserInfo
    until: float
    bound_to: tuple[BoundTo, ...]


class Authenticator:
    def __init__(
        self,
        *,
        signer: TokenSigner | None = None,
        lookups: Lookups | None = None,
        authorizer: RbacAuthorizer | None = None,
        static_tokens: Iterable[tuple[SecretValue, UserInfo]] = (),
        clock: Clock = SYSTEM_CLOCK,
        anonymous_paths: frozenset[str] = HEALTH_PATHS,
    ) -> None:
        """Without `signer` there are no service-account tokens; without `authorizer` nobody acts as somebody else."""
        self._signer = signer
        self._lookups = lookups or Lookups()
        self._authorizer = authorizer
        self._static = {_digest(token.reveal()): _authenticated(user) for token, user in static_tokens}
        self._clock = clock
        self._anonymous_paths = anonymous_paths
        self._known: dict[bytes, _Known] = {}
        self._by_object: dict[BoundTo, set[bytes]] = {}

    def authenticate(self, request: Request) -> UserInfo:
        """The user of this request. Raises Unauthorized, or Forbidden for a refused impersonation."""
        headers = request.headers
        user = request.peer.certificate_user
        if user is None:
            authorization = headers.get("authorization")
            if authorization is not None:
                user = self._bearer(authorization)
            elif request.path in self._anonymous_paths and request.method in ("GET", "HEAD"):
                return ANONYMOUS
            else:
                raise Unauthorized("Unauthorized")
        elif self._clock.now().timestamp() > request.peer.certificate_until:
            raise Unauthorized("Unauthorized")
        # One search in the joined names is several times cheaper than looking at each of them.
        if "impersonate-" in ",".join(headers):
            request.user = user  # for the audit log, if the next line refuses
            acting = self._impersonated(user, headers)
            if acting is not user:
                request.impersonator = user
            return acting
        return user

    def verify_token(self, token: str, audiences: Sequence[str] = ()) -> VerifiedToken:
        """Look at a token afresh. Raises jwt.TokenError. With `audiences`, it must be meant for one of them."""
        static = self._static.get(_digest(token))
        own = self._signer.audiences if self._signer is not None else ()
        if static is not None:
            return VerifiedToken(static, _common(audiences, own), _FOREVER)
        if looks_like_bootstrap(token):
            found = verify_bootstrap(token, self._lookups, self._clock.now())
            return VerifiedToken(found.user, _common(audiences, own), found.expires, found.bound_to)
        if self._signer is None:
            raise TokenError("no service-account tokens are accepted here")
        return verify_service_account(token, self._signer, self._lookups, self._clock, audiences)

    def invalidate(self, kind: str = "", namespace: str = "", name: str = "") -> None:
        """Forget tokens bound to a changed ServiceAccount, Secret, Pod or Node; without arguments, all."""
        if not kind:
            self._known.clear()
            self._by_object.clear()
            return
        for digest in self._by_object.pop((kind, namespace, name), ()):
            self._known.pop(digest, None)

    def _bearer(self, authorization: str) -> UserInfo:
        if authorization[:7].lower() != "bearer ":
            raise Unauthorized("Unauthorized")
        token = authorization[7:].strip()
        digest = _digest(token)
        known = self._known.get(digest)
        if known is not None:
            if self._clock.monotonic() < known.until:
                return known.user
            self._forget(digest, known)
        try:
            verified = self.verify_token(token)
        except TokenError as error:
            _log.debug("Bearer token refused", error=error)
            raise Unauthorized("Unauthorized") from error
        self._remember(digest, verified)
        return verified.user

    def _remember(self, digest: bytes, verified: VerifiedToken) -> None:
        if len(self._known) >= _MOST_TOKENS:
            self.invalidate()
        left = min(_LONGEST_MEMORY, verified.expires - self._clock.now().timestamp())
        self._known[digest] = _Known(verified.user, self._clock.monotonic() + left, verified.bound_to)
        for each in verified.bound_to:
            self._by_object.setdefault(each, set()).add(digest)

    def _forget(self, digest: bytes, known: _Known) -> None:
        del self._known[digest]
        for each in known.bound_to:
            others = self._by_object.get(each)
            if others is not None:
                others.discard(digest)
                if not others:
                    del self._by_object[each]

    def _impersonated(self, user: UserInfo, headers: Mapping[str, str]) -> UserInfo:
        asked = impersonation(headers)
        if asked is None:
            return user
        if self._authorizer is None:
            raise BadRequest("impersonation is not offered here")
        for attributes in impersonation_questions(asked):
            self._authorizer.check(user, attributes)
        return self._authorizer.acting_as(user, complete_impersonated(asked))


def impersonation(headers: Mapping[str, str]) -> UserInfo | None:
    """Whom the request wants to act as. Raises BadRequest for headers that make no sense."""
    groups: tuple[str, ...] = ()
    uid = ""
    extra: dict[str, tuple[str, ...]] = {}
    for header, value in headers.items():
        if header == "impersonate-group":
            groups = tuple(value.split(_NAMED_SEPARATOR))
        elif header == "impersonate-uid":
            uid = value
        elif header.startswith("impersonate-extra-"):
            extra[unquote(header[len("impersonate-extra-") :])] = tuple(value.split(_NAMED_SEPARATOR))
    name = headers.get("impersonate-user", "")
    if not name:
        if groups or uid or extra:
            raise BadRequest("requested impersonation of groups, uid or extra without impersonating a user")
        return None
    return UserInfo(name, groups, uid, tuple(sorted(extra.items())))


def impersonation_questions(asked: UserInfo) -> list[Attributes]:
    """What the asking user must be allowed to do, all of it."""
    account = _service_account_parts(asked.name)
    if account is not None:
        namespace, name = account
        questions = [Attributes("impersonate", "", "serviceaccounts", "", namespace, "", name)]
    else:
        questions = [Attributes("impersonate", "", "users", name=asked.name)]
    questions += [Attributes("impersonate", "", "groups", name=group) for group in asked.groups]
    api = "authentication.k8s.io"
    questions += [
        Attributes("impersonate", api, "userextras", key, name=value) for key, values in asked.extra for value in values
    ]
    if asked.uid:
        questions.append(Attributes("impersonate", api, "uids", name=asked.uid))
    return questions


def complete_impersonated(asked: UserInfo) -> UserInfo:
    """Add the groups that go without saying."""
    groups = asked.groups
    account = _service_account_parts(asked.name)
    if account is not None and not groups:
        groups = service_account_user(*account).groups
    if asked.name == ANONYMOUS.name:
        groups = groups if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
    elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return UserInfo(asked.name, groups, asked.uid, asked.extra)


def _service_account_parts(name: str) -> tuple[str, str] | None:
    parts = name.split(":")
    if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] and parts[2] and parts[3]:
        return parts[2], parts[3]
    return None


def user_from_certificate(certificate: Mapping[str, Any] | None) -> UserInfo | None:
    """The user a *verified* client certificate names, as `ssl.SSLSocket.getpeercert()` shows it. None when it names
    nobody."""
    if not certificate:
        return None
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for key, value in pairs if key == "commonName"]
    groups = tuple(value for key, value in pairs if key == "organizationName")
    return _authenticated(UserInfo(names[-1], groups)) if names and names[-1] else None


def _authenticated(user: UserInfo) -> UserInfo:
    if AUTHENTICATED in user.groups:
        return user
    return UserInfo(user.name, (*user.groups, AUTHENTICATED), user.uid, user.extra)


def _common(wanted: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    """Tokens without audiences are for this API; whoever wants them for another gets no match."""
    if not wanted:
        return tuple(own)
    common = tuple(each for each in wanted if each in own)
    if not common:
        raise TokenError("the token has another audience")
    return common


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
