"""Which actors there are and which of them listen: pods from the API, and a connection to each as soon as it has an address.

The port of an actor is closed until its code is loaded, so whoever gets 200 from `/healthz` has a ready actor, a second before the pod's own
probe says so.

A pod that has the label of an action is an actor when this process made it, or when it is found to be one (`is_ours`); until then it does not
count, and nothing is sent to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.engines.actor import exit_codes
from coterie.functions.plan import ActorState
from coterie.functions.pod_connections import ConnectToPod
from coterie.http.plain_client import HttpFailure, Pool
from coterie.kube.api.errors import ApiError
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.functions.types import ACTION_LABEL, ACTOR_PORT, VERSION_LABEL

log = logger("functions.actors")

OOM_KILLED, EVICTED = "OOMKilled", "Evicted"
TEMPLATE_ANNOTATION = "coterie.io/actor-template"
_SIGNALLED = 128
_OWN_ENDS = {
    exit_codes.BAD_CODE: "its code cannot be loaded",
    exit_codes.LOAD_TIMEOUT: "its code was not loaded in time",
    exit_codes.CALL_STUCK: "a call did not end after its deadline",
}
SPARE_TEXT = "spare"
"""What an actor without an action answers to `/healthz`."""
_PROBE_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25
_RELOAD_SECONDS = 90.0
_UNSEEN_SECONDS = 30.0
_CHECK_AGAIN_SECONDS = 1.0
_MAX_TEXT = 2000
_MOST_ENDS = 1000


@dataclass(slots=True)
class TrackedActor:
    name: str
    pool: str
    version: str
    """Of the code that it runs, also after it was replaced."""
    template: str
    state: ActorState = ActorState.STARTING
    host: str = ""
    created: str = ""
    uid: str = ""
    since: float = 0.0
    """When it came into its state, monotonic."""
    fixed: bool = False
    addressed: float = 0.0
    """When it had an address, monotonic."""
    was_ready: bool = False
    exit_code: int | None = None
    message: str = ""
    """Why it ended, or why it does not start."""
    counted: bool = False
    """Its failure was looked at."""
    stuck: bool = False
    seen: Pod | None = None
    made: bool = False
    """We made it: its uid is that of the pod that we created, or its seal is ours."""
    checking: bool = False
    """It is not known whether it is an actor of ours."""
    claiming: bool = False
    """A spare actor that is getting its code: whoever gives it says when it is ready."""


@dataclass(frozen=True, slots=True)
class PutToActor:
    target: str
    token: str = field(repr=False)
    content_type: str
    body: bytes = field(repr=False)


async def put_to_actor(
    host: str, sent: PutToActor, connect: ConnectToPod, *, connect_seconds: float, seconds: float
) -> tuple[int, str]:
    """Status and text of the answer. TimeoutError, HttpFailure."""
    headers = {"Host": "actor", "Authorization": f"Bearer {sent.token}", "Content-Type": sent.content_type}
    pool = Pool((host, ACTOR_PORT), keep=0.0, connecting=connect_seconds, connect=connect)
    try:
        async with asyncio.timeout(seconds):
            response = await pool.request("PUT", sent.target, headers, sent.body)
            return response.status, (await response.read(_MAX_TEXT)).decode("utf-8", "replace").strip()
    finally:
        await pool.close()


class ReloadRefused(Exception):
    """The actor goes on with the old code."""


class ReloadUnsupported(Exception):
    """It cannot replace its code."""


class ActorMonitor:
    """A Runnable. `changed(pool)` is called with each change that matters, `became_ready` before that."""

    name = "actors"

    def __init__(
        self,
        pods: Informer[Pod],
        connect: ConnectToPod,
        clock: Clock,
        changed: Callable[[str], None],
        is_ours: Callable[[str, str], Awaitable[bool]],
    ) -> None:
        """`is_ours`: whether the pod of this name is an actor of this pool, though this process did not make it."""
        self.ready = asyncio.Event()
        self._pods = pods
        self._connect = connect
        self._clock = clock
        self._changed = changed
        self._actors: dict[str, TrackedActor] = {}
        self.became_ready: Callable[[TrackedActor], None] = lambda _: None
        self._owner: TaskOwner | None = None
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._is_ours = is_ours
        self._checks: list[asyncio.Task[None]] = []
        """Of pods that were there when we began."""
        self._foreign: set[str] = set()
        """Uids of pods that only have the label."""
        self._ends: OrderedDict[str, str] = OrderedDict()
        """Why actors ended, by name, also of those that are gone."""
        self._asking: dict[str, list[asyncio.Future[str]]] = {}

    def of_pool(self, pool: str) -> list[TrackedActor]:
        now = self._clock.monotonic()
        for each in list(self._actors.values()):
            # One that was made and never came: somebody deleted it before it was seen.
            if not each.uid and now - each.since > _UNSEEN_SECONDS:
                del self._actors[each.name]
        return [each for each in self._actors.values() if each.pool == pool and not each.checking]

    def pools(self) -> set[str]:
        return {each.pool for each in self._actors.values() if not each.checking}

    def created(self, name: str, pool: str, version: str, template: str) -> None:
        """The pod was made just now; the cache may not have it yet."""
        if name not in self._actors:
            self._actors[name] = TrackedActor(name, pool, version, template, since=self._clock.monotonic())

    def made(self, name: str, uid: str) -> None:
        """The API server has it under this uid."""
        found = self._actors.get(name)
        if found is None:
            return
        if found.uid not in ("", uid):
            self._drop(found)  # somebody put another pod in its place
            return
        found.made = True
        if found.seen is not None:
            self._look(found, found.seen)

    def claimed(self, name: str, uid: str, host: str, pool: str, version: str, template: str) -> None:
        """A spare pod is being made one of the pool's."""
        now = self._clock.monotonic()
        self._actors[name] = TrackedActor(
            name, pool, version, template, host=host, uid=uid, since=now, addressed=now, made=True, claiming=True
        )

    def answered(self, name: str) -> None:
        """The actor takes calls."""
        actor = self._actors.get(name)
        if actor is not None and actor.state is ActorState.STARTING:
            actor.claiming = False
            self._become_ready(actor)

    def forget(self, name: str) -> None:
        """Its pod cannot be used, and somebody removes it."""
        self._stop_probe(name)
        self._actors.pop(name, None)

    def not_created(self, name: str) -> None:
        found = self._actors.get(name)
        if found is not None and not found.uid:
            del self._actors[name]

    def leaving(self, name: str) -> None:
        """Its pod was deleted just now."""
        if name in self._actors:
            self._enter(self._actors[name], ActorState.LEAVING)

    def stuck(self, name: str) -> None:
        if name in self._actors:
            self._actors[name].stuck = True
            self._changed(self._actors[name].pool)

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            self._owner = owner
            await self._pods.ready.wait()
            remove = self._pods.add_handler(self._pod_changed)
            try:
                while self._checks:  # else those that are there would be made once more
                    await asyncio.wait((self._checks.pop(),))
                self.ready.set()
                owner.start("forever", asyncio.Event().wait(), endless=True)
                await owner.wait()
            finally:
                remove()
                self._owner = None

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        meta = pod.metadata
        found = self._actors.get(meta.name)
        if change.type == "deleted":
            self._foreign.discard(meta.uid)
            if found is not None and found.uid in ("", meta.uid):
                self._note_end(found, "its pod was deleted")
                self._drop(found)
            return
        if meta.uid in self._foreign:
            return
        if found is not None and found.uid not in ("", meta.uid):
            self._drop(found)
            found = None
        if found is None:
            labels, notes = meta.labels or {}, meta.annotations or {}
            pool, version = labels.get(ACTION_LABEL, ""), labels.get(VERSION_LABEL, "")
            found = TrackedActor(
                meta.name, pool, version, notes.get(TEMPLATE_ANNOTATION, ""), since=self._clock.monotonic()
            )
            found.checking = True
            self._actors[meta.name] = found
            assert self._owner is not None
            check = self._owner.start(f"check {meta.name}", self._check(found), vital=False)
            if not self.ready.is_set():
                self._checks.append(check)
        found.uid, found.created, found.seen = meta.uid, meta.creation_timestamp or "", pod
        if found.made:
            self._look(found, pod)

    async def _check(self, actor: TrackedActor) -> None:
        """A pod that this process did not make."""
        while True:
            try:
                ours = await self._is_ours(actor.name, actor.pool)
                break
            except (ApiError, TransportError) as problem:
                log.warning("It is not known whether a pod is an actor", pod=actor.name, error=problem)
                await self._clock.sleep(_CHECK_AGAIN_SECONDS)
        if self._actors.get(actor.name) is not actor:
            return
        if not ours:
            log.warning("A pod has the label of an action and is no actor of it", pod=actor.name, action=actor.pool)
            self._foreign.add(actor.uid)
            self._drop(actor)
            return
        actor.made, actor.checking = True, False
        assert actor.seen is not None
        self._look(actor, actor.seen)

    def _drop(self, actor: TrackedActor) -> None:
        self._actors.pop(actor.name, None)
        self._stop_probe(actor.name)
        self._changed(actor.pool)

    def _look(self, actor: TrackedActor, pod: Pod) -> None:
        before = (actor.state, actor.message)
        actor.host = pod.status.pod_ip
        self._see(actor, pod)
        if (actor.state, actor.message) != before:
            self._changed(actor.pool)

    async def why_ended(self, name: str, seconds: float) -> str:
        """Why an actor that broke off a call ended, for whoever called: its pod says so a moment later. Empty: it is not known so far."""
        if name in self._ends:
            return self._ends[name]
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asking.setdefault(name, []).append(waiting)
        try:
            async with asyncio.timeout(seconds):
                return await waiting
        except TimeoutError:
            return ""
        finally:
            self._asking[name].remove(waiting)
            if not self._asking[name]:
                del self._asking[name]

    def _note_end(self, actor: TrackedActor, why: str) -> None:
        if actor.name in self._ends:
            return
        self._ends[actor.name] = why
        while len(self._ends) > _MOST_ENDS:
            self._ends.popitem(last=False)
        for waiting in self._asking.get(actor.name, ()):
            if not waiting.done():
                waiting.set_result(why)

    def _see(self, actor: TrackedActor, pod: Pod) -> None:
        if pod.ended:
            actor.exit_code, actor.message = end_of(pod)
            self._note_end(actor, end_for_callers(pod, actor.exit_code))
            self._enter(actor, ActorState.FAILED)
        elif pod.metadata.deleting:
            self._enter(actor, ActorState.LEAVING)
        elif actor.state is ActorState.STARTING:
            actor.message = waiting_for(pod)
            if actor.host and actor.name not in self._probing and not actor.claiming:
                actor.addressed = self._clock.monotonic()
                assert self._owner is not None
                task = self._owner.start(f"probe {actor.name}", self._probe(actor), vital=False)
                self._probing[actor.name] = task

    def _enter(self, actor: TrackedActor, state: ActorState) -> None:
        if actor.state is not state:
            actor.state, actor.since = state, self._clock.monotonic()
            if state is not ActorState.READY:
                self._stop_probe(actor.name)

    def _stop_probe(self, name: str) -> None:
        task = self._probing.pop(name, None)
        if task is not None:
            task.cancel()

    async def _probe(self, actor: TrackedActor) -> None:
        pause = _FIRST_PAUSE
        while (text := await actor_answers(actor.host, self._connect)) is None:
            await self._clock.sleep(pause)
            pause = min(pause * 1.3, _LONGEST_PAUSE)
        if text == SPARE_TEXT:
            self.stuck(actor.name)  # whoever wanted to claim it is gone, and the token with it
        elif actor.state is ActorState.STARTING:
            self._become_ready(actor)

    def _become_ready(self, actor: TrackedActor) -> None:
        actor.was_ready, actor.message = True, ""
        self._probing.pop(actor.name, None)
        now = self._clock.monotonic()
        log.info(
            "Actor is ready",
            actor=actor.name,
            address_ms=round((actor.addressed - actor.since) * 1000),
            ready_ms=round((now - actor.since) * 1000),
        )
        self._enter(actor, ActorState.READY)
        self.became_ready(actor)
        self._changed(actor.pool)

    async def reload(self, actor: TrackedActor, version: str, handler: str, code: bytes, token: str) -> None:
        """The actor runs this code from its next call on. ReloadRefused, ReloadUnsupported, HttpFailure."""
        target = f"/code?version={quote(version)}&handler={quote(handler)}"
        sent = PutToActor(target, token, "application/gzip", code)
        try:
            status, text = await put_to_actor(
                actor.host, sent, self._connect, connect_seconds=_PROBE_SECONDS, seconds=_RELOAD_SECONDS
            )
        except TimeoutError:
            raise ReloadRefused(f"the code was not loaded within {_RELOAD_SECONDS:g} s") from None
        if status == 422:
            raise ReloadRefused(text)
        if status in (404, 405, 501):
            raise ReloadUnsupported(text)
        if status != 200:
            raise HttpFailure(f"PUT /code was answered {status}: {text[:200]}")
        actor.version = version


