"""Claims of partners' work: shared by tasks and deployments, and by domains under one policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api.partner_policy import Usage
from coterie.kuscia.api.types.domain import DOMAINS, Domain, DomainSpec
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES, PartnerPolicy, PartnerPolicySpec, PartnerQuota
from coterie.kuscia.control.partner_quotas import PartnerQuotas


def quotas(policies: dict[str, PartnerQuota], partners: dict[str, str]) -> PartnerQuotas:
    """`partners`: their control planes."""
    domains = {
        name: Domain(metadata=ObjectMeta(name=name), spec=DomainSpec(role="partner", master=master))
        for name, master in partners.items()
    }
    domains["own"] = Domain(metadata=ObjectMeta(name="own"))
    made = {
        name: PartnerPolicy(metadata=ObjectMeta(name=name), spec=PartnerPolicySpec(quota=quota))
        for name, quota in policies.items()
    }
    caches: dict[str, dict[str, Any]] = {DOMAINS.resource.plural: domains, PARTNER_POLICIES.resource.plural: made}
    informers: Any = SimpleNamespace(get=lambda kind: SimpleNamespace(cache=caches[kind.resource.plural]))
    return PartnerQuotas(informers)


def test_the_last_place_is_taken_once_and_given_back() -> None:
    at = quotas({"alice": PartnerQuota(tasks=2)}, {"alice": ""})
    assert [at.claim(uid, "alice", Usage(tasks=1)) for uid in ("a", "b")] == [None, None]
    refusal = at.claim("c", "alice", Usage(tasks=1))
    assert refusal is not None and not refusal.lasting and "2 tasks" in refusal.sentence
    assert at.claim("a", "alice", Usage(tasks=1)) is None, "its own place is not counted twice"
    at.release("b")
    assert at.claim("c", "alice", Usage(tasks=1)) is None


def test_what_would_never_fit_is_refused_for_good() -> None:
    at = quotas({"alice": PartnerQuota(pods=1)}, {"alice": ""})
    refusal = at.claim("a", "alice", Usage(pods=2))
    assert refusal is not None and refusal.lasting and not at.knows("a")


def test_a_refused_change_keeps_the_former_place() -> None:
    at = quotas({"alice": PartnerQuota(pods=3)}, {"alice": ""})
    assert at.claim("d", "alice", Usage(pods=1)) is None
    assert at.claim("t", "alice", Usage(pods=2)) is None
    assert at.claim("d", "alice", Usage(pods=2)) is not None
    at.release("t")
    assert at.claim("d", "alice", Usage(pods=2)) is None


def test_what_runs_already_counts_whatever_the_quota_says() -> None:
    at = quotas({"alice": PartnerQuota(tasks=1)}, {"alice": ""})
    at.note("a", "alice", Usage(tasks=1))
    at.note("b", "alice", Usage(tasks=1))
    assert at.claim("c", "alice", Usage(tasks=1)) is not None


def test_domains_of_one_control_plane_share_its_policy_and_others_do_not() -> None:
    at = quotas({"hq": PartnerQuota(tasks=1)}, {"lite1": "hq", "lite2": "hq", "hq": "", "carol": ""})
    assert at.claim("a", "lite1", Usage(tasks=1)) is None
    assert at.claim("b", "lite2", Usage(tasks=1)) is not None
    assert at.claim("c", "carol", Usage(tasks=1)) is None
    assert (at.is_partner("lite1"), at.is_partner("own"), at.is_partner("unknown")) == (True, False, True)


def test_a_runtime_class_is_demanded_of_partners_only() -> None:
    at = quotas({}, {"lite1": "hq", "hq": "", "carol": ""})
    at.policies.cache["hq"] = PartnerPolicy(  # type: ignore[index]
        metadata=ObjectMeta(name="hq"), spec=PartnerPolicySpec(runtime_class="gvisor")
    )
    assert [at.runtime_class_of(name) for name in ("lite1", "hq", "carol", "own")] == ["gvisor", "gvisor", "", ""]
