"""The rules of partner policies, one by one and combined."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from coterie.kube.api import quantity
from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api.partner_policy import (
    DEFAULT_QUOTA,
    OPEN_SPEC,
    PartnerRequest,
    Usage,
    Verdict,
    WorkloadRequest,
    admit,
    decide,
    is_open,
    over_quota,
    policy_faults,
    policy_of,
    quota_of,
    usage_of,
)
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.partner_policy import (
    DEPLOYMENT,
    JOB,
    REFUSE,
    PartnerPolicy,
    PartnerPolicySpec,
    PartnerQuota,
)

MONDAY_NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
OPEN = PartnerPolicySpec(app_images=("*",))


def amount(text: str) -> int:
    return quantity.parse(text).nanos


def work(**fields) -> WorkloadRequest:
    return WorkloadRequest(
        **{"name": "task psi", "app_image": "psi", "version": "1.0", "digest": "sha256:" + "ab" * 32, **fields}
    )


def asked(*works: WorkloadRequest, kind: str = JOB) -> PartnerRequest:
    return PartnerRequest("alice", kind, works or (work(),))


def policy(**fields) -> PartnerPolicySpec:
    return PartnerPolicySpec(**{"app_images": ("*",), **fields})


# setting, policy, outcome: the table in the module's docstring, all of it.
SETTINGS = [
    (None, None, Verdict.ASK),
    (None, OPEN, Verdict.ALLOW),
    (None, PartnerPolicySpec(), Verdict.ASK),
    (None, PartnerPolicySpec(outside=REFUSE), Verdict.REFUSE),
    (True, None, Verdict.ASK),
    (True, OPEN, Verdict.ASK),
    (True, PartnerPolicySpec(), Verdict.ASK),
    (True, PartnerPolicySpec(outside=REFUSE), Verdict.REFUSE),
    (False, None, Verdict.ALLOW),
    (False, OPEN, Verdict.ALLOW),
    (False, PartnerPolicySpec(), Verdict.ASK),
    (False, PartnerPolicySpec(outside=REFUSE), Verdict.REFUSE),
]


@pytest.mark.parametrize(("setting", "given", "verdict"), SETTINGS)
@pytest.mark.parametrize("kind", [JOB, DEPLOYMENT])
def test_settings_and_policies_combine(setting, given, verdict, kind):
    assert admit(setting, given, asked(kind=kind), MONDAY_NOON).verdict is verdict


# id, rules, request, rule that stands against it (empty: none), words of the reason
RULES = [
    ("any-image", {}, asked(), "", ""),
    ("image", {"app_images": ("psi",)}, asked(), "", ""),
    ("image-pattern", {"app_images": ("ps*",)}, asked(), "", ""),
    ("image-other", {"app_images": ("psi",)}, asked(work(app_image="scql")), "appImages", "alice may not begin `scql`"),
    ("image-one-of-two", {"app_images": ("psi",)}, asked(work(), work(app_image="scql")), "appImages", "`scql`"),
    ("image-none", {"app_images": None}, asked(), "appImages", "`psi`"),
    ("image-empty", {"app_images": ()}, asked(), "appImages", "`psi`"),
    ("version", {"app_images": ("psi:1.0",)}, asked(), "", ""),
    ("version-other", {"app_images": ("psi:1.1",)}, asked(), "appImages", "`psi:1.0@abababababab`"),
    ("digest", {"app_images": ("psi@sha256:" + "ab" * 32,)}, asked(), "", ""),
    ("digest-short", {"app_images": ("psi:1.0@abababababab",)}, asked(), "", ""),
    ("digest-too-short", {"app_images": ("psi@abab",)}, asked(), "appImages", "psi"),
    ("digest-empty", {"app_images": ("psi@",)}, asked(), "appImages", "psi"),
    ("digest-other", {"app_images": ("psi@cdcdcdcdcdcd",)}, asked(), "appImages", "psi"),
    ("digest-unknown", {"app_images": ("psi@abababababab",)}, asked(work(digest="")), "appImages", "`psi:1.0`"),
    ("kind", {"kinds": (JOB,)}, asked(), "", ""),
    ("kind-other", {"kinds": (JOB,)}, asked(kind=DEPLOYMENT), "kinds", "may not begin a deployment"),
    ("kind-none", {"kinds": ()}, asked(), "kinds", "job"),
    ("component", {"components": ("ml.*/x",)}, asked(work(components=("ml.a/x:1", "ml.a/x", "x"))), "", ""),
    ("component-other", {"components": ("psi",)}, asked(work(components=("ml/x",))), "components", "may not run `ml/x`"),
    ("component-unknown", {"components": ("psi",)}, asked(), "components", "an unknown component"),
    ("tables", {"tables": ("a", "b")}, asked(work(tables=("a",))), "", ""),
    ("tables-beyond", {"tables": ("a",)}, asked(work(tables=("a", "c"))), "tables", "may not use c"),
    ("tables-none", {"tables": ()}, asked(work(tables=("a",))), "tables", "may not use a"),
    ("tables-free", {}, asked(work(tables=("a",))), "", ""),
    ("cpu", {"cpu": "2"}, asked(work(usage=Usage(cpu=amount("2")))), "", ""),
    ("cpu-over", {"cpu": "2"}, asked(work(usage=Usage(cpu=amount("2001m")))), "cpu", "asks for 2001m CPUs, alice may have 2"),
    ("memory", {"memory": "1Gi"}, asked(work(usage=Usage(memory=amount("1Gi")))), "", ""),
    ("memory-over", {"memory": "1Gi"}, asked(work(usage=Usage(memory=amount("2Gi")))), "memory", "2Gi of memory"),
    ("bandwidth", {"bandwidth": 10}, asked(work(usage=Usage(bandwidth=amount("10")))), "", ""),
    ("bandwidth-over", {"bandwidth": 10}, asked(work(usage=Usage(bandwidth=amount("11")))), "bandwidth", "11 of bandwidth"),
    ("priority", {"priority": 5}, asked(work(priority=5)), "", ""),
    ("priority-over", {"priority": 5}, asked(work(priority=6)), "priority", "priority 6"),
    ("retries", {"retries": 2}, asked(work(retries=2)), "", ""),
    ("retries-over", {"retries": 2}, asked(work(retries=3)), "retries", "3 retries"),
    ("quota", {"quota": PartnerQuota(pods=2)}, asked(work(usage=Usage(pods=2))), "", ""),
    ("quota-over", {"quota": PartnerQuota(pods=2)}, asked(work(usage=Usage(pods=3))), "quota", "may have 2 pods"),
    ("hours", {"hours": ("Mon-Fri 08:00-18:00",)}, asked(), "", ""),
    ("hours-other-day", {"hours": ("Sat-Sun 08:00-18:00",)}, asked(), "hours", "Sat-Sun"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "request_", "rule", "words"), [row[1:] for row in RULES], ids=[row[0] for row in RULES]
)
@pytest.mark.parametrize("outside", ["Ask", REFUSE])
def test_rules(rules, request_, rule, words, outside):
    found = decide(policy(outside=outside, **rules), request_, MONDAY_NOON)
    if not rule:
        assert (found.verdict, found.reasons) == (Verdict.ALLOW, ())
        return
    assert found.verdict is (Verdict.REFUSE if outside == REFUSE else Verdict.ASK)
    assert [each.rule for each in found.reasons] == [rule]
    assert words in found.sentence


# hours, zone, time, whether it holds, seconds until it does
HOURS = [
    ("08:00-18:00", "", "2026-11-16T08:00", True, None),
    ("08:00-18:00", "", "2026-11-16T18:00", False, 14 * 3600),
    ("08:00-18:00", "", "2026-11-16T07:59", False, 60),
    ("22:00-06:00", "", "2026-11-16T23:30", True, None),
    ("22:00-06:00", "", "2026-11-16T05:59", True, None),
    ("22:00-06:00", "", "2026-11-16T06:00", False, 16 * 3600),
    ("Fri 22:00-06:00", "", "2026-11-21T05:00", True, None),
    ("Fri 22:00-06:00", "", "2026-11-20T05:00", False, 17 * 3600),
    ("Sat-Mon 00:00-24:00", "", "2026-11-16T23:59", True, None),
    ("Sat-Mon 00:00-24:00", "", "2026-11-17T00:00", False, 4 * 24 * 3600),
    ("08:00-18:00", "Europe/Berlin", "2026-11-16T07:00", True, None),
    ("08:00-18:00", "Europe/Berlin", "2026-11-16T17:00", False, 14 * 3600),
]


@pytest.mark.parametrize(("hours", "zone", "when", "holds", "after"), HOURS)
def test_hours(hours, zone, when, holds, after):
    now = datetime.fromisoformat(when).replace(tzinfo=UTC)
    found = decide(policy(hours=(hours,), time_zone=zone), asked(), now)
    assert (found.verdict is Verdict.ALLOW) is holds
    assert found.recheck_after == after


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hours": ("8-18",)}, "hours"),
        ({"hours": ("Foo 08:00-18:00",)}, "Foo"),
        ({"hours": ("25:00-26:00",)}, "clock"),
        ({"hours": ("08:60-09:00",)}, "clock"),
        ({"hours": ("08:00-08:00",)}, "lasts"),
        ({"time_zone": "Moon/Sea"}, "timeZone"),
        ({"time_zone": "../../etc/passwd"}, "timeZone"),
        ({"cpu": "many"}, "cpu"),
        ({"memory": "-1Gi"}, "memory"),
        ({"quota": PartnerQuota(disk="x")}, "quota.disk"),
    ],
)
def test_a_policy_that_cannot_be_applied_accepts_nothing(fields, words):
    given = policy(**fields)
    (fault,) = policy_faults(given)
    assert words in fault
    found = decide(given, asked(), MONDAY_NOON)
    assert (found.verdict, found.reasons[0].rule) == (Verdict.ASK, "spec")


def test_an_unnamed_outside_asks_and_garbage_does_not_allow():
    assert decide(PartnerPolicySpec(outside="whatever"), asked(), MONDAY_NOON).verdict is Verdict.ASK


def test_the_open_policy_is_open_and_nothing_narrower_is():
    domain = Domain(metadata=ObjectMeta(name="alice", uid="u1"))
    made = msgspec.convert(policy_of(domain, OPEN_SPEC), PartnerPolicy)
    assert [(each.kind, each.uid) for each in made.metadata.owner_references] == [("Domain", "u1")]
    assert is_open(made.spec)
    assert not is_open(policy(cpu="1"))
    assert not is_open(PartnerPolicySpec())


def test_what_a_quota_does_not_say_has_a_default():
    assert quota_of(None) == DEFAULT_QUOTA
    assert quota_of(policy()) == DEFAULT_QUOTA
    merged = quota_of(policy(quota=PartnerQuota(tasks=1)))
    assert (merged.tasks, merged.pods, merged.memory) == (1, DEFAULT_QUOTA.pods, DEFAULT_QUOTA.memory)


@pytest.mark.parametrize(
    ("used", "more", "words"),
    [
        (Usage(tasks=1), Usage(tasks=1), ""),
        (Usage(tasks=2), Usage(tasks=1), "2 tasks here at once, and this would make 3"),
        (Usage(pods=4), Usage(pods=1), "4 pods"),
        (Usage(cpu=amount("2")), Usage(cpu=amount("1")), "2 CPUs here at once, and this would make 3"),
        (
            Usage(memory=amount("1Gi")),
            Usage(memory=amount("1Gi")),
            "1Gi of memory here at once, and this would make 2Gi",
        ),
        (Usage(), Usage(disk=amount("2Gi")), "of disk"),
        # What is over already does not stop work that needs none of it.
        (Usage(cpu=amount("9")), Usage(tasks=1), ""),
    ],
)
def test_quota(used, more, words):
    found = over_quota(PartnerQuota(tasks=2, pods=4, cpu="2", memory="1Gi", disk="1Gi"), used, more, "alice")
    assert (words in found) if words else found == ""


def test_a_partner_has_no_gpus_unless_its_policy_gives_some():
    one = usage_of([{"resources": {"limits": {"nvidia.com/gpu": "1"}}}], 1)
    assert one.gpus == amount("1")
    assert "may have 0 GPUs here at once, and this would make 1" in over_quota(quota_of(None), Usage(), one, "alice")
    request = asked(work(usage=one))
    assert decide(policy(), request, MONDAY_NOON).verdict is Verdict.ASK
    assert decide(policy(outside=REFUSE), request, MONDAY_NOON).verdict is Verdict.REFUSE
    given = policy(gpus=1)
    assert decide(given, request, MONDAY_NOON).verdict is Verdict.ALLOW
    assert over_quota(quota_of(given), Usage(), one, "alice") == ""
    assert "1 GPUs here at once, and this would make 2" in over_quota(quota_of(given), one, one, "alice")
    assert over_quota(quota_of(policy(gpus=1, quota=PartnerQuota(gpus=2))), one, one, "alice") == ""
    two = asked(work(usage=one + one))
    assert "asks for 2 GPUs, alice may have 1" in decide(given, two, MONDAY_NOON).sentence


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.18gb", True),
        ("amd.com/gpu", True),
        ("nvidia.com/gpu.shared", False),
        ("example.com/gpu", False),
    ],
)
def test_which_resources_are_gpus(name, counted):
    assert (usage_of([{"resources": {"limits": {name: "2"}}}], 3).gpus == 6 * amount("1")) is counted


def test_usage_counts_the_greater_of_request_and_limit_of_each_container():
    containers = [
        {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "500m"}}},
        {"resources": {"limits": {"cpu": "2", "ephemeral-storage": "1Gi"}}},
        {},
    ]
    found = usage_of(containers, 3, tasks=1)
    assert found == Usage(1, 3, 3 * amount("3"), 3 * amount("1Gi"), 3 * amount("1Gi"))
