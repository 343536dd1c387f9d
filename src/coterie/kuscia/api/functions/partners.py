"""Which partners take part in the domain's functions. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.functions.types import ACTIONS, ActionGrant


class TargetsSpec(Model, frozen=True, kw_only=True):
    next: tuple[str, ...] | None = None


class ActionTargets(ApiObject, frozen=True, kw_only=True):
    """An Action without its code, which may be large: for those who only ask whom it calls."""

    spec: TargetsSpec = TargetsSpec()


ACTION_TARGETS = Kind(ACTIONS.resource, ActionTargets)


def declared_partners(targets: Iterable[str]) -> frozenset[str]:
    """The domains in `next` of actions."""
    return frozenset(partner for each in targets for partner, slash, _ in [each.partition("/")] if slash and partner)


def inbox_callers(actions: Iterable[ActionTargets], grants: Iterable[ActionGrant]) -> frozenset[str]:
    """Domains that may reach the inbox at all: those with an ActionGrant call, those whose actions ours call reply."""
    calling = {each.spec.grant_domain for each in grants if not each.metadata.deleting}
    replying = declared_partners(target for each in actions for target in each.spec.next or ())
    return frozenset(calling) | replying


def table_component(action: str) -> str:
    """The name by which `limit.components` of a DomainDataGrant speaks of an action."""
    return f"action/{action}"
