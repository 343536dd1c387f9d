"""What has actors of its own: each action, and an action for each partner whose ActionGrant names tables, or who may call one that reads tables for
us. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coterie.functions.model import ActionConfig, partner_pool
from coterie.kuscia.api.functions.types import Action, ActionGrant


@dataclass(frozen=True, slots=True)
class ActorPool:
    name: str
    """As the dispatcher knows it: of its topic, and of its pods' label."""
    action: str
    partner: str = ""
    """For whom its actors read tables; empty: for ourselves."""
    tables: tuple[str, ...] = ()


def pools_of(action: str, grants: Iterable[ActionGrant], own_tables: Iterable[str] = ()) -> list[ActorPool]:
    """`own_tables`: what the action reads in calls of our own."""
    mine = tuple(sorted(own_tables))
    tables: dict[str, set[str]] = {}
    for each in grants:
        if each.spec.action == action and (each.spec.tables or mine) and not each.metadata.deleting:
            tables.setdefault(each.spec.grant_domain, set()).update(each.spec.tables or ())
    own = [
        ActorPool(partner_pool(action, partner), action, partner, tuple(sorted(names)))
        for partner, names in sorted(tables.items())
    ]
    return [ActorPool(action, action, tables=mine), *own]


def action_of_pool(pool: str) -> str:
    """Names of actions have no dots."""
    return pool.partition(".")[0]


def action_config(pool: ActorPool, action: Action, traffic: dict[str, int], problem: str) -> ActionConfig:
    spec = action.spec
    return ActionConfig(
        name=pool.name,
        next=frozenset(spec.targets),
        timeout=float(spec.timeout_seconds),
        concurrency=spec.concurrency,
        retries=spec.retries.limit,
        first_delay=spec.retries.first_delay_milliseconds / 1000,
        traffic=traffic,
        own_tables=bool(pool.tables) and not pool.partner,
        problem=problem,
    )
