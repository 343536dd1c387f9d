"""What becomes of a CertificateSigningRequest: approved, signed, failed, deleted. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from coterie.kube.api.certificate_signers import (
    APPROVED,
    DENIED,
    FAILED,
    KUBELET_CLIENT,
    NODE_USER_PREFIX,
    SIGNED_HERE,
    request_refused,
)
from coterie.kube.api.types.certificates import CertificateSigningRequest

if TYPE_CHECKING:
    from coterie.base.certificate_requests import RequestedCertificate


@dataclass(frozen=True, slots=True)
class Settings:
    longest_life: timedelta = timedelta(days=365)
    """Of a certificate, whatever was asked for, and of one for which nothing was asked."""
    shortest_life: timedelta = timedelta(minutes=10)
    keep_decided: timedelta = timedelta(hours=1)
    """How long issued, denied and failed requests are kept."""
    keep_pending: timedelta = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class AutomaticApproval:
    """Approve if the requester may create this sub-resource of requests, and its Node does (or does not) exist."""

    permission: str
    node: str
    node_exists: bool
    message: str


def is_pending(request: CertificateSigningRequest) -> bool:
    return not request.status.certificate and not any(map(request.condition, (APPROVED, DENIED, FAILED)))


def is_to_sign(request: CertificateSigningRequest) -> bool:
    return (
        request.spec.signer_name in SIGNED_HERE
        and not request.status.certificate
        and request.condition(APPROVED) is not None
        and not any(map(request.condition, (DENIED, FAILED)))
    )


def automatic_approvals(request: CertificateSigningRequest, wanted: RequestedCertificate) -> list[AutomaticApproval]:
    """The ways in which this request may be approved without a person; only client certificates of nodes."""
    if request.spec.signer_name != KUBELET_CLIENT or not is_pending(request):
        return []
    if request_refused(KUBELET_CLIENT, wanted, request.spec.usages or ()):
        return []
    node = wanted.common_name.removeprefix(NODE_USER_PREFIX)
    new = "Auto approving kubelet client certificate after SubjectAccessReview."
    renewal = "Auto approving self kubelet client certificate after SubjectAccessReview."
    ways = [AutomaticApproval("nodeclient", node, False, new)]
    if request.spec.username == wanted.common_name:
        ways.insert(0, AutomaticApproval("selfnodeclient", node, True, renewal))
    return ways


def access_review(request: CertificateSigningRequest, permission: str) -> dict[str, object]:
    """A SubjectAccessReview: may whoever created the request do this?"""
    spec = request.spec
    attributes = {
        "group": "certificates.k8s.io",
        "resource": "certificatesigningrequests",
        "subresource": permission,
        "verb": "create",
        "version": "*",
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": spec.username,
            "uid": spec.uid,
            "groups": list(spec.groups or ()),
            "extra": {key: list(values) for key, values in (spec.extra or {}).items()},
            "resourceAttributes": attributes,
        },
    }


def serving_names_refused(
    wanted: RequestedCertificate,
    username: str,
    own: Collection[str],
    others: Collection[str],
    reserved: Collection[str],
) -> str:
    """Why a node does not get a server certificate for these names; empty: it does.

    `own`: name and addresses of the Node; `others`: of all other Nodes; `reserved`: names of the API server, and ranges of addresses
    that nodes cannot have.
    """
    if username != wanted.common_name:
        return f"only {wanted.common_name} itself may ask for its server certificate"
    ranges = [ipaddress.ip_network(each) for each in reserved if "/" in each]
    reserved = {_canonical(each) for each in reserved}
    mine, theirs = {_canonical(each) for each in own}, {_canonical(each) for each in others}
    for name in (*wanted.dns_names, *wanted.addresses):
        same = _canonical(name)
        if same in reserved or _is_loopback(same) or _in_ranges(same, ranges):
            return f"{name} is not a name of a node"
        if same not in mine:
            return f"{name} is neither the name nor an address of the Node"
        if same in theirs:
            return f"{name} is an address of another Node too"
    return ""


def _canonical(name: str) -> str:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name.lower().rstrip(".")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _in_ranges(name: str, ranges: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return any(address in each for each in ranges)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def certificate_life(request: CertificateSigningRequest, settings: Settings) -> timedelta:
    seconds = request.spec.expiration_seconds
    if seconds is None:
        return settings.longest_life
    return min(max(timedelta(seconds=seconds), settings.shortest_life), settings.longest_life)


def delete_at(request: CertificateSigningRequest, expiry: datetime | None, settings: Settings) -> datetime | None:
    """When nobody needs the object any more. `expiry`: of its certificate. None: never."""
    moments: list[datetime] = []
    if request.status.certificate:
        moments += [_moment(request, APPROVED, settings.keep_decided)] if request.condition(APPROVED) else []
        moments += [expiry] if expiry is not None else []
    for kind in (DENIED, FAILED):
        if request.condition(kind) is not None:
            moments.append(_moment(request, kind, settings.keep_decided))
    if is_pending(request):
        created = _time(request.metadata.creation_timestamp)
        moments += [created + settings.keep_pending] if created is not None else []
    return min(moments, default=None)


def _moment(request: CertificateSigningRequest, kind: str, keep: timedelta) -> datetime:
    condition = request.condition(kind)
    assert condition is not None
    since = _time(condition.last_update_time) or _time(condition.last_transition_time)
    return (since or _time(request.metadata.creation_timestamp) or datetime.min) + keep


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