async def actor_answers(host: str, connect: ConnectToPod) -> str | None:
    """What the actor says of itself; None: it takes no calls."""
    pool = Pool((host, ACTOR_PORT), keep=0.0, connecting=_PROBE_SECONDS, connect=connect)
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            response = await pool.request("GET", "/healthz", {"Host": "actor"})
            text = await response.read(_MAX_TEXT)
            return text.decode("utf-8", "replace").strip() if response.status == 200 else None
    except (HttpFailure, TimeoutError):
        return None
    finally:
        await pool.close()


def end_of(pod: Pod) -> tuple[int | None, str]:
    """The exit code of the actor, and why it ended."""
    code, why = None, pod.status.message or pod.status.reason
    for each in pod.status.container_statuses or ():
        ended: Mapping[str, Any] = (each.state or {}).get("terminated") or {}
        if ended:
            code, reason = ended.get("exitCode"), str(ended.get("reason") or "")
            why = str(ended.get("message") or reason or pod.status.message or f"exit code {code}")
            if reason == OOM_KILLED:
                why = f"{OOM_KILLED}: it used more memory than its limit"
            break
    if pod.status.reason == EVICTED:
        why = f"{EVICTED}: {pod.status.message}".removesuffix(": ")
    return code, why[:_MAX_TEXT]


def end_for_callers(pod: Pod, code: int | None) -> str:
    """The same for whoever called it. `end_of` may have the end of the log, with lines of other calls: that is for those who may read logs."""
    _, why = end_of(pod)
    if why.startswith((OOM_KILLED, EVICTED)):
        return why
    if code is None:
        return (pod.status.reason or "its pod ended")[:_MAX_TEXT]
    if code in _OWN_ENDS:
        return _OWN_ENDS[code]
    if code > _SIGNALLED:
        with contextlib.suppress(ValueError):
            return f"exit code {code} ({signal.Signals(code - _SIGNALLED).name})"
    return f"exit code {code}"


def waiting_for(pod: Pod) -> str:
    """Why a pod does not start, as far as somebody has to do something about it."""
    for each in pod.status.container_statuses or ():
        waiting: Mapping[str, Any] = (each.state or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message') or ''}".strip()[:_MAX_TEXT]
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {condition.message}"[:_MAX_TEXT]
    return ""
