"""Spare actors: pods that are started before anybody knows for which action, so that the first call of a cold function need not wait for one.

    a call of an action ──> spare pods of its kind are made, a moment later          (spare_plan.py)
    a cold action       ──take──> PUT /claim: token, variables, code ──> an actor like any other
                                  PATCH pod: labels and owner of the action

A spare actor is a pod as any other actor: own network, user, limits. It is claimed once and never given back. Its token is known to this process and
to nobody else (its environment has a digest), so spare pods of a process that ended can be claimed by nobody and are removed; so is one that was
claimed and whose labels do not say so yet.

There are none while a NetworkPolicy exists: these choose pods by labels, and the code would run before its labels are known everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.functions import actor_pods
from coterie.functions.actor_monitor import SPARE_TEXT, PutToActor, actor_answers, put_to_actor
from coterie.functions.pod_connections import ConnectToPod
from coterie.functions.spare_plan import SpareFacts, SparePolicy, plan_spares
from coterie.http.plain_client import HttpFailure
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.network_policies import NETWORK_POLICIES
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kuscia.api.functions.types import Action

log = logger("functions.spares")
T = TypeVar("T")

_FILL_SECONDS = 0.3
"""After the last cold start: whoever waits for a call has the machine first."""
_PROBE_SECONDS = 0.02
_CONNECT_SECONDS = 3.0
_CLAIM_SECONDS = actor_pods.LOAD_SECONDS + 15.0
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
"""Before spare actors of a kind are tried again that could not be made, or ended by themselves."""
_PATCH_PAUSES = (0.05, 0.5, 2.0)


class ClaimRefused(Exception):
    """The code cannot be loaded; the actor ends and says why, as any actor with such code."""


@dataclass(slots=True)
class Spare:
    name: str
    key: str
    created: float
    token: str = field(repr=False)
    spec: Object = field(default_factory=dict, repr=False)
    """Of its pod, as we made it."""
    uid: str = ""
    seen: Pod | None = field(default=None, repr=False)
    host: str = ""
    ready: bool = False
    ended: bool = False


@dataclass(slots=True)
class _Kind:
    """Of spare actors."""

    action: Action
    """One that could use them."""
    called: float
    failures: int = 0
    retry_at: float = 0.0


class SpareActors:
    """A Runnable."""

    name = "spare-actors"

    def __init__(
        self,
        client: Client,
        pods: Informer[Pod],
        connect: ConnectToPod,
        clock: Clock,
        namespace: str,
        policy: SparePolicy,
    ) -> None:
        """`pods`: with SPARE_LABEL."""
        self.ready = asyncio.Event()
        self._client = client
        self._pods = pods
        # Of its own: whoever may not read them has functions without spare actors.
        self._policies = Informer(client, Kind.metadata(NETWORK_POLICIES.resource), namespace=namespace)
        self._connect = connect
        self._clock = clock
        self._namespace = namespace
        self._policy = policy
        self._kinds: dict[str, _Kind] = {}
        self._spares: dict[str, Spare] = {}
        self._taken: set[str] = set()
        """Names of those that were claimed, until their labels say so."""
        self._not_before = 0.0
        self._changed = asyncio.Event()
        self._owner: TaskOwner | None = None
        self._stop = asyncio.Event()

    # For the controller of actions.

    def called(self, action: Action, seconds_ago: float) -> None:
        """An action that could use spare actors was called."""
        key = actor_pods.spare_key(action)
        if not key or not self._policy.size or seconds_ago >= self._policy.idle_seconds:
            return
        at = self._clock.monotonic() - seconds_ago
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _Kind(action, at)
            self._changed.set()
        elif at > kind.called:
            kind.called = at

    def take(self, action: Action) -> Spare | None:
        """One that is ready; it belongs to whoever took it. None: there is none."""
        key = actor_pods.spare_key(action)
        self._not_before = self._clock.monotonic() + _FILL_SECONDS
        if not key or not self._allowed():
            return None
        ready = [each for each in self._spares.values() if each.key == key and each.ready and not each.ended]
        if not ready:
            return None
        newest = max(ready, key=lambda each: each.created)
        del self._spares[newest.name]
        self._taken.add(newest.name)
        self._kinds[key].failures = 0
        self._changed.set()
        return newest

    def start(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A claim goes on beside its caller, however long the code takes to be loaded."""
        assert self._owner is not None
        return self._owner.start(name, work, vital=False)

    async def claim(self, spare: Spare, variables: Mapping[str, str], file: str, content: bytes) -> None:
        """It is an actor of an action, and takes calls. ClaimRefused, HttpFailure."""
        head = {"environment": variables, "file": file}
        sent = PutToActor("/claim", spare.token, "application/octet-stream", orjson.dumps(head) + b"\n" + content)
        try:
            status, text = await put_to_actor(
                spare.host, sent, self._connect, connect_seconds=_CONNECT_SECONDS, seconds=_CLAIM_SECONDS
            )
        except TimeoutError:
            raise ClaimRefused(f"the code was not loaded within {_CLAIM_SECONDS:g} s") from None
        if status == 422:
            raise ClaimRefused(text)
        if status != 200:
            raise HttpFailure(f"PUT /claim was answered {status}: {text[:200]}")

    async def rename(self, spare: Spare, metadata: Object, after: float) -> ApiError | None:
        """The pod says whose it is, or why it cannot."""
        problem: ApiError | None = None
        for pause in (after, *_PATCH_PAUSES):
            await self._clock.sleep(pause)
            try:
                await self._client.patch(PODS.as_dynamic, spare.name, self._namespace, {"metadata": metadata})
            except ApiError as refusal:
                problem = refusal
                if isinstance(refusal, NotFound):
                    break
            else:
                return None
        return problem

    async def discard(self, name: str) -> None:
        """A pod that nobody may use."""
        self._spares.pop(name, None)
        with contextlib.suppress(NotFound):
            await self._client.delete(PODS, name, self._namespace, grace=0)

    async def release(self) -> bool:
        """Make room for pods that are needed now: no spare actors for a while. Says whether there were any."""
        names = [each.name for each in self._spares.values()]
        for kind in self._kinds.values():
            kind.retry_at = self._clock.monotonic() + _LONGEST_PAUSE
        for name in names:
            await self.discard(name)
        return bool(names)

    async def remove_all(self) -> None:
        """The last action goes."""
        self._kinds.clear()
        for name in {*self._spares, *(each.metadata.name for each in self._pods.cache.list())}:
            await self.discard(name)

    def ready_count(self) -> int:
        """Of those that could be taken now."""
        return sum(each.ready and not each.ended for each in self._spares.values())

    # The pods.

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            self._owner = owner
            await self._pods.ready.wait()
            self._policies.add_handler(lambda _: self._changed.set())
            remove = self._pods.add_handler(self._pod_changed)
            try:
                if self._policy.size:
                    owner.start("policies", self._policies.run(), endless=True)
                    owner.start("fill", self._fill_forever(), endless=True)
                self.ready.set()
                await self._stop.wait()
            finally:
                remove()
                self._owner = None

    def _allowed(self) -> bool:
        return self._policies.ready.is_set() and not self._policies.cache.list()

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        name = pod.metadata.name
        found = self._spares.get(name)
        if change.type == "deleted":
            self._taken.discard(name)
            if self._spares.pop(name, None) is not None:
                self._changed.set()
            return
        assert self._owner is not None
        if found is None:
            # Claimed a moment ago, and its labels will say so; or of a process that ended, and nobody knows its token.
            if not pod.metadata.deleting and name not in self._taken:
                self._owner.start(f"remove {name}", self.discard(name), vital=False)
            return
        found.seen = pod
        if found.uid:
            self._look(found, pod)

    def _look(self, found: Spare, pod: Pod) -> None:
        assert self._owner is not None
        if found.uid != pod.metadata.uid:  # somebody put another pod in its place
            self._spares.pop(found.name, None)
            self._changed.set()
            return
        if (pod.ended or pod.metadata.deleting) and not found.ended:
            found.ended = True
            if pod.ended:
                self._failed(found.key, f"{pod.status.reason or pod.status.phase}")
            self._changed.set()
        elif pod.status.pod_ip and not found.host:
            found.host = pod.status.pod_ip
            self._owner.start(f"probe {found.name}", self._probe(found), vital=False)

    async def _probe(self, spare: Spare) -> None:
        while spare.name in self._spares and not spare.ended:
            if (text := await actor_answers(spare.host, self._connect)) is not None:
                spare.ready = text == SPARE_TEXT
                if not spare.ready:
                    self._failed(spare.key, "the image does not know spare actors")
                    await self.discard(spare.name)
                return
            await self._clock.sleep(_PROBE_SECONDS)

    async def _fill_forever(self) -> None:
        while True:
            self._changed.clear()
            pause = await self._fill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _fill(self) -> float | None:
        """Seconds after which to look again."""
        now = self._clock.monotonic()
        if now < self._not_before:
            return self._not_before - now
        facts = [SpareFacts(each.name, each.key, each.created, each.ended) for each in self._spares.values()]
        called = {key: kind.called for key, kind in self._kinds.items()}
        plan = plan_spares(self._policy, called, facts, now, allowed=self._allowed())
        for name in plan.remove:
            await self.discard(name)
        for key in plan.create:
            if self._kinds[key].retry_at <= now:
                await self._create(key)
        for key in [key for key, kind in self._kinds.items() if now - kind.called >= self._policy.idle_seconds]:
            del self._kinds[key]
        waits = [kind.retry_at - now for kind in self._kinds.values() if kind.retry_at > now]
        waits += [plan.check_after] if plan.check_after is not None else []
        return min(waits) if waits else None

    async def _create(self, key: str) -> None:
        token = secrets.token_urlsafe(32)
        name = f"spare-actor-{secrets.token_hex(4)}"
        digest = hashlib.blake2b(token.encode(), digest_size=32).hexdigest()
        body = actor_pods.spare_pod(self._kinds[key].action, name, digest)
        spare = self._spares[name] = Spare(name, key, self._clock.monotonic(), token, body["spec"])
        try:
            made = await self._client.create(PODS.as_dynamic, body)
            spare.uid = made["metadata"]["uid"]
            if spare.seen is not None and self._owner is not None:
                self._look(spare, spare.seen)
        except ApiError as problem:
            # A quota, or whatever else refuses pods: functions do without.
            self._spares.pop(spare.name, None)
            self._failed(key, problem.message)

    def _failed(self, key: str, why: str) -> None:
        kind = self._kinds.get(key)
        if kind is None:
            return
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**kind.failures)
        kind.failures, kind.retry_at = kind.failures + 1, self._clock.monotonic() + pause
        log.info("A spare actor cannot be used", kind=key, why=why, again_seconds=pause)
