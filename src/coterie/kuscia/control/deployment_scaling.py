"""Growth of KusciaDeployments by autoscalers, within the quota of the partner that began them."""

from __future__ import annotations

from coterie.kube.api.types.apps import DEPLOYMENTS, Deployment
from coterie.kube.client.informers import Informers
from coterie.kube.control.scale_hooks import ScaleAllowance, ScaleRequest
from coterie.kuscia.api import labels
from coterie.kuscia.api.partner_policy import Usage, usage_of
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.control.partner_quotas import PartnerQuotas


class PartnerScaleHook:
    """A ScaleHook: claims the room of new replicas before they are written."""

    def __init__(self, informers: Informers, quotas: PartnerQuotas) -> None:
        self._quotas = quotas
        self._deployments = informers.get(DEPLOYMENTS)
        self._serving = informers.get(KUSCIA_DEPLOYMENTS, CROSS_DOMAIN)

    def allow(self, request: ScaleRequest) -> ScaleAllowance | None:
        if (request.group, request.kind) != ("apps", "Deployment"):
            return None
        if not all(each.ready.is_set() for each in (self._deployments, self._serving, self._quotas.domains)):
            return ScaleAllowance(request.current, "the control plane is starting and does not know its partners yet")
        deployment = self._deployments.cache.get(request.name, request.namespace)
        known = (deployment.metadata.labels or {}) if deployment is not None else {}
        serving = self._serving.cache.get(known.get(labels.KUSCIA_KD_NAME, ""), CROSS_DOMAIN)
        if deployment is None or serving is None or serving.metadata.uid != known.get(labels.KUSCIA_KD_UID):
            return None
        initiator = serving.spec.initiator
        if not self._quotas.is_partner(initiator):
            return None
        others = Usage()
        for party in serving.spec.parties:
            for each in self._deployments.cache.list(party.domain_id):
                of_same = (each.metadata.labels or {}).get(labels.KUSCIA_KD_UID) == serving.metadata.uid
                if of_same and each.key != deployment.key:
                    others += _usage(each, each.replicas)
        why = ""
        for replicas in range(request.wanted, request.current, -1):
            refusal = self._quotas.claim(serving.metadata.uid, initiator, others + _usage(deployment, replicas))
            if refusal is None:
                return ScaleAllowance(replicas, why) if why else None
            why = refusal.sentence
        return ScaleAllowance(request.current, why)


def _usage(deployment: Deployment, replicas: int) -> Usage:
    spec = (deployment.spec.template or {}).get("spec") or {}
    return usage_of(spec.get("containers") or (), replicas)
