"""NetworkPolicies as they are enforced. Selectors and peers stay plain data: they are compiled once per version."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind, builtin


class NetworkPolicySpec(Model, frozen=True, kw_only=True):
    pod_selector: dict[str, Any] | None = None
    ingress: tuple[dict[str, Any], ...] | None = None
    egress: tuple[dict[str, Any], ...] | None = None
    policy_types: tuple[str, ...] | None = None


class NetworkPolicy(ApiObject, frozen=True, kw_only=True):
    spec: NetworkPolicySpec = NetworkPolicySpec()


NETWORK_POLICIES = Kind(builtin("networkpolicies", "networking.k8s.io"), NetworkPolicy)
