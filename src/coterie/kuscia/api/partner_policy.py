"""Whether what a partner wants to begin here is approved automatically, waits for a person, or is refused. Pure.

    PartnerPolicy (or none) + Request + time  ──decide──>  Allow    every rule holds
                                                           Ask      a rule does not; or there is no policy
                                                           Refuse   a rule does not, and `outside: Refuse`

`admit` combines that with `enableWorkloadApprove`:

    setting   no policy   inside    outside
    unset     Ask         Allow     as the policy says
    true      Ask         Ask       as the policy says
    false     Allow       Allow     as the policy says       (Kuscia's behaviour for partners without a policy)

The quota holds for all work that a partner began, however it was approved, and is looked at when a task or deployment
starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from coterie.base.lazy_import import lazy_import
from coterie.base.redaction import pattern_fault
from coterie.kube.api import quantity
from coterie.kube.api.quantity import BINARY_SI, NANO, Quantity, QuantityError
from coterie.kube.api.types.pods import QuantityText
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.partner_policy import ANY, REFUSE, PartnerPolicySpec, PartnerQuota

if TYPE_CHECKING:
    import zoneinfo
else:
    # It brings the whole configuration that Python was built with.
    zoneinfo = lazy_import("zoneinfo")

CPU, MEMORY, DISK, BANDWIDTH = "cpu", "memory", "ephemeral-storage", labels.KUSCIA_BANDWIDTH
COUNTED_RESOURCES = (CPU, MEMORY, DISK, BANDWIDTH)
DEFAULT_QUOTA = PartnerQuota(tasks=32, pods=128, cpu="32", memory="128Gi", disk="256Gi", gpus=0)
"""For partners whose policy says nothing else, and for those without a policy. GPUs are few and belong to one pod at a time: a
partner has none unless its policy says so."""
_GPU = re.compile(r"nvidia\.com/(?:gpu|mig-[a-z0-9.]{1,40})|amd\.com/gpu")
NO_POLICY = "no-policy"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_HOURS = re.compile(r"(?:(\w{3})(?:-(\w{3}))? )?(\d\d):(\d\d)-(\d\d):(\d\d)")
_MINUTES_OF_DAY = 24 * 60


class Verdict(StrEnum):
    ALLOW = "Allow"
    ASK = "Ask"
    REFUSE = "Refuse"


@dataclass(frozen=True, slots=True)
class Usage:
    """What work has, or asks for. Amounts are in nano-units, as in `Quantity`."""

    tasks: int = 0
    pods: int = 0
    cpu: int = 0
    memory: int = 0
    disk: int = 0
    bandwidth: int = 0
    gpus: int = 0
    """GPUs and partitions of GPUs of all kinds together."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.tasks + other.tasks,
            self.pods + other.pods,
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.disk + other.disk,
            self.bandwidth + other.bandwidth,
            self.gpus + other.gpus,
        )


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One task of a job, or one party of a deployment, as it would run at one of our domains."""

    name: str
    app_image: str
    version: str = ""
    """Of our AppImage, as is its digest; the partner names the AppImage only."""
    digest: str = ""
    engine: str = ""
    """That our AppImage is a version of, and which; empty: it does not say."""
    engine_version: str = ""
    components: tuple[str, ...] = ()
    """Names under which the component is known, the fullest first."""
    tables: tuple[str, ...] = ()
    """Tables of ours that the input names."""
    usage: Usage = Usage()
    priority: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class PartnerRequest:
    partner: str
    """The domain that began it."""
    kind: str
    """JOB or DEPLOYMENT."""
    workloads: tuple[WorkloadRequest, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    rule: str
    """The field of the policy that stands against it."""
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    recheck_after: float | None = None
    """Seconds after which the time of day may change the decision."""

    @property
    def sentence(self) -> str:
        return "; ".join(str(each) for each in self.reasons)


ALLOWED = AdmissionDecision(Verdict.ALLOW)


# The decision.


def admit(
    requires_approval: bool | None, policy: PartnerPolicySpec | None, request: PartnerRequest, now: datetime
) -> AdmissionDecision:
    """`requires_approval`: `enableWorkloadApprove`; None when the configuration does not say it."""
    found = decide(policy, request, now)
    if found.verdict is Verdict.REFUSE:
        return found
    if requires_approval:
        every = Reason(
            "enableWorkloadApprove", "enableWorkloadApprove: everything that partners begin waits for approval"
        )
        return AdmissionDecision(Verdict.ASK, (every, *found.reasons))
    if requires_approval is False and policy is None:
        return ALLOWED
    return found


def decide(policy: PartnerPolicySpec | None, request: PartnerRequest, now: datetime) -> AdmissionDecision:
    partner = request.partner
    if policy is None:
        return AdmissionDecision(Verdict.ASK, (Reason(NO_POLICY, f"there is no policy for {partner}"),))
    if faults := policy_faults(policy):
        sentence = f"the policy of {partner} cannot be applied: {'; '.join(faults)}"
        return AdmissionDecision(_outside(policy), (Reason("spec", sentence),))
    reasons = list(_against(policy, request))
    after = None
    windows = [_window(each) for each in policy.hours or ()]
    zone = zoneinfo.ZoneInfo(policy.time_zone or "UTC")
    if windows and not any(window.holds(now.astimezone(zone)) for window in windows):
        hours = ", ".join(policy.hours or ())
        reasons.append(Reason("hours", f"{partner} may begin work at {hours} {policy.time_zone or 'UTC'} only"))
        after = min(window.seconds_until(now.astimezone(zone)) for window in windows)
    if not reasons:
        return ALLOWED
    return AdmissionDecision(_outside(policy), tuple(dict.fromkeys(reasons)), after)


def _outside(policy: PartnerPolicySpec) -> Verdict:
    return Verdict.REFUSE if policy.outside == REFUSE else Verdict.ASK


def _against(policy: PartnerPolicySpec, request: PartnerRequest) -> Iterator[Reason]:
    partner = request.partner
    if policy.kinds is not None and request.kind not in policy.kinds:
        yield Reason("kinds", f"{partner} may not begin a {request.kind.lower()}")
    for work in request.workloads:
        if not any(image_matches(each, work) for each in policy.app_images or ()):
            yield Reason("appImages", f"{partner} may not begin `{_image(policy, work)}`")
        if policy.components is not None and not _component_allowed(policy.components, work.components):
            asked = f"`{work.components[0]}`" if work.components else "an unknown component"
            yield Reason("components", f"{work.name}: {partner} may not run {asked}")
        beyond = [each for each in work.tables if policy.tables is not None and each not in policy.tables]
        if beyond:
            yield Reason("tables", f"{work.name}: {partner} may not use {', '.join(beyond)}")
        yield from _too_much(policy, request.partner, work)
    quota = quota_of(policy)
    for work in request.workloads:
        if sentence := over_quota(quota, Usage(), work.usage, partner):
            yield Reason("quota", f"{work.name}: {sentence}")


def _too_much(policy: PartnerPolicySpec, partner: str, work: WorkloadRequest) -> Iterator[Reason]:
    use = work.usage
    limits: list[tuple[str, str, int, int | None, str]] = [
        ("cpu", "CPUs", use.cpu, nanos(policy.cpu), "DecimalSI"),
        ("memory", "of memory", use.memory, nanos(policy.memory), BINARY_SI),
        ("bandwidth", "of bandwidth", use.bandwidth, _times(policy.bandwidth), "DecimalSI"),
        ("gpus", "GPUs", use.gpus, _times(policy.gpus), "DecimalSI"),
    ]
    for rule, unit, asked, most, form in limits:
        if most is not None and asked > most:
            words = f"asks for {Quantity(asked, form)} {unit}, {partner} may have {Quantity(most, form)}"
            yield Reason(rule, f"{work.name}: {words}")
    if policy.priority is not None and work.priority > policy.priority:
        words = f"asks for priority {work.priority}, {partner} may have {policy.priority}"
        yield Reason("priority", f"{work.name}: {words}")
    if policy.retries is not None and work.retries > policy.retries:
        words = f"asks for {work.retries} retries, {partner} may have {policy.retries}"
        yield Reason("retries", f"{work.name}: {words}")


def image_matches(entry: str, work: WorkloadRequest) -> bool:
    """`NAME[:VERSION][@ID]`; an id may leave out `sha256:` and may be the start of one (12 characters at least)."""
    rest, _, digest = entry.partition("@")
    name, _, version = rest.partition(":")
    if not _named(work, name) or (version and version not in (work.version, work.engine_version)):
        return False
    if not digest:
        return "@" not in entry
    wanted, known = digest.removeprefix("sha256:"), work.digest.removeprefix("sha256:")
    return len(wanted) >= 12 and known.startswith(wanted)


def _named(work: WorkloadRequest, pattern: str) -> bool:
    """By the AppImage, or by the engine that it is a version of."""
    return any(fnmatchcase(name, pattern) for name in (work.app_image, work.engine) if name)


def _image(policy: PartnerPolicySpec, work: WorkloadRequest) -> str:
    """By name, and by version and id where the policy lists the name and they do not fit."""
    named = any(_named(work, re.split("[:@]", each, maxsplit=1)[0]) for each in policy.app_images or ())
    if not named:
        return work.app_image
    digest = work.digest.removeprefix("sha256:")[:12]
    return f"{work.app_image}:{work.version}" + (f"@{digest}" if digest else "")


def _component_allowed(patterns: Sequence[str], names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


# Quota.


def quota_of(policy: PartnerPolicySpec | None) -> PartnerQuota:
    """With the defaults."""
    given = (policy.quota if policy is not None else None) or PartnerQuota()
    fields = ("tasks", "pods", "cpu", "memory", "disk", "gpus")
    chosen = {name: getattr(given, name) for name in fields}
    if chosen["gpus"] is None and policy is not None:
        chosen["gpus"] = policy.gpus  # what one task may have is no less than what there may be at once
    return PartnerQuota(
        **{name: value if value is not None else getattr(DEFAULT_QUOTA, name) for name, value in chosen.items()}
    )


def over_quota(quota: PartnerQuota, used: Usage, more: Usage, partner: str) -> str:
    """A sentence about the first limit that `more` would break; empty when there is room."""
    total = used + more
    counts = [("tasks", total.tasks, more.tasks, quota.tasks), ("pods", total.pods, more.pods, quota.pods)]
    for unit, have, added, most in counts:
        if most is not None and added and have > most:
            return f"{partner} may have {most} {unit} here at once, and this would make {have}"
    amounts = [
        ("CPUs", total.cpu, more.cpu, nanos(quota.cpu), "DecimalSI"),
        ("of memory", total.memory, more.memory, nanos(quota.memory), BINARY_SI),
        ("of disk", total.disk, more.disk, nanos(quota.disk), BINARY_SI),
        ("GPUs", total.gpus, more.gpus, _times(quota.gpus), "DecimalSI"),
    ]
    for unit, have, added, limit, form in amounts:
        if limit is not None and added and have > limit:
            limit_text, have_text = Quantity(limit, form), Quantity(have, form)
            return f"{partner} may have {limit_text} {unit} here at once, and this would make {have_text}"
    return ""


def usage_of(containers: Iterable[Mapping[str, Any]], replicas: int, *, tasks: int = 0) -> Usage:
    """What containers ask for, the greater of request and limit, as many times as there are pods."""
    each = [container_amounts(container.get("resources") or {}) for container in containers]
    names = {name for amounts in each for name in amounts}
    sums = {name: replicas * sum(amounts.get(name, 0) for amounts in each) for name in names}
    return usage_from(sums, replicas, tasks=tasks)


def usage_from(amounts: Mapping[str, int], pods: int, *, tasks: int = 0) -> Usage:
    return Usage(
        tasks,
        pods,
        amounts.get(CPU, 0),
        amounts.get(MEMORY, 0),
        amounts.get(DISK, 0),
        amounts.get(BANDWIDTH, 0),
        sum(amount for name, amount in amounts.items() if is_gpu(name)),
    )


def container_amounts(resources: Mapping[str, Any]) -> dict[str, int]:
    """By resource, in nano-units."""
    kinds = [resources.get(kind) or {} for kind in ("requests", "limits")]
    return {
        name: max((nanos(amounts[name]) or 0) for amounts in kinds if name in amounts) for name in counted_names(*kinds)
    }


def counted_names(*amounts: Mapping[str, Any]) -> list[str]:
    """The resources of these that are counted, in a fixed order."""
    given = {name for each in amounts for name in each}
    return [*(name for name in COUNTED_RESOURCES if name in given), *sorted(name for name in given if is_gpu(name))]


def is_gpu(resource: str) -> bool:
    return _GPU.fullmatch(resource) is not None


def nanos(text: QuantityText | None) -> int | None:
    """QuantityError for what is no quantity."""
    return quantity.parse(text).nanos if text is not None else None


def _times(number: int | None) -> int | None:
    return number * NANO if number is not None else None


# Hours.


@dataclass(frozen=True, slots=True)
class _Window:
    days: frozenset[int]
    start: int
    """Minutes of the day."""
    length: int

    def holds(self, now: datetime) -> bool:
        minute = now.hour * 60 + now.minute
        today, yesterday = now.weekday(), (now.weekday() - 1) % 7
        if today in self.days and self.start <= minute < self.start + self.length:
            return True
        return yesterday in self.days and minute + _MINUTES_OF_DAY < self.start + self.length

    def seconds_until(self, now: datetime) -> float:
        """Until it begins next."""
        for ahead in range(8):
            day = now.date() + timedelta(days=ahead)
            begins = datetime.combine(day, time(self.start // 60, self.start % 60), now.tzinfo)
            if day.weekday() in self.days and begins > now:
                return (begins - now).total_seconds()
        return 7.0 * 24 * 3600


def _window(text: str) -> _Window:
    """ValueError, with a sentence, when nobody can tell when that is."""
    found = _HOURS.fullmatch(text)
    if found is None:
        raise ValueError(f'"{text}" must be like 08:00-18:00 or Mon-Fri 08:00-18:00')
    first, last = found[1], found[2]
    for day in (first, last):
        if day is not None and day not in _DAYS:
            raise ValueError(f'"{day}" is none of {", ".join(_DAYS)}')
    begin = _DAYS.index(first) if first else 0
    end = _DAYS.index(last) if last else begin if first else 6
    start, stop = (int(found[at]) * 60 + int(found[at + 1]) for at in (3, 5))
    wrong = int(found[4]) > 59 or int(found[6]) > 59 or start >= _MINUTES_OF_DAY or stop > _MINUTES_OF_DAY
    if wrong or start == stop:
        raise ValueError(f'"{text}" has a time that no clock shows, or lasts no time')
    days = frozenset((begin + each) % 7 for each in range((end - begin) % 7 + 1))
    return _Window(days, start, (stop - start) % _MINUTES_OF_DAY or _MINUTES_OF_DAY)


# What is wrong with a policy.


def policy_faults(policy: PartnerPolicySpec) -> tuple[str, ...]:
    return tuple(_faults(policy))


def _faults(policy: PartnerPolicySpec) -> Iterator[str]:
    quota = policy.quota or PartnerQuota()
    amounts = {
        "cpu": policy.cpu,
        "memory": policy.memory,
        **{f"quota.{name}": getattr(quota, name) for name in ("cpu", "memory", "disk")},
    }
    for field, text in amounts.items():
        try:
            if (nanos(text) or 0) < 0:
                yield f"{field}: {text} is less than nothing"
        except QuantityError:
            yield f"{field}: {text!r} is no quantity, such as 2, 500m or 4Gi"
    for pattern in (policy.logs.redact if policy.logs is not None else None) or ():
        if fault := pattern_fault(pattern):
            yield f"logs.redact: {fault}"
    for text in policy.hours or ():
        try:
            _window(text)
        except ValueError as problem:
            yield f"hours: {problem}"
    try:
        zoneinfo.ZoneInfo(policy.time_zone or "UTC")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        yield f"timeZone: {policy.time_zone!r} is not known here; take one such as Europe/Berlin"


OPEN_SPEC: Final[dict[str, Any]] = {"appImages": [ANY]}
"""Approves everything, as far as the default quota goes."""


def policy_of(domain: Domain, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A PartnerPolicy that goes with the partner's Domain: who takes its name later begins without one."""
    resource, meta = DOMAINS.resource, domain.metadata
    owner = {"apiVersion": resource.api_version, "kind": resource.kind, "name": meta.name, "uid": meta.uid}
    return {"metadata": {"name": meta.name, "ownerReferences": [owner]}, "spec": dict(spec)}


def is_open(policy: PartnerPolicySpec) -> bool:
    """Everything is approved, as far as the quota goes."""
    limits = (policy.kinds, policy.components, policy.tables, policy.cpu, policy.memory, policy.bandwidth, policy.gpus)
    return ANY in (policy.app_images or ()) and not any(
        each is not None for each in (*limits, policy.priority, policy.retries, policy.hours)
    )
