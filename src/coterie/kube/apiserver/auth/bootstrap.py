"""Bootstrap tokens: `id.secret` kept in a Secret, with which a machine introduces itself once."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from coterie.base.clock import parse_rfc3339
from coterie.base.jwt import BadSignature, ExpiredToken, MalformedToken
from coterie.http.messages import UserInfo
from coterie.kube.apiserver.auth.tokens import AUTHENTICATED, Lookups, VerifiedToken

NAMESPACE = "kube-system"
SECRET_TYPE = "bootstrap.kubernetes.io/token"
BOOTSTRAPPERS = "system:bootstrappers"
_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_GROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")
_NEVER = float("inf")


def looks_like_bootstrap(token: str) -> bool:
    return _TOKEN.fullmatch(token) is not None


def verify_bootstrap(token: str, lookups: Lookups, now: datetime) -> VerifiedToken:
    """Who a bootstrap token stands for. Raises jwt.TokenError when for nobody (any more)."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise MalformedToken("not a bootstrap token")
    token_id, token_secret = match.groups()
    name = f"bootstrap-token-{token_id}"
    found = lookups.secret(NAMESPACE, name)
    if found is None or found.get("type") != SECRET_TYPE or found["metadata"].get("deletionTimestamp"):
        raise BadSignature("the bootstrap token is not known here")
    data: Mapping[str, Any] = found.get("data") or {}
    if _text(data, "token-id") != token_id:
        raise BadSignature("the bootstrap token is not known here")
    if not hmac.compare_digest(_text(data, "token-secret").encode(), token_secret.encode()):
        raise BadSignature("the bootstrap token's secret is wrong")
    if _text(data, "usage-bootstrap-authentication") != "true":
        raise BadSignature("the bootstrap token is not meant for authentication")
    expires = _expiry(_text(data, "expiration"))
    if now.timestamp() >= expires:
        raise ExpiredToken("the bootstrap token has expired")
    extra = [group.strip() for group in _text(data, "auth-extra-groups").split(",") if group.strip()]
    if not all(_GROUP.fullmatch(group) for group in extra):
        raise BadSignature("the bootstrap token names groups it may not give")
    groups = (BOOTSTRAPPERS, *extra, AUTHENTICATED)
    bound = (("Secret", NAMESPACE, name),)
    return VerifiedToken(UserInfo(f"system:bootstrap:{token_id}", groups), (), expires, bound)


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        return ""
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _expiry(text: str) -> float:
    if not text:
        return _NEVER
    try:
        return parse_rfc3339(text).timestamp()
    except ValueError:
        return 0.0  # a date that cannot be read has passed: refusing is the safe reading
