"""How far an autoscaler may grow a partner's deployment: the partner's quota decides, and claims are made at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.kube.api.meta import ObjectKey, ObjectMeta
from coterie.kube.api.types.apps import DEPLOYMENTS, Deployment, DeploymentSpec
from coterie.kube.control.scale_hooks import ScaleAllowance, ScaleRequest
from coterie.kuscia.api import labels
from coterie.kuscia.api.partner_policy import Usage
from coterie.kuscia.api.types.deployment import (
    KUSCIA_DEPLOYMENTS,
    DeploymentParty,
    KusciaDeployment,
    KusciaDeploymentSpec,
)
from coterie.kuscia.api.types.domain import DOMAINS, Domain, DomainSpec
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES, PartnerPolicy, PartnerPolicySpec, PartnerQuota
from coterie.kuscia.control.deployment_scaling import PartnerScaleHook
from coterie.kuscia.control.partner_quotas import PartnerQuotas


class _Cache:
    def __init__(self, *objects: Any) -> None:
        self._objects = {each.key: each for each in objects}

    def get(self, name: str, namespace: str = "") -> Any:
        return self._objects.get(ObjectKey(namespace, name))

    def list(self, namespace: str | None = None) -> list[Any]:
        return [each for key, each in self._objects.items() if namespace in (None, key.namespace)]


def deployment(name: str, replicas: int, **known: str) -> Deployment:
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    meta = ObjectMeta(name=name, namespace="own", uid=name, labels=known)
    return Deployment(metadata=meta, spec=DeploymentSpec(replicas=replicas, template=template))


def hook(initiator: str, pods: int, *, ready: bool = True) -> tuple[PartnerScaleHook, PartnerQuotas]:
    known = {labels.KUSCIA_KD_NAME: "s", labels.KUSCIA_KD_UID: "kd"}
    parties = (
        DeploymentParty(domain_id="own", app_image_ref="i"),
        DeploymentParty(domain_id="alice", app_image_ref="i"),
    )
    serving = KusciaDeployment(
        metadata=ObjectMeta(name="s", namespace=CROSS_DOMAIN, uid="kd"),
        spec=KusciaDeploymentSpec(initiator=initiator, input_config="{}", parties=parties),
    )
    caches = {
        KUSCIA_DEPLOYMENTS.resource.plural: _Cache(serving),
        DEPLOYMENTS.resource.plural: _Cache(deployment("s", 1, **known), deployment("s-two", 1, **known), deployment("x", 1)),
        DOMAINS.resource.plural: _Cache(
            Domain(metadata=ObjectMeta(name="own")),
            Domain(metadata=ObjectMeta(name="alice"), spec=DomainSpec(role="partner")),
        ),
        PARTNER_POLICIES.resource.plural: _Cache(
            PartnerPolicy(metadata=ObjectMeta(name="alice"), spec=PartnerPolicySpec(quota=PartnerQuota(pods=pods)))
        ),
    }  # fmt: skip
    seen = asyncio.Event()
    if ready:
        seen.set()
    informers: Any = SimpleNamespace(
        get=lambda kind, namespace="": SimpleNamespace(cache=caches[kind.resource.plural], ready=seen)
    )
    quotas = PartnerQuotas(informers)
    return PartnerScaleHook(informers, quotas), quotas


def request(wanted: int, name: str = "s", kind: str = "Deployment") -> ScaleRequest:
    return ScaleRequest("apps", kind, "own", name, 1, wanted)


def test_a_partner_gets_what_its_quota_has() -> None:
    at, quotas = hook("alice", pods=4)
    assert at.allow(request(3)) is None
    found = at.allow(request(6))
    assert isinstance(found, ScaleAllowance) and found.replicas == 3, "the other party has one of the four"
    assert "4 pods" in found.why
    refusal = quotas.claim("another", "alice", Usage(pods=1))
    assert refusal is not None, "what was allowed is taken"


def test_nothing_left_means_no_growth() -> None:
    at, quotas = hook("alice", pods=3)
    quotas.note("task", "alice", Usage(pods=1))
    found = at.allow(request(4))
    assert found is not None and found.replicas == 1 and found.why


@pytest.mark.parametrize(
    ("initiator", "asked"),
    [
        pytest.param("own", request(50), id="our-own-deployment"),
        pytest.param("alice", request(50, name="x"), id="no-kusciadeployment"),
        pytest.param("alice", request(50, kind="StatefulSet"), id="another-kind"),
    ],
)
def test_others_are_not_limited(initiator: str, asked: ScaleRequest) -> None:
    assert hook(initiator, pods=2)[0].allow(asked) is None


def test_nothing_grows_before_partners_are_known() -> None:
    found = hook("alice", pods=9, ready=False)[0].allow(request(3))
    assert found is not None and found.replicas == 1
