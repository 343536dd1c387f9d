"""What an AppImage says for one role, and how a party's resources are shared out among its containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.kube.api import quantity
from coterie.kube.api.meta import Object
from coterie.kube.api.quantity import BINARY_SI, NANO, Quantity
from coterie.kube.api.types.pods import QuantityText
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import mbit_up, parse_bits
from coterie.kuscia.api.types.job import AppImage, DeployTemplate, JobParty

DEFAULT_REPLICAS = 1


def choose_template(templates: tuple[DeployTemplate, ...], role: str) -> DeployTemplate | None:
    """The first that lists the role; else the last that is for any role; else, when no role is asked for, the first."""
    for template in templates:
        if role and role in roles_of(template):
            return template
    for template in reversed(templates):
        if not template.role:
            return template
    return templates[0] if templates and not role else None


def roles_of(template: DeployTemplate) -> tuple[str, ...]:
    return tuple(role.strip() for role in template.role.split(",") if role.strip())


def replicas_of(template: DeployTemplate) -> int:
    """An AppImage that says nothing means one pod, not none."""
    return DEFAULT_REPLICAS if template.replicas is None else template.replicas


def share(resources: Mapping[str, QuantityText] | None, parts: int) -> dict[str, str]:
    """A party's total divided evenly and rounded down: decimal amounts by the thousandth, binary ones and extended
    resources (`kuscia.io/bandwidth`, which must be whole numbers) by the unit."""
    return {name: str(_part(name, quantity.parse(text), parts)) for name, text in (resources or {}).items()}


def _part(name: str, total: Quantity, parts: int) -> Quantity:
    grain = NANO if total.format == BINARY_SI or "/" in name else NANO // 1000
    return Quantity(total.nanos // parts // grain * grain, total.format)


def party_containers(party: JobParty, image: AppImage | None) -> list[Object]:
    """The engine's containers by name, each with its share of what the party was given. The rest of a container stays
    in the AppImage: what is laid over it need not say it again."""
    chosen = choose_template(image.spec.deploy_templates, party.role) if image is not None else None
    if party.resources is None or chosen is None:
        return []
    containers = chosen.spec.get("containers") or []
    parts = max(1, len(containers) * max(1, replicas_of(chosen)))
    given = {"requests": share(party.resources.requests, parts), "limits": share(party.resources.limits, parts)}
    resources = {kind: amounts for kind, amounts in given.items() if amounts}
    return [
        {"name": each["name"], "workingDir": each.get("workingDir", ""), "resources": resources}
        for each in containers
        if resources
    ]


def with_bandwidth(containers: Sequence[Object], request: str, replicas: int) -> tuple[Object, ...]:
    """The containers of one party with the task's `bandwidthRequest` spread over them and the party's pods, rounded up to
    whole Mbit/s. A container that names an amount of its own means that the party has said what it needs."""
    if not request or not containers or any(_asks_bandwidth(each) for each in containers):
        return tuple(containers)
    amount = str(max(1, -(-mbit_up(parse_bits(request)) // (len(containers) * max(1, replicas)))))
    return tuple(_with_amount(each, labels.KUSCIA_BANDWIDTH, amount) for each in containers)


def _asks_bandwidth(container: Object) -> bool:
    resources = container.get("resources") or {}
    return any(labels.KUSCIA_BANDWIDTH in (resources.get(kind) or {}) for kind in ("requests", "limits"))


def _with_amount(container: Object, name: str, amount: str) -> Object:
    """Extended resources are requested and limited alike."""
    resources = dict(container.get("resources") or {})
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), name: amount}
    return {**container, "resources": resources}
