"""Gives each active namespace its `default` ServiceAccount."""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import AlreadyExists, Forbidden, NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.core import NAMESPACES, SERVICE_ACCOUNTS, ServiceAccount
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.controllers.serviceaccount.plan import NAME, missing_account

_ONLY_OURS = f"metadata.name={NAME}"


class ServiceAccountReconciler:
    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self.namespaces = informers.get(NAMESPACES)
        self.accounts = informers.get(SERVICE_ACCOUNTS, fields=_ONLY_OURS)

    async def reconcile(self, key: ObjectKey) -> Result:
        namespace = self.namespaces.cache.get(key.name)
        missing = missing_account(namespace, self.accounts.cache.get(NAME, key.name))
        if missing is not None:
            try:
                await self._client.create(SERVICE_ACCOUNTS, missing)
            except AlreadyExists:
                return DONE  # the cache is a moment behind
            except (Forbidden, NotFound):
                # Refused when the namespace began to go after we looked; if not, we see it again in a while.
                return Result(after=5)
        return DONE


def make(
    client: Client, informers: Informers, *, workers: int = 1, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    reconciler = ServiceAccountReconciler(client, informers)

    def of_account(account: ServiceAccount) -> list[ObjectKey]:
        return [ObjectKey("", account.metadata.namespace)]

    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.namespaces, own_key),
        Watches(reconciler.accounts, of_account),
    ]
    return Controller("serviceaccount", reconciler.reconcile, watches, workers=workers, clock=clock)
