"""A plug-in of the agent: engines of tasks are entered in the index of logs before they start."""

from __future__ import annotations

from collections.abc import Callable

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.plugin import PodNetworkPlugin
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.control.log_index import LoggedPod, PodLogIndex, parse
from coterie.kuscia.engine import peers

log = logger("engine.log_index")
_MAX_SERVICES = 64


class LogIndexPlugin(PodNetworkPlugin):
    name = "log-index"

    def __init__(
        self,
        index: PodLogIndex,
        domain: str,
        clock: Clock,
        starting: Callable[[LoggedPod, Object], None] | None = None,
    ) -> None:
        """`starting`: called for each engine that is about to start."""
        self._starting = starting
        self._index = index
        self._domain = domain
        self._clock = clock

    async def network_ready(self, pod: Object, address: str, lookup: Lookup) -> None:
        entry = entry_of(pod, self._domain, int(self._clock.now().timestamp()), lookup)
        if entry is None:
            return
        about = {
            "pod": f"{entry.namespace}/{entry.pod}",
            "job": entry.job,
            "task": entry.task,
            "party": entry.namespace,
        }
        log.info("An engine starts", **about)
        try:
            self._index.add(entry)
        except OSError as problem:
            log.warning("The output of a pod cannot be entered in the index", error=problem, **about)
        if self._starting is not None:
            self._starting(entry, pod)


def entry_of(pod: Object, domain: str, now: int, lookup: Lookup) -> LoggedPod | None:
    """None for pods that are no engines of a task of the domain."""
    meta = pod["metadata"]
    marks, known = meta.get("annotations") or {}, meta.get("labels") or {}
    task, job = str(marks.get(labels.KUSCIA_TASK_ID) or ""), str(marks.get(labels.KUSCIA_JOB_ID) or "")
    made_here = known.get(labels.KUSCIA_CONTROLLER) == labels.KUSCIA_CONTROLLER_TASK
    if not task or not made_here or not peers.is_task_pod(pod, domain):
        return None
    name = peers.values_map_name(pod)
    hosts = peers.callable_hosts(pod, lookup("ConfigMap", name) if name else None, domain)
    services = {host.partition(".")[0] for host in hosts if not host.startswith("reporter.")}
    unusual = sorted(each for each in services if not each.removeprefix("svc-").startswith(f"{task}-"))
    entry = LoggedPod(now, domain, job, task, str(meta["name"]), str(meta["uid"]), tuple(unusual[:_MAX_SERVICES]))
    return entry if parse(entry.line().rstrip("\n")) == entry else None
