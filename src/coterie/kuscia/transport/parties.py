"""Which domains take part in a task of ours, read from the task's pods: lites have no other object that says so.

    pods of engines ── annotations: task, name of the values ──> ConfigMap ── TASK_CLUSTER_DEFINE ──> parties

Parties of a task never change, so they are kept while the task has a pod that runs. Whoever asks for tasks that are not there makes
us look once a second, not more often.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Reader
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api import labels
from coterie.kuscia.transport.outbound import TransportCode, TransportRefused

_ENGINES = f"{labels.KUSCIA_COMMUNICATION_ROLE_CLIENT}=true"
_DEFINITION = "TASK_CLUSTER_DEFINE"
_FRESH_SECONDS, _PAUSE_SECONDS = 30.0, 1.0
log = logger("transport")


class TaskParties:
    def __init__(self, client: Reader, domain: str, clock: Clock) -> None:
        self._client = client
        self._domain = domain
        self._clock = clock
        self._values: dict[str, str] = {}
        """By task, the ConfigMap with its values."""
        self._parties: dict[str, frozenset[str]] = {}
        self._looked: float | None = None
        self._looking = asyncio.Lock()

    async def of(self, task: str) -> frozenset[str]:
        """None of a task that has no running pod here. Raises TransportRefused."""
        try:
            async with self._looking:
                if not self._is_fresh(task):
                    await self._look()
                if task in self._values and task not in self._parties:
                    self._parties[task] = await self._read(self._values[task])
        except (ApiError, TransportError) as problem:
            log.warning("The domain's API cannot be asked for the parties of a task", error=problem)
            raise TransportRefused(
                TransportCode.UNAVAILABLE, "the domain's API cannot be asked now; try again later"
            ) from problem
        return self._parties.get(task, frozenset())

    def _is_fresh(self, task: str) -> bool:
        if self._looked is None:
            return False
        return self._clock.monotonic() - self._looked < (_FRESH_SECONDS if task in self._values else _PAUSE_SECONDS)

    async def _look(self) -> None:
        page = await self._client.list(PODS, self._domain, labels=_ENGINES)
        self._looked = self._clock.monotonic()
        self._values = values_of_tasks(page.items)
        self._parties = {task: found for task, found in self._parties.items() if task in self._values}

    async def _read(self, name: str) -> frozenset[str]:
        try:
            values = await self._client.get(CONFIG_MAPS, name, self._domain)
        except NotFound:
            return frozenset()
        return parties_in((values.data or {}).get(_DEFINITION, ""))


def values_of_tasks(pods: list[Pod]) -> dict[str, str]:
    """By task with a pod that has not ended, the name of the ConfigMap with its values. Pure."""
    found: dict[str, str] = {}
    for pod in pods:
        marks: Mapping[str, str] = pod.metadata.annotations or {}
        task, values = marks.get(labels.KUSCIA_TASK_ID), marks.get(labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM)
        if task and values and not pod.ended:
            found.setdefault(task, values)
    return found


def parties_in(definition: str) -> frozenset[str]:
    """The domains of a cluster definition; none when it cannot be read. Pure."""
    try:
        return frozenset(str(each["name"]) for each in json.loads(definition).get("parties") or () if each["name"])
    except (ValueError, AttributeError, TypeError, KeyError):
        return frozenset()
