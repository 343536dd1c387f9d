"""What the node offers: pure functions from measured facts and settings to resource lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.kube.agent.node.conditions import ConditionReading
from coterie.kube.agent.node.facts import MachineFacts
from coterie.kube.agent.plugin import NO_ADDITIONS, NodeAdditions
from coterie.kube.agent.settings import CapacitySettings
from coterie.kube.api import quantity
from coterie.kube.api.quantity import BINARY_SI, Quantity

Resources = dict[str, str]


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """What the devices of a node add to it, as they are now."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    """Without those that are unhealthy."""
    condition: ConditionReading | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


NO_DEVICES = NodeDevices()


def with_devices(resources: Resources, devices: Mapping[str, int]) -> Resources:
    return {**resources, **{name: str(count) for name, count in devices.items()}} if devices else resources


def capacity(facts: MachineFacts, wanted: CapacitySettings, additions: NodeAdditions = NO_ADDITIONS) -> Resources:
    memory = facts.memory_limit if 0 < facts.memory_limit < facts.memory_total else facts.memory_total
    whole_cpu = facts.cpus * 1000
    cpu = min(facts.cpu_quota_milli, whole_cpu) if facts.cpu_quota_milli else whole_cpu
    found = {
        "cpu": _configured(wanted.cpu) or quantity.from_milli(cpu),
        "memory": _configured(wanted.memory) or quantity.from_units(memory, BINARY_SI),
        "storage": _configured(wanted.storage) or quantity.from_units(facts.disk_total, BINARY_SI),
        "ephemeral-storage": _configured(wanted.ephemeral_storage) or quantity.from_units(facts.disk_total, BINARY_SI),
        "pods": quantity.from_units(wanted.pods),
        **{name: quantity.from_units(amount) for name, amount in additions.capacity.items()},
    }
    return {name: str(value) for name, value in found.items()}


def allocatable(offered: Resources, wanted: CapacitySettings, additions: NodeAdditions = NO_ADDITIONS) -> Resources:
    """The capacity less what is kept for Coterie; never below zero.

    The reserved CPU is taken off only when more than half a core is reserved: on a small machine the default of half a
    core would leave too little.
    """
    reserved = {
        "memory": quantity.parse(wanted.reserved_memory),
        **{name: quantity.from_units(amount) for name, amount in additions.reserved.items()},
    }
    cpu = quantity.parse(wanted.reserved_cpu)
    if cpu > quantity.from_milli(500):
        reserved["cpu"] = cpu
    left = {}
    for name, text in offered.items():
        value = quantity.parse(text)
        rest = value - reserved.get(name, quantity.ZERO)
        left[name] = str(Quantity(max(rest.nanos, 0), value.format))
    return left


def _configured(text: str) -> Quantity | None:
    return quantity.parse(text) if text else None
