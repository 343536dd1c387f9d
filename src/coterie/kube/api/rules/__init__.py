"""The rules of every built-in kind: `RULES[(group, kind)]`.

Objects are taken in their stored version (`Resource.storage`); events are stored in the core form, so the entry of
`events.k8s.io` reads core events, too, and only demands more of them. `base.py` says in which order the server asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.rules import (
    apps,
    autoscaling,
    batch,
    cluster,
    config,
    crd,
    endpoints,
    events,
    networking,
    pods,
    policy,
    rbac,
    reviews,
    services,
    storage,
    webhooks,
)
from coterie.kube.api.rules.base import KindRules

if TYPE_CHECKING:
    from coterie.kube.api.rules import (
        admission_policies,
        apiregistration,
        certificates,
        csi,
        devices,
        flowcontrol,
        runtime_class,
        service_ranges,
    )
else:
    admission_policies = lazy_import("coterie.kube.api.rules.admission_policies")
    apiregistration = lazy_import("coterie.kube.api.rules.apiregistration")
    certificates = lazy_import("coterie.kube.api.rules.certificates")
    csi = lazy_import("coterie.kube.api.rules.csi")
    devices = lazy_import("coterie.kube.api.rules.devices")
    flowcontrol = lazy_import("coterie.kube.api.rules.flowcontrol")
    runtime_class = lazy_import("coterie.kube.api.rules.runtime_class")
    service_ranges = lazy_import("coterie.kube.api.rules.service_ranges")

_RARE: dict[str, Any] = {
    "admissionregistration.k8s.io": admission_policies,
    "apiregistration.k8s.io": apiregistration,
    "certificates.k8s.io": certificates,
    "flowcontrol.apiserver.k8s.io": flowcontrol,
    "networking.k8s.io": service_ranges,
    "node.k8s.io": runtime_class,
    "resource.k8s.io": devices,
    "storage.k8s.io": csi,
}
"""Modules with more kinds of a group, loaded when one of them is asked for."""


class _Rules(dict[tuple[str, str], KindRules]):
    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        module = _RARE.get(key[0]) if isinstance(key, tuple) else None
        return module is not None and key in module.RULES

    def __missing__(self, key: tuple[str, str]) -> KindRules:
        module = _RARE.get(key[0])
        if module is None or key not in module.RULES:
            raise KeyError(key)
        self.update(module.RULES)
        return self[key]


RULES: dict[tuple[str, str], KindRules] = _Rules(
    {
        **pods.RULES,
        **services.RULES,
        **config.RULES,
        **cluster.RULES,
        **storage.RULES,
        **policy.RULES,
        **apps.RULES,
        **batch.RULES,
        **autoscaling.RULES,
        **networking.RULES,
        **endpoints.RULES,
        **rbac.RULES,
        **crd.RULES,
        **webhooks.RULES,
        **events.RULES,
        **reviews.RULES,
    }
)

__all__ = ["RULES", "KindRules"]
