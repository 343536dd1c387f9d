"""Members of a control plane in `coterie status`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from coterie.base.clock import rfc3339_micro
from coterie.cli.members import states
from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.coordination import Lease, LeaseSpec

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def lease(name: str, age: float, holder: str = "", address: str = "10.0.0.1:6443") -> Lease:
    notes = {"coterie.io/address": address, "coterie.io/version": "1.2", "coterie.io/store": "postgresql://db/x"}
    spec = LeaseSpec(
        holder_identity=holder, lease_duration_seconds=10, renew_time=rfc3339_micro(NOW - timedelta(seconds=age))
    )
    return Lease(metadata=ObjectMeta(name=name, annotations=notes), spec=spec)


def test_who_lives_and_who_leads():
    found = states([lease("apiserver-b", 90), lease("apiserver-a_x", 1)], lease("l", 2, "a_x_0123"), NOW)
    assert [each.row for each in found] == [
        ("a_x", "10.0.0.1:6443", "1.2", "Alive", "leader"),
        ("b", "10.0.0.1:6443", "1.2", "Silent for 90 s", ""),
    ]
    assert found[0].document()["leader"] and not found[1].document()["alive"]


def test_a_leader_that_is_silent_does_not_lead():
    (found,) = states([lease("apiserver-a", 1)], lease("l", 60, "a_0123"), NOW)
    assert not found.leads
    assert not states([lease("apiserver-a", 1)], lease("l", 1, ""), NOW)[0].leads
    assert not states([lease("apiserver-a", 1)], None, NOW)[0].leads
