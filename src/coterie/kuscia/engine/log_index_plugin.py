"""A plug-in of the agent: engines of tasks are entered in the index of logs before they start."""

from __future__ import annotations

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.plugin import PodNetworkPlugin
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.api.meta import Object
from coterie.kuscia.engine.log_index import PodLogIndex, entry_of

log = logger("engine.log_index")


class LogIndexPlugin(PodNetworkPlugin):
    name = "log-index"

    def __init__(self, index: PodLogIndex, domain: str, clock: Clock) -> None:
        self._index = index
        self._domain = domain
        self._clock = clock

    async def network_ready(self, pod: Object, address: str, lookup: Lookup) -> None:
        entry = entry_of(pod, self._domain, int(self._clock.now().timestamp()), lookup)
        if entry is None:
            return
        try:
            self._index.add(entry)
        except OSError as problem:
            log.warning("The output of a pod cannot be entered in the index", pod=entry.pod, error=problem)
