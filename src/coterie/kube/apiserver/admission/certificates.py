"""CertificateSigningRequests: who asked, and who may approve, deny or sign (Kubernetes' CertificateApproval, CertificateSigning,
CertificateSubjectRestriction and the part of NodeRestriction that is about requests).

The rights are `approve` and `sign` on `signers.certificates.k8s.io`, named after the signer or `<its domain>/*`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.base.clock import Clock, rfc3339
from coterie.base.lazy_import import lazy_import
from coterie.http.messages import UserInfo
from coterie.kube.api import errors
from coterie.kube.api.certificate_signers import GROUP, KUBELET_CLIENT, KUBELET_SERVING, subject_refused
from coterie.kube.api.rules.certificates import FROM_REQUESTER, decoded
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.auth.nodes import NODE_PREFIX, NodeAuthorizer, node_of
from coterie.kube.apiserver.auth.rules import Attributes

if TYPE_CHECKING:
    from coterie.base import certificate_requests, pki
else:
    certificate_requests = lazy_import("coterie.base.certificate_requests")
    pki = lazy_import("coterie.base.pki")

Object = dict[str, Any]
_OF_NODES = (KUBELET_CLIENT, KUBELET_SERVING)
_BUILTIN_DOMAIN = "kubernetes.io/"


class CertificateAdmission:
    def __init__(self, authorizer: NodeAuthorizer, clock: Clock) -> None:
        self._authorizer = authorizer
        self._clock = clock

    def __call__(self, attempt: AdmissionRequest) -> None:
        if attempt.resource.group != GROUP or attempt.resource.kind != "CertificateSigningRequest":
            return
        if attempt.old is None:
            self._create(attempt)
        elif attempt.subresource == "approval":
            self._require("approve", attempt, attempt.old)
            self._set_times(attempt.obj, attempt.old)
        elif attempt.subresource == "status":
            self._set_times(attempt.obj, attempt.old)
            if _decided(attempt.obj) != _decided(attempt.old):
                self._require("sign", attempt, attempt.old)

    def _create(self, attempt: AdmissionRequest) -> None:
        # All four anew: policies and webhooks have seen the object.
        given = (attempt.obj.get("spec") or {}).items()
        spec: Object = {key: value for key, value in given if key not in FROM_REQUESTER}
        attempt.obj["spec"] = {**spec, **_requester(attempt.user)}
        signer = spec.get("signerName") or ""
        node = self._limited_node(attempt.user)
        if not node and not signer.startswith(_BUILTIN_DOMAIN):
            return
        try:
            wanted = certificate_requests.read_request(decoded(spec.get("request")))
        except pki.PkiError:
            return  # validation says why
        why = subject_refused(signer, wanted.common_name, wanted.organizations)
        if not why and node and signer.startswith(_BUILTIN_DOMAIN):
            own = NODE_PREFIX + node
            if signer not in _OF_NODES:
                why = f'node "{node}" may not ask for certificates of {signer}'
            elif wanted.common_name != own:
                why = f"can only create a node CSR with CN={own}"
        if why:
            raise _forbidden(attempt, why)

    def _limited_node(self, user: UserInfo) -> str:
        """The node that asks, unless a binding gives it the right to ask for anything."""
        node = node_of(user)
        plain = Attributes("create", GROUP, "certificatesigningrequests")
        return node if node and not self._authorizer.plainly(user, plain) else ""

    def _require(self, verb: str, attempt: AdmissionRequest, old: Object) -> None:
        signer = (old.get("spec") or {}).get("signerName") or ""
        if not self._may(attempt.user, verb, signer):
            raise _forbidden(attempt, f'user not permitted to {verb} requests with signerName "{signer}"')

    def _may(self, user: UserInfo, verb: str, signer: str) -> bool:
        domain = signer.partition("/")[0]
        return any(
            self._authorizer.allowed(user, Attributes(verb, GROUP, "signers", name=name)).allowed
            for name in (signer, f"{domain}/*")
        )

    def _set_times(self, new: Object, old: Object) -> None:
        """A condition has times; what was there before keeps its own."""
        status = new.get("status")
        if not isinstance(status, dict) or not status.get("conditions"):
            return
        now = rfc3339(self._clock.now())
        known = {(each.get("type"), each.get("status")): each for each in _conditions(old)}
        timed = []
        for each in status["conditions"]:
            before = known.get((each.get("type"), each.get("status"))) or {}
            began = each.get("lastTransitionTime") or before.get("lastTransitionTime") or now
            updated = each.get("lastUpdateTime") or before.get("lastUpdateTime") or now
            timed.append({**each, "lastUpdateTime": updated, "lastTransitionTime": began})
        new["status"] = {**status, "conditions": timed}


def _requester(user: UserInfo) -> Object:
    out: Object = {"username": user.name}
    if user.uid:
        out["uid"] = user.uid
    if user.groups:
        out["groups"] = list(user.groups)
    if user.extra:
        out["extra"] = {key: list(values) for key, values in user.extra}
    return out


def _conditions(obj: Object) -> list[Object]:
    return (obj.get("status") or {}).get("conditions") or []


def _decided(obj: Object) -> tuple[str, list[Object]]:
    return (obj.get("status") or {}).get("certificate") or "", _conditions(obj)


def _forbidden(attempt: AdmissionRequest, why: str) -> errors.Forbidden:
    resource = attempt.resource
    return errors.Forbidden(
        f'{resource.group_resource} "{attempt.name}" is forbidden: {why}',
        name=attempt.name,
        group=resource.group,
        kind=resource.plural,
    )
