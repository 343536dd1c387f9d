"""Objects between the version a client speaks and the one in which they are stored.

Only two built-in resources are offered in more than one shape; all others pass through untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.convert.events import event_core_to_events, event_events_to_core
from coterie.kube.api.resources import Resource

if TYPE_CHECKING:
    from coterie.kube.api.convert import autoscaling
else:
    autoscaling = lazy_import("coterie.kube.api.convert.autoscaling")

Obj = dict[str, Any]


def hpa_v1_to_v2(obj: Obj) -> Obj:
    return autoscaling.hpa_v1_to_v2(obj)


def hpa_v2_to_v1(obj: Obj) -> Obj:
    return autoscaling.hpa_v2_to_v1(obj)


_CONVERTED: dict[tuple[str, str, str], tuple[Callable[[Obj], Obj], Callable[[Obj], Obj]]] = {
    ("autoscaling", "v1", "horizontalpodautoscalers"): (hpa_v1_to_v2, hpa_v2_to_v1),
    ("events.k8s.io", "v1", "events"): (event_events_to_core, event_core_to_events),
}


def is_converted(resource: Resource) -> bool:
    """Whether clients of this resource see another shape than the stored one."""
    return (resource.group, resource.version, resource.plural) in _CONVERTED


def to_storage(resource: Resource, obj: Obj) -> Obj:
    """The stored form of an object that a client sent."""
    found = _CONVERTED.get((resource.group, resource.version, resource.plural))
    return found[0](obj) if found else obj


def from_storage(resource: Resource, obj: Obj) -> Obj:
    """A stored object as clients of the resource see it."""
    found = _CONVERTED.get((resource.group, resource.version, resource.plural))
    return found[1](obj) if found else obj


__all__ = [
    "event_core_to_events",
    "event_events_to_core",
    "from_storage",
    "hpa_v1_to_v2",
    "hpa_v2_to_v1",
    "is_converted",
    "to_storage",
]
