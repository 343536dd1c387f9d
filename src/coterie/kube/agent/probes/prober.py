"""The probes of one run of one container: a task for each, from the start of the run to its end.

    startup ──well──> liveness and readiness begin          startup or liveness fails too often ──> kill

In the first second of a run, startup and readiness are also asked between the periods, as soon as it may have begun to listen; only a
good answer counts then. Commands are not: they cost a process each.

The prober only keeps a `Probed` up to date and says when it changed; what follows from it is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from coterie.base.clock import Clock
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.pods.pod_view import Probed
from coterie.kube.agent.probes.checks import Checker
from coterie.kube.api.meta import Object

_FIRST_QUICK, _QUICK_FACTOR, _QUICK_SECONDS = 0.005, 1.6, 1.0
_QUICK_KINDS = ("httpGet", "tcpSocket", "grpc")
_FAILED = "failed {} probe, will be restarted"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Counts equal verdicts in a row. Pure, so that the rules of thresholds can be written down as rows."""

    success: int
    failure: int
    verdict: bool | None = None
    """What counts as true now; None: too early to say."""
    last: bool | None = None
    streak: int = 0

    def after(self, well: bool) -> Threshold:
        streak = self.streak + 1 if well == self.last else 1
        enough = streak >= (self.success if well else self.failure)
        return replace(self, verdict=well if enough else self.verdict, last=well, streak=streak)


def threshold_of(probe: Object) -> Threshold:
    return Threshold(max(1, int(probe.get("successThreshold") or 1)), max(1, int(probe.get("failureThreshold") or 3)))


class ContainerProber:
    def __init__(
        self,
        pod_uid: str,
        container: Object,
        attempt: int,
        checker: Checker,
        clock: Clock,
        on_change: Callable[[], None],
        report: Callable[[str, str], None],
        *,
        age: float = 0.0,
        adopted: Probed | None = None,
    ) -> None:
        """`age`: seconds the run is old already. `adopted`: what was known of a run that is taken over."""
        self._uid = pod_uid
        self._container = container
        self._checker = checker
        self._clock = clock
        self._on_change = on_change
        self._report = report
        self._age = age
        self._owner = TaskOwner(f"probes/{container['name']}/{attempt}", grace=2.0)
        self._startup = asyncio.Event()
        started = adopted.started if adopted is not None else not container.get("startupProbe")
        ready = adopted.ready if adopted is not None else not container.get("readinessProbe")
        self.result = Probed(attempt, started=started, ready=ready)
        if started:
            self._startup.set()

    def start(self) -> None:
        if not self._startup.is_set():
            self._owner.start("startup", self._run("startupProbe", "startup"), vital=False)
        for field, name in (("livenessProbe", "liveness"), ("readinessProbe", "readiness")):
            if self._container.get(field):
                self._owner.start(name, self._run(field, name), vital=False)

    async def close(self) -> None:
        await self._owner.close()

    async def _run(self, field: str, name: str) -> None:
        probe: Object = self._container[field]
        if name != "startup":
            await self._startup.wait()
        delay = float(probe.get("initialDelaySeconds") or 0) - self._age
        if delay > 0:
            await self._clock.sleep(delay)
        threshold = threshold_of(probe)
        period = float(probe.get("periodSeconds") or 10)
        timeout = float(probe.get("timeoutSeconds") or 1)
        if name != "liveness" and not self._known(name) and await self._quick(probe, timeout):
            threshold = threshold.after(True)
            if self._conclude(name, probe, threshold):
                return
            await self._clock.sleep(period)
        while True:
            well, seen = await self._checker.check(self._uid, self._container, probe, timeout)
            if not well:
                self._report("Unhealthy", f"{name.capitalize()} probe failed: {seen}")
            elif seen.startswith("Probe terminated redirects"):
                self._report("ProbeWarning", f"{name.capitalize()} probe warning: {seen}")
            threshold = threshold.after(well)
            if self._conclude(name, probe, threshold):
                return
            await self._clock.sleep(period)

    def _known(self, name: str) -> bool:
        return self.result.started if name == "startup" else self.result.ready

    async def _quick(self, probe: Object, timeout: float) -> bool:
        """Whether the container answered well in its first second."""
        if probe.get("initialDelaySeconds") or not any(kind in probe for kind in _QUICK_KINDS):
            return False
        # Who has shown that it started can answer at once.
        wait = 0.0 if self._container.get("startupProbe") and self.result.started else _FIRST_QUICK
        end = self._clock.monotonic() - self._age + _QUICK_SECONDS
        while self._clock.monotonic() < end:
            if wait:
                await self._clock.sleep(wait)
            if (await self._checker.check(self._uid, self._container, probe, timeout))[0]:
                return True
            wait = max(_FIRST_QUICK, wait * _QUICK_FACTOR)
        return False

    def _conclude(self, name: str, probe: Object, threshold: Threshold) -> bool:
        """Take the verdict over; says whether this probe is through."""
        before, verdict = self.result, threshold.verdict
        if verdict is None:
            return False
        if name == "readiness":
            self.result = replace(before, ready=verdict)
        elif not verdict:
            grace = probe.get("terminationGracePeriodSeconds")
            failed = _FAILED.format(name)
            self.result = replace(before, failed=failed, grace=None if grace is None else float(grace))
        elif name == "startup":
            self.result = replace(before, started=True)
            self._startup.set()
        if self.result != before:
            self._on_change()
        return name == "startup" or bool(self.result.failed and name == "liveness")
