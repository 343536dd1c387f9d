"""One row for each line of the two tables."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api.types.job import ReservationOfParty
from coterie.kuscia.api.types.task_resource import TaskResource, TaskResourceStatus
from coterie.kuscia.interconn.reservations import host_step, member_step

NOW = "2026-01-01T00:00:00Z"


def own(phase: str, version: str = "7") -> TaskResource:
    meta = ObjectMeta(name="r", namespace="bob", resource_version=version)
    return TaskResource(metadata=meta, status=TaskResourceStatus(phase=phase))


def entry(phase: str, host: str = "", member: str = "") -> ReservationOfParty:
    return ReservationOfParty(phase=phase, host_task_resource_version=host, member_task_resource_version=member)


HOST = [
    # own phase, entry, our phase afterwards, what the entry says afterwards
    ("Reserving", None, None, "Reserving"),
    ("Reserving", entry("Reserving", host="7"), None, None),
    ("Reserving", entry("Reserved", host="7"), "Reserved", None),
    ("Reserving", entry("Failed", host="7"), "Failed", None),
    ("Reserving", entry("Failed", host="5"), None, "Reserving"),
    ("Reserved", entry("Reserved", host="5"), None, None),
    ("Reserved", entry("Failed", host="5"), "Failed", None),
    ("Schedulable", entry("Reserved", host="5"), None, "Schedulable"),
    ("Schedulable", entry("Schedulable", host="7"), None, None),
    ("Schedulable", entry("Failed", host="5"), None, "Schedulable"),
    ("Schedulable", entry("Failed", host="7"), "Failed", None),
    ("Failed", entry("Reserved", host="5"), None, None),
    ("Failed", entry("Failed", host="5"), None, None),
]
MEMBER = [
    ("Reserving", None, None, None),
    ("Reserving", entry("Reserving"), None, None),
    ("Reserved", entry("Reserving"), None, "Reserved"),
    ("Reserved", entry("Reserved", member="7"), None, None),
    ("Failed", entry("Reserving", member="5"), None, "Failed"),
    ("Failed", entry("Reserving", member="7"), "Reserving", None),
    ("Failed", entry("Reserved", member="5"), None, "Failed"),
    ("Failed", entry("Schedulable", member="5"), None, "Failed"),
    ("Reserved", entry("Schedulable"), "Schedulable", None),
    ("Reserving", entry("Schedulable"), "Schedulable", None),
    ("Schedulable", entry("Schedulable"), None, None),
    ("Reserved", entry("Failed", member="5"), "Failed", None),
    ("Failed", entry("Failed", member="7"), None, None),
]


def row(value: object) -> str:
    return f"{value.phase}@{value.host_task_resource_version}{value.member_task_resource_version}" if isinstance(value, ReservationOfParty) else str(value)  # fmt: skip


@pytest.mark.parametrize(("phase", "there", "moved", "said"), HOST, ids=row)
def test_what_the_host_does(phase: str, there: ReservationOfParty | None, moved: str | None, said: str | None) -> None:
    step = host_step(own(phase), there, NOW)
    assert step.own == moved and (step.entry.phase if step.entry else None) == said


@pytest.mark.parametrize(("phase", "there", "moved", "said"), MEMBER, ids=row)
def test_what_the_member_does(
    phase: str, there: ReservationOfParty | None, moved: str | None, said: str | None
) -> None:
    step = member_step(own(phase), there, NOW)
    assert step.own == moved and (step.entry.phase if step.entry else None) == said


def test_a_member_begins_only_with_a_reservation_and_a_host_takes_it() -> None:
    assert member_step(own("Reserving"), None, NOW, first=True).entry is None
    assert member_step(own("Failed"), None, NOW, first=True).entry is None
    said = member_step(own("Reserved"), None, NOW, first=True).entry
    assert said is not None and said.phase == "Reserved"
    assert host_step(own("Reserving"), said, NOW).own == "Reserved"
    told = host_step(own("Schedulable"), said, NOW).entry
    assert told is not None and told.host_task_resource_name == own("Schedulable").metadata.name


class Side:
    def __init__(self, phase: str) -> None:
        self.phase, self.version = phase, 1

    def move(self, phase: str) -> None:
        if phase != self.phase:
            self.phase, self.version = phase, self.version + 1

    @property
    def resource(self) -> TaskResource:
        return own(self.phase, str(self.version))


@pytest.mark.parametrize("first", [False, True], ids=["host-begins", "member-may-begin"])
@pytest.mark.parametrize("seed", range(40))
def test_in_whatever_order_they_look_both_end_alike(seed: int, first: bool) -> None:
    """The member's scheduler reserves and lets go at random; the host lets it go ahead, or asks again, at random."""
    random = Random(seed)
    host, member, said = Side("Reserving"), Side("Reserving"), None
    for _ in range(200):
        match random.randrange(6):
            case 0:
                step = host_step(host.resource, said, NOW)
                said = step.entry or said
                host.move(step.own or host.phase)
            case 1:
                step = member_step(member.resource, said, NOW, first=first)
                said = step.entry or said
                member.move(step.own or member.phase)
            case 2 if member.phase == "Reserving":
                member.move("Reserved")
            case 3 if member.phase == "Reserved":
                member.move("Failed")
            case 4 if host.phase == "Reserved":
                host.move("Schedulable")
            case 5 if host.phase == "Failed":
                host.move("Reserving")
    for _ in range(20):  # nobody lets go any more, and the host goes on asking
        step = host_step(host.resource, said, NOW)
        said, _ = step.entry or said, host.move(step.own or host.phase)
        host.move({"Reserved": "Schedulable", "Failed": "Reserving"}.get(host.phase, host.phase))
        if member.phase == "Reserving":
            member.move("Reserved")
        step = member_step(member.resource, said, NOW, first=first)
        said, _ = step.entry or said, member.move(step.own or member.phase)
    assert (host.phase, member.phase) == ("Schedulable", "Schedulable")
    assert said is not None and replace(said, phase="") != said
