"""Whether an ActionGrant covers a call of a partner, and what the status of a grant says. Pure.

    PartnerCall (who, which action, how large) + grants + how often they were used ──decide──> the grant that covers it, or a refusal

A partner learns of its own grants and of nothing else: an action that is not there, one that was never granted to it and one that was granted to somebody
else get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from coterie.base.clock import parse_rfc3339
from coterie.kuscia.api import grants as data_grants
from coterie.kuscia.api.functions.partners import table_component
from coterie.kuscia.api.functions.types import ActionGrant
from coterie.kuscia.api.grants import DataUse
from coterie.kuscia.api.types.data import DomainData, DomainDataGrant

READY, EXPIRED, EXHAUSTED, UNAVAILABLE = "Ready", "Expired", "Exhausted", "Unavailable"
FORBIDDEN, NOT_FOUND, TOO_LARGE, TOO_MANY = 403, 404, 413, 429
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class PartnerCall:
    partner: str
    action: str
    size: int
    """Bytes of the body."""


@dataclass(frozen=True, slots=True)
class GrantUses:
    total: int = 0
    last_minute: int = 0
    oldest_of_minute: float = 0.0
    """Seconds until the oldest use of the last minute is no more in it."""


@dataclass(frozen=True, slots=True)
class CallRefusal:
    status: int
    sentence: str
    retry_after: float = 0.0
    """Seconds; 0: trying again does not help."""
    rule: str = ""
    """Of the grant, for the evidence log; empty: none of a grant."""


@dataclass(frozen=True, slots=True)
class CallDecision:
    grant: ActionGrant | None
    refusal: CallRefusal | None = None


UsesOf = Callable[[ActionGrant], GrantUses]
MissingTables = Callable[[ActionGrant], Sequence[str]]
"""Sentences about the tables of a grant that cannot be read; empty: all can."""


def decide(
    grants: Iterable[ActionGrant],
    call: PartnerCall,
    actions: Collection[str],
    uses: UsesOf,
    missing: MissingTables,
    now: datetime,
) -> CallDecision:
    """`actions`: those that are there."""
    refusals: list[CallRefusal] = []
    covering: list[ActionGrant] = []
    for grant in sorted(grants, key=lambda each: each.metadata.name):
        if grant.spec.grant_domain != call.partner or grant.spec.action != call.action or grant.metadata.deleting:
            continue
        refusal = refusal_of(grant, call, actions, uses(grant), missing, now)
        if refusal is None:
            covering.append(grant)
        else:
            refusals.append(refusal)
    if covering:
        # One without a count first: others are kept for calls that have nothing else.
        return CallDecision(min(covering, key=lambda each: (each.spec.limit.calls is not None, each.metadata.name)))
    if not refusals:
        return CallDecision(
            None, CallRefusal(FORBIDDEN, f'"{call.partner}" has no grant for this action', rule="grant")
        )
    # The one that ends by itself says most.
    return CallDecision(None, max(refusals, key=lambda each: (each.status == TOO_MANY, each.status)))


def refusal_of(
    grant: ActionGrant,
    call: PartnerCall,
    actions: Collection[str],
    used: GrantUses,
    missing: MissingTables,
    now: datetime,
) -> CallRefusal | None:
    limit = grant.spec.limit
    if is_expired(grant, now):
        return CallRefusal(FORBIDDEN, f"the grant ended at {limit.expiration_time}", rule="expired")
    if limit.calls is not None and used.total >= limit.calls:
        return CallRefusal(FORBIDDEN, f"the grant was for {limit.calls} calls, and all were used", rule="calls")
    if grant.spec.action not in actions:
        return CallRefusal(NOT_FOUND, "the action is not there now", rule="action")
    if missing(grant):
        return CallRefusal(
            FORBIDDEN, "a table that the action reads for this grant is not granted any more", rule="tables"
        )
    if call.size > grant.spec.max_body_bytes:
        return CallRefusal(
            TOO_LARGE, f"the body has {call.size} bytes, and the grant is for {grant.spec.max_body_bytes}", rule="size"
        )
    if limit.calls_per_minute is not None and used.last_minute >= limit.calls_per_minute:
        sentence = f"the grant is for {limit.calls_per_minute} calls a minute"
        return CallRefusal(TOO_MANY, sentence, max(used.oldest_of_minute, 0.001), rule="rate")
    return None


def is_expired(grant: ActionGrant, now: datetime) -> bool:
    ends = grant.spec.limit.expiration_time
    return bool(ends) and now >= parse_rfc3339(str(ends))


def largest_body(grants: Iterable[ActionGrant], partner: str) -> int:
    """What a call of the partner may have at most, whichever action it is for; -1: it has no grant."""
    return max((each.spec.max_body_bytes for each in grants if each.spec.grant_domain == partner), default=-1)


# Tables.


def missing_tables(
    grant: ActionGrant, datas: Collection[str], granted: Sequence[DomainDataGrant], owner: str, now: datetime
) -> tuple[str, ...]:
    """A sentence for each table that the action may not read for the partner. `datas`: the domain's own tables; `granted`: its DomainDataGrants."""
    found: list[str] = []
    for table in grant.spec.tables or ():
        if table not in datas:
            found.append(f'table "{table}" is not there')
            continue
        use = DataUse(table, grant.spec.grant_domain, components=(table_component(grant.spec.action),))
        decision = data_grants.decide(granted, use, owner, now)
        if decision.grant is None:
            found.append(
                f'table "{table}": no DomainDataGrant covers it for "{grant.spec.grant_domain}" ({decision.sentence})'
            )
    return tuple(found)


def own_tables(datas: Iterable[DomainData], owner: str) -> frozenset[str]:
    return frozenset(each.metadata.name for each in datas if each.spec.author == owner)


# Status.


@dataclass(frozen=True, slots=True)
class GrantPhase:
    phase: str
    message: str = ""


def phase_of(
    grant: ActionGrant, actions: Collection[str], total: int, missing: Sequence[str], now: datetime
) -> GrantPhase:
    limit = grant.spec.limit
    if is_expired(grant, now):
        return GrantPhase(EXPIRED, f"it ended at {limit.expiration_time}")
    if limit.calls is not None and total >= limit.calls:
        return GrantPhase(EXHAUSTED, f"all {limit.calls} calls were used")
    if grant.spec.action not in actions:
        return GrantPhase(UNAVAILABLE, f'there is no Action "{grant.spec.action}"')
    if missing:
        return GrantPhase(UNAVAILABLE, "; ".join(missing))
    return GrantPhase(READY)
