"""The rules of every built-in kind: `RULES[(group, kind)]`.

Objects are taken in their stored version (`Resource.storage`); events are stored in the core form, so the entry of
`events.k8s.io` reads core events, too, and only demands more of them. `base.py` says in which order the server asks.
"""

from __future__ import annotations

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

RULES: dict[tuple[str, str], KindRules] = {
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

__all__ = ["RULES", "KindRules"]
