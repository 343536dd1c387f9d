"""How a host and a member agree on a reservation that each keeps as an object of its own. The steps are pure.

The member's TaskResource is the real one: its scheduler reserves by it. The host's stands for it where the parties are
counted. Between them lies one entry in the task's summary, with the phase and the versions of both objects when they
last spoke.

    who looks   own          entry        does
    ----------  -----------  -----------  ---------------------------------------------------------------------
    host        Reserving    Reserved     own becomes Reserved
                Reserving,   Failed       own becomes Failed, if the entry answers what we last said; otherwise it
                Reserved,                 is old news, and we say again what is true
                Schedulable
                Schedulable  others       says Schedulable
                Reserving    Failed, ...  says Reserving: a new attempt
    member      Reserved     Reserving,   says Reserved; first of all only to a host that is known to take it
                             none
                Failed       Reserving    says Failed; when it has said so already, the host asks for a new attempt:
                                          own becomes Reserving
                any open     Schedulable  own becomes Schedulable
                Failed       Reserved,    says Failed: we let go, be it in the last moment
                             Schedulable
                any open     Failed       own becomes Failed (Kuscia's hosts say so; ours wait until we let go)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from coterie.kube.client.client import Client
from coterie.kuscia.api.types.job import ReservationOfParty
from coterie.kuscia.api.types.task_resource import ReservationPhase, TaskResource
from coterie.kuscia.control.task_resources import move_reservation

_OPEN = (ReservationPhase.PENDING, ReservationPhase.RESERVING, ReservationPhase.RESERVED)
_HOST_SAYS = (ReservationPhase.RESERVING, ReservationPhase.SCHEDULABLE)


@dataclass(frozen=True, slots=True)
class ReservationStep:
    """What one side does next; both empty when they agree."""

    own: ReservationPhase | None = None
    """The phase that our own object gets."""
    entry: ReservationOfParty | None = None
    """What the summary says from now on."""


def host_step(own: TaskResource, entry: ReservationOfParty | None, now: str) -> ReservationStep:
    version = own.metadata.resource_version
    phase = ReservationPhase(own.status.phase or ReservationPhase.RESERVING)
    if entry is None or entry.host_task_resource_name not in ("", own.metadata.name):
        # There is none yet, or it is of an earlier group of the same task.
        return ReservationStep(entry=_host_entry(ReservationOfParty(role=own.spec.role), own, phase, now))
    answered = entry.host_task_resource_version == version
    if phase in (ReservationPhase.PENDING, ReservationPhase.RESERVING) and entry.phase == ReservationPhase.RESERVED:
        return ReservationStep(own=ReservationPhase.RESERVED)
    if entry.phase == ReservationPhase.FAILED and phase is not ReservationPhase.FAILED:
        known = answered or phase is ReservationPhase.RESERVED
        if known:
            return ReservationStep(own=ReservationPhase.FAILED)
    if phase in _HOST_SAYS and entry.phase != phase and not answered:
        return ReservationStep(entry=_host_entry(entry, own, phase, now))
    return ReservationStep()


def _host_entry(entry: ReservationOfParty, own: TaskResource, phase: ReservationPhase, now: str) -> ReservationOfParty:
    return replace(
        entry,
        phase=str(phase),
        host_task_resource_name=own.metadata.name,
        host_task_resource_version=own.metadata.resource_version,
        last_transition_time=now,
    )


def member_step(
    own: TaskResource, entry: ReservationOfParty | None, now: str, *, first: bool = False
) -> ReservationStep:
    """`first`: the host takes our word also before it has begun to count, so that it need not write that it has."""
    version = own.metadata.resource_version
    phase = ReservationPhase(own.status.phase or ReservationPhase.RESERVING)
    if entry is None:
        if not first or phase is not ReservationPhase.RESERVED:
            return ReservationStep()
        entry = ReservationOfParty(role=own.spec.role, phase=str(ReservationPhase.RESERVING))
    is_reported = entry.member_task_resource_version == version
    updated = replace(
        entry,
        phase=str(phase),
        member_task_resource_name=own.metadata.name,
        member_task_resource_version=version,
        last_transition_time=now,
    )
    if entry.phase == ReservationPhase.RESERVING:
        if phase is ReservationPhase.RESERVED:
            return ReservationStep(entry=updated)
        if phase is ReservationPhase.FAILED:
            return ReservationStep(own=ReservationPhase.RESERVING) if is_reported else ReservationStep(entry=updated)
    elif entry.phase == ReservationPhase.SCHEDULABLE and phase in _OPEN:
        return ReservationStep(own=ReservationPhase.SCHEDULABLE)
    elif entry.phase in (ReservationPhase.SCHEDULABLE, ReservationPhase.RESERVED) and phase is ReservationPhase.FAILED:
        return ReservationStep(entry=updated)
    elif entry.phase == ReservationPhase.FAILED and phase in _OPEN and not is_reported:
        return ReservationStep(own=ReservationPhase.FAILED)
    return ReservationStep()


def only_begins(
    before: Mapping[str, tuple[ReservationOfParty, ...]] | None,
    after: Mapping[str, tuple[ReservationOfParty, ...]] | None,
) -> bool:
    """Whether the host says nothing but that it counts from now on."""
    old = {(domain, each.role): each for domain, parties in (before or {}).items() for each in parties}
    new = {(domain, each.role): each for domain, parties in (after or {}).items() for each in parties}
    return (
        all(
            each == old.get(key) or (key not in old and each.phase == ReservationPhase.RESERVING)
            for key, each in new.items()
        )
        and old.keys() <= new.keys()
    )


async def exchange(
    client: Client,
    owned: Iterable[TaskResource],
    reported: Mapping[str, tuple[ReservationOfParty, ...]] | None,
    step: Callable[[TaskResource, ReservationOfParty | None, str], ReservationStep],
    why: Callable[[str], str],
    now: str,
) -> dict[str, tuple[ReservationOfParty, ...]] | None:
    """Moves the reservations that one side keeps by what is told of them; answers what is told from now on.

    `why`: the reason of a move, by domain."""
    out = dict(reported or {})
    for own in owned:
        domain, role = own.metadata.namespace, own.spec.role
        entries = out.get(domain, ())
        next_step = step(own, next((each for each in entries if each.role == role), None), now)
        if next_step.own is not None:
            await move_reservation(client, own, next_step.own, why(domain), now)
        if next_step.entry is not None:
            out[domain] = (*(each for each in entries if each.role != role), next_step.entry)
    return out or None
