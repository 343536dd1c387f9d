"""Leases: who holds what, and until when."""

from __future__ import annotations

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind, builtin


class LeaseSpec(Model, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(ApiObject, frozen=True, kw_only=True):
    spec: LeaseSpec = LeaseSpec()


LEASES = Kind(builtin("leases", "coordination.k8s.io"), Lease)
