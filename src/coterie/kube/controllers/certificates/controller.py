"""Approves requests of nodes for their own client certificates, signs what was approved, deletes what is over."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection
from typing import Any

import orjson

from coterie.base.certificate_requests import RequestedCertificate, expiry, read_request, sign_request, subject_problem
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.pki import Authority, PkiError
from coterie.kube.api.certificate_signers import (
    APPROVED,
    FAILED,
    KUBELET_SERVING,
    NODE_USER_PREFIX,
    request_refused,
)
from coterie.kube.api.errors import Conflict, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.rules.certificates import decoded
from coterie.kube.api.types.certificates import CERTIFICATE_SIGNING_REQUESTS, CertificateSigningRequest
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.controllers.certificates.plan import (
    Settings,
    access_review,
    automatic_approvals,
    certificate_life,
    delete_at,
    is_pending,
    is_to_sign,
    serving_names_refused,
)

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class CertificatesReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        authority: Callable[[], Authority],
        reserved_names: Collection[str],
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._client = client
        self._authority = authority
        self._reserved = reserved_names
        self._settings = settings
        self._clock = clock
        self.requests = informers.get(CERTIFICATE_SIGNING_REQUESTS)
        self._log = logger("controllers.certificates")

    async def reconcile(self, key: ObjectKey) -> Result:
        request = self.requests.cache.by_key(key)
        if request is None or request.metadata.deleting:
            return DONE
        certificate = decoded(request.status.certificate)
        end = delete_at(request, expiry(certificate) if certificate else None, self._settings)
        left = (end - self._clock.now()).total_seconds() if end is not None else None
        if left is not None and left <= 0:
            await self._delete(request)
            return DONE
        if is_pending(request):
            await self._approve(request)
        elif is_to_sign(request):
            await self._sign(request)
        return Result(after=left) if left is not None else DONE

    async def _delete(self, request: CertificateSigningRequest) -> None:
        meta = request.metadata
        try:
            await self._client.delete(CERTIFICATE_SIGNING_REQUESTS, meta.name, uid=meta.uid)
        except (NotFound, Conflict):
            return
        self._log.info("Certificate request is over and was deleted", request=meta.name)

    async def _approve(self, request: CertificateSigningRequest) -> None:
        try:
            ways = automatic_approvals(request, self._read(request))
        except PkiError:
            return  # a person may look at it
        for way in ways:
            if not await self._may(request, way.permission):
                continue
            if (await self._node(way.node) is not None) is not way.node_exists:
                continue
            condition = {"type": APPROVED, "status": "True", "reason": "AutoApproved", "message": way.message}
            await self._add_condition(request, condition, "approval")
            self._log.info("Certificate request is approved", request=request.metadata.name, user=request.spec.username)
            return

    async def _may(self, request: CertificateSigningRequest, permission: str) -> bool:
        body = orjson.dumps(access_review(request, permission))
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        reply = await self._client.raw("POST", _REVIEWS, body=body, headers=headers)
        return (orjson.loads(reply.body).get("status") or {}).get("allowed") is True

    async def _node(self, name: str) -> Node | None:
        """From the server: whether a Node exists decides about an identity, and a cache may be late."""
        try:
            return await self._client.get(NODES, name)
        except NotFound:
            return None

    async def _sign(self, request: CertificateSigningRequest) -> None:
        try:
            wanted = self._read(request)
            why = await self._refused(request, wanted)
        except PkiError as error:
            why = str(error)
        if why:
            await self._fail(request, why)
            return
        life = certificate_life(request, self._settings)
        usages = request.spec.usages or ()
        try:
            signed = sign_request(self._authority(), wanted, usages, now=self._clock.now(), life=life)
        except PkiError as error:
            await self._fail(request, str(error))
            return
        patch = {**_precondition(request), "status": {"certificate": base64.b64encode(signed).decode()}}
        await self._client.patch_status(CERTIFICATE_SIGNING_REQUESTS, request.metadata.name, "", patch)
        name, signer = request.metadata.name, request.spec.signer_name
        self._log.info("Certificate is issued", request=name, signer=signer, subject=wanted.common_name)

    async def _refused(self, request: CertificateSigningRequest, wanted: RequestedCertificate) -> str:
        signer = request.spec.signer_name
        if why := subject_problem(wanted) or request_refused(signer, wanted, request.spec.usages or ()):
            return why
        if signer != KUBELET_SERVING:
            return ""
        name = wanted.common_name.removeprefix(NODE_USER_PREFIX)
        nodes = (await self._client.list(NODES)).items
        own = [each for node in nodes if node.metadata.name == name for each in _names(node)]
        others = [each for node in nodes if node.metadata.name != name for each in _names(node)]
        return serving_names_refused(wanted, request.spec.username, own, others, self._reserved)

    async def _fail(self, request: CertificateSigningRequest, why: str) -> None:
        condition = {"type": FAILED, "status": "True", "reason": "SignerValidationFailure", "message": why}
        await self._add_condition(request, condition, "status")
        self._log.warning("Certificate request is refused", request=request.metadata.name, why=why)

    async def _add_condition(self, request: CertificateSigningRequest, condition: Object, subresource: str) -> None:
        name = request.metadata.name
        patch = {**_precondition(request), "status": {"conditions": [*_conditions(request), condition]}}
        await self._client.patch(CERTIFICATE_SIGNING_REQUESTS, name, "", patch, subresource=subresource)

    @staticmethod
    def _read(request: CertificateSigningRequest) -> RequestedCertificate:
        return read_request(decoded(request.spec.request))


def _precondition(request: CertificateSigningRequest) -> Object:
    """The object that was looked at, and nothing newer: a denial must not be overtaken."""
    meta = request.metadata
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}}


def _conditions(request: CertificateSigningRequest) -> list[Object]:
    return [
        {
            "type": each.type,
            "status": each.status,
            **({"reason": each.reason} if each.reason else {}),
            **({"message": each.message} if each.message else {}),
            "lastUpdateTime": each.last_update_time,
            "lastTransitionTime": each.last_transition_time,
        }
        for each in request.status.conditions or ()
    ]


def _names(node: Node) -> list[str]:
    addresses = [each.address for each in node.status.addresses or ()]
    return [node.metadata.name, *addresses]


def make(
    client: Client,
    informers: Informers,
    authority: Callable[[], Authority],
    *,
    reserved_names: Collection[str] = (),
    settings: Settings | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    reconciler = CertificatesReconciler(client, informers, authority, reserved_names, settings or Settings(), clock)
    watches: list[Watches[Any, ObjectKey]] = [Watches(reconciler.requests, own_key)]
    return Controller("certificates", reconciler.reconcile, watches, clock=clock)
