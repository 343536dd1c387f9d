"""The controller of Actions: their code in ConfigMaps, their actors as pods, their status. What it decides is in `plan.py` and `scaling.py`.

    Action ──> Secret (token), ConfigMap (code of a version)
    Action + load (dispatcher) ──scaling──> actors by version ──plan──> start | reload | remove pods
    ready actors ──> dispatcher

A call that waits (`wanted`) is an event like any other, so its actor is made at once: secret and code are there since the action was made.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from coterie.base.archives import InvalidFiles
from coterie.base.clock import Clock, parse_rfc3339, rfc3339
from coterie.base.log import logger
from coterie.engines.actor import exit_codes
from coterie.functions import actor_pods
from coterie.functions.actor_monitor import (
    TEMPLATE_ANNOTATION,
    ActorMonitor,
    ReloadRefused,
    ReloadUnsupported,
    TrackedActor,
)
from coterie.functions.messages import action_topic
from coterie.functions.model import ActionConfig, ActionLoad, ActorAddress
from coterie.functions.plan import ActorFacts, ActorState, failed_to_remove, plan_actors, traffic_now
from coterie.functions.pod_seal import SEAL_ANNOTATION, is_sealed, seal_of
from coterie.functions.pools import ActorPool, action_config, action_of_pool, pools_of
from coterie.functions.scaling import ScalingHistory, decide, spread_over_versions
from coterie.functions.spare_actors import ClaimRefused, Spare, SpareActors
from coterie.http.plain_client import Broken, HttpFailure
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Condition, Object, ObjectKey, find_condition, set_condition
from coterie.kube.api.types.core import CONFIG_MAPS, SECRETS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.content_hash import content_hash
from coterie.kube.control.controller import DONE, Controller, ControllerOwner, Result, Watches, own_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.finalizers import BeingDeleted, add_finalizer, remove_finalizer
from coterie.kuscia.api.functions.code import packed_code, version_name
from coterie.kuscia.api.functions.types import (
    ACTION_GRANTS,
    ACTIONS,
    ACTOR_PORT,
    DEFAULT_IMAGE,
    READY,
    RELOAD_FAILED,
    VERSION_LABEL,
    Action,
    ActionGrant,
    ActionStatus,
    ActionVersion,
)

log = logger("functions.controller")

FINALIZER = "coterie.io/functions"
_TICK_SECONDS = 1.0
_STATUS_SECONDS = 3.0
"""Between two writes of figures that change all the time."""
_REMOVED_SECONDS = 0.1
_EXPECTED_SECONDS = 60.0
_WANTED_SECONDS = 0.1
_LATER_SECONDS = 0.05
"""For what can wait while a call waits for its first actor: the node has one process for all of its work."""
_FIRST_RETRY, _LONGEST_RETRY = 0.5, 60.0
_SETTLED_SECONDS = 30.0
"""An actor that was ready for so long and then ended says nothing about the next one."""
_BAD_CODE = (exit_codes.BAD_CODE, exit_codes.LOAD_TIMEOUT)


class CallQueues(Protocol):
    """What the controller needs of the dispatcher."""

    def configure(self, actions: Mapping[str, ActionConfig]) -> None: ...

    def set_actors(self, action: str, actors: Sequence[ActorAddress]) -> None: ...

    def loads(self) -> Mapping[str, ActionLoad]: ...


class GatewayLifecycle(Protocol):
    """Gateways exist while there is an action."""

    async def ensure(self) -> None: ...

    async def remove(self) -> None: ...


class TopicNames(Protocol):
    async def topics(self) -> Mapping[str, int]: ...


@dataclass(slots=True)
class _PoolState:
    desired: int = 0
    history: ScalingHistory | None = None
    failures: int = 0
    retry_at: float = 0.0
    serving: tuple[ActorAddress, ...] = ()


@dataclass(slots=True)
class _ActionState:
    """What is kept of an action between two reconciles; all of it can be found again."""

    uid: str
    token: str = field(default="", repr=False)
    stored: set[str] = field(default_factory=set)
    """Versions whose ConfigMap is there."""
    finalizer: bool = False
    bad: dict[str, str] = field(default_factory=dict)
    """Versions that cannot be loaded, and why."""
    bad_templates: dict[str, str] = field(default_factory=dict)
    pools: dict[str, _PoolState] = field(default_factory=dict)
    status_at: float = 0.0
    status_not_before: float = 0.0
    last_scale: str | None = None


class ActionController(ControllerOwner):
    def __init__(
        self,
        client: Client,
        informers: Informers,
        queues: CallQueues,
        topics: TopicNames,
        monitor_of: Callable[[Callable[[str], None], Callable[[str, str], Awaitable[bool]]], ActorMonitor],
        events: EventRecorder,
        clock: Clock,
        namespace: str,
        *,
        gateways: GatewayLifecycle,
        spares: SpareActors,
        image: str = "",
    ) -> None:
        """`image`: of actions that name none, where it is not the usual one."""
        self._client = client
        self._queues = queues
        self._topics = topics
        self._events = events
        self._clock = clock
        self._namespace = namespace
        self._gateways = gateways
        self._spares = spares
        self._image = image
        self._states: dict[str, _ActionState] = {}
        self._configs: dict[str, ActionConfig] = {}
        self._wanted_at: dict[tuple[str, str], float] = {}
        self._expected: dict[str, tuple[float, int]] = {}
        """By pool: until when, and how many calls a minute."""
        self._configured: dict[str, ActionConfig] | None = None
        self.actions = informers.get(ACTIONS, namespace)
        self.grants = informers.get(ACTION_GRANTS, namespace)
        self.monitor = monitor_of(self.actors_changed, self._is_ours)
        self.monitor.became_ready = self._actor_ready
        self.controller = Controller(
            "functions-action",
            self.reconcile,
            [Watches(self.actions, own_key), Watches(self.grants, self._of_grant)],
            clock=clock,
            workers=4,
        )

    async def run(self) -> None:
        for informer in (self.actions, self.grants):
            await informer.ready.wait()
        await self.monitor.ready.wait()
        for action in self.actions.cache.list():
            if not action.metadata.deleting:
                self._configure(action, self._state(action))
        self._publish_configs()  # all at once: topics of actions that are not named are removed
        await self.controller.run()

    def wanted(self, pool: str, version: str = "") -> None:
        """A call waits. The dispatcher says so with every call: while there are actors, looking ten times a second is enough."""
        now = self._clock.monotonic()
        if now - self._wanted_at.get((pool, version), -1.0) < _WANTED_SECONDS:
            return
        self._wanted_at[pool, version] = now
        self.actors_changed(pool)

    def expect(self, pool: str, calls_per_minute: int) -> None:
        """A partner's call is coming, and says how many a minute may follow: for that long they count as if they were there."""
        now = self._clock.monotonic()
        until, rate = self._expected.get(pool, (0.0, 0))
        self._expected[pool] = (now + _EXPECTED_SECONDS, max(calls_per_minute, rate if until > now else 0, 1))
        if not self.monitor.of_pool(pool):
            self.actors_changed(pool)

    def _with_expected(self, pool: str, load: ActionLoad) -> ActionLoad:
        until, rate = self._expected.get(pool, (0.0, 0))
        if until <= self._clock.monotonic():
            self._expected.pop(pool, None)
            return load
        now = int(self._clock.now().timestamp() * 1000)
        return replace(load, calls=max(load.calls, rate), last_call=max(load.last_call, now))

    def actors_changed(self, pool: str) -> None:
        self.controller.enqueue(ObjectKey(self._namespace, action_of_pool(pool)))

    def stuck(self, actor: ActorAddress) -> None:
        self.monitor.stuck(actor.name)

    def loads_of(self, action: str) -> ActionLoad:
        return self._queues.loads().get(action, ActionLoad())

    def ready_actors(self) -> dict[str, int]:
        return {name: len(pool.serving) for state in self._states.values() for name, pool in state.pools.items()}

    def desired(self) -> dict[str, int]:
        return {name: pool.desired for state in self._states.values() for name, pool in state.pools.items()}

    def _of_grant(self, grant: ActionGrant) -> list[ObjectKey]:
        return [ObjectKey(self._namespace, grant.spec.action)]

    def _state(self, action: Action) -> _ActionState:
        name, uid = action.metadata.name, action.metadata.uid
        found = self._states.get(name)
        if found is None or found.uid != uid:
            found = self._states[name] = _ActionState(uid, last_scale=action.status.last_scale_time)
            problem = find_condition(action.status.conditions, RELOAD_FAILED)
            if problem is not None and problem.status == "True":
                version, _, why = problem.message.partition(": ")
                found.bad[version] = why
                found.bad_templates[version] = self._template(action)
        return found

    # One action.

    async def reconcile(self, key: ObjectKey) -> Result:
        action = self.actions.cache.by_key(key)
        if action is None:
            self._forget(key.name)
            return DONE
        if action.metadata.deleting:
            return await self._delete(action)
        state = self._state(action)
        try:
            version = version_name(action.spec)
        except InvalidFiles as problem:
            return await self._unusable(action, state, str(problem))
        await self._ensure_objects(action, state, version)
        self._forget_template_faults(action, state)
        facts = await self._run_pools(action, state, version)
        await self._gateways.ensure()
        await self._write_status(action, state, version, facts)
        loads = self._queues.loads()
        busy = any(
            pool.desired or pool.failures or loads.get(name, ActionLoad()).calls or loads.get(name, ActionLoad()).lag
            for name, pool in state.pools.items()
        )
        return Result(after=_TICK_SECONDS) if busy else DONE

    def _forget(self, name: str) -> None:
        state = self._states.pop(name, None)
        self._wanted_at = {key: at for key, at in self._wanted_at.items() if action_of_pool(key[0]) != name}
        for pool in state.pools if state is not None else ():
            self._queues.set_actors(pool, ())
        self._configs = {pool: each for pool, each in self._configs.items() if action_of_pool(pool) != name}
        self._publish_configs()

    async def _delete(self, action: Action) -> Result:
        name = action.metadata.name
        self._forget(name)
        for actor in [each for pool in self._pools(action) for each in self.monitor.of_pool(pool.name)]:
            await self._remove_pod(actor)
        if not action.metadata.has_finalizer(FINALIZER):
            return DONE
        if action_topic(name) in await self._topics.topics():
            return Result(after=_REMOVED_SECONDS)  # the dispatcher answers what still waits, then removes it
        if all(each.metadata.deleting for each in self.actions.cache.list()):
            await self._spares.remove_all()
            await self._gateways.remove()  # before the last action, which keeps this process
        await remove_finalizer(self._client, ACTIONS, name, self._namespace, FINALIZER, uid=action.metadata.uid)
        log.info("Action removed", action=name)
        return DONE

    async def _ensure_objects(self, action: Action, state: _ActionState, version: str) -> None:
        meta = action.metadata
        if not state.finalizer and not meta.has_finalizer(FINALIZER):
            try:
                await add_finalizer(self._client, ACTIONS, meta.name, self._namespace, FINALIZER)
            except (BeingDeleted, NotFound):
                return
        state.finalizer = True
        if not state.token:
            state.token = await self._ensure_token(action)
        if version not in state.stored:
            if action.spec.script or action.spec.archive:
                await self._ensure_code(action, version)
            state.stored.add(version)

    async def _ensure_code(self, action: Action, version: str) -> None:
        packed = b"" if action.spec.script else packed_code(action.spec)
        body = actor_pods.code_config_map(action, version, packed)
        name = body["metadata"]["name"]
        for _ in range(3):
            if await self._create(CONFIG_MAPS.as_dynamic, body):
                return
            with contextlib.suppress(NotFound):
                found = await self._client.get(CONFIG_MAPS.as_dynamic, name, self._namespace)
                same = all((found.get(field) or {}) == (body.get(field) or {}) for field in ("data", "binaryData"))
                if _is_owned(found, action) and same:
                    return
                # Of an action before this one, whose garbage collector has not come yet, or somebody else's.
                await self._client.delete(CONFIG_MAPS, name, self._namespace, uid=found["metadata"]["uid"])
        raise RuntimeError(f"the ConfigMap {name} cannot be made")

    async def _ensure_token(self, action: Action) -> str:
        name = actor_pods.token_name(action.metadata.name)
        for _ in range(3):
            try:
                found = await self._client.get(SECRETS.as_dynamic, name, self._namespace)
            except NotFound:
                await self._create(SECRETS.as_dynamic, actor_pods.token_secret(action, secrets.token_urlsafe(32)))
                continue
            if _is_owned(found, action):
                return base64.b64decode(found["data"][actor_pods.TOKEN_KEY]).decode()
            # Of an action before this one; the garbage collector has not come yet.
            await self._client.delete(SECRETS, name, self._namespace, uid=found["metadata"]["uid"])
        raise RuntimeError(f"the Secret {name} cannot be made")

    async def _create(self, kind: Kind[Object], body: Object) -> bool:
        """False: it is there already."""
        try:
            await self._client.create(kind, body)
        except AlreadyExists:
            return False
        return True

    async def _unusable(self, action: Action, state: _ActionState, why: str) -> Result:
        """Admission refuses such code; this one came another way."""
        condition = Condition(type=READY, status="False", reason="InvalidCode", message=why)
        conditions = set_condition(action.status.conditions, condition, rfc3339(self._clock.now()))
        if conditions != action.status.conditions:
            await self._patch_status(action, {"conditions": msgspec.to_builtins(conditions)})
        return DONE

    # Versions.

    def _history(self, action: Action, version: str) -> list[ActionVersion]:
        """Newest first."""
        known = [each for each in action.status.versions or () if each.name != version]
        ours = next((each for each in action.status.versions or () if each.name == version), None)
        created = ours.created if ours is not None else rfc3339(self._clock.now())
        return [ActionVersion(name=version, created=created), *known]

    def _shares(self, action: Action, state: _ActionState, version: str) -> dict[str, int]:
        """Percent by version, of versions that can be run."""
        known = {each.name for each in self._history(action, version)}
        if action.spec.traffic:
            return {
                each.version: each.percent
                for each in action.spec.traffic
                if each.percent > 0 and each.version in known and each.version not in state.bad
            }
        if version not in state.bad:
            return {version: 100}
        for each in self._history(action, version)[1:]:
            if each.name not in state.bad:
                return {each.name: 100}
        return {}

    def _forget_template_faults(self, action: Action, state: _ActionState) -> None:
        """What could not be loaded in another image or environment may be loadable now."""
        template = self._template(action)
        for version, seen in list(state.bad_templates.items()):
            if seen != template:
                del state.bad_templates[version]
                state.bad.pop(version, None)

    def _set_bad(self, action: Action, state: _ActionState, version: str, why: str) -> None:
        if version in state.bad:
            return
        state.bad[version] = why
        state.bad_templates[version] = self._template(action)
        log.warning("The code of an action cannot be loaded", action=action.metadata.name, version=version, why=why)
        self._event(action, "Warning", "ReloadFailed", f"Version {version} cannot be loaded: {why}")

    # Actors.

    def _pools(self, action: Action) -> list[ActorPool]:
        return pools_of(action.metadata.name, self.grants.cache.list(), action.spec.tables or ())

    def _configure(self, action: Action, state: _ActionState, shares: dict[str, int] | None = None) -> None:
        if shares is None:
            try:
                shares = self._shares(action, state, version_name(action.spec))
            except InvalidFiles:
                shares = {}
        problem = ""
        if not shares:
            why = "; ".join(f"{version}: {text}" for version, text in state.bad.items())
            problem = f"the action {action.metadata.name} has no version that can be run: {why or 'see its status'}"
        for pool in self._pools(action):
            self._configs[pool.name] = action_config(pool, action, shares, problem)
        mine = {each.name for each in self._pools(action)}
        for name in [each for each in self._configs if action_of_pool(each) == action.metadata.name]:
            if name not in mine:
                del self._configs[name]

    def _publish_configs(self) -> None:
        if self._configs != self._configured:
            self._configured = dict(self._configs)
            self._queues.configure(self._configured)

    async def _run_pools(self, action: Action, state: _ActionState, version: str) -> list[ActorFacts]:
        shares = self._shares(action, state, version)
        pools = self._pools(action)
        every: list[ActorFacts] = []
        for name in [each for each in state.pools if each not in {pool.name for pool in pools}]:
            del state.pools[name]
            self._queues.set_actors(name, ())
            for actor in self.monitor.of_pool(name):
                await self._remove_pod(actor)
        for pool in pools:
            every += await self._run_pool(action, state, pool, shares)
        return every

    async def _run_pool(
        self, action: Action, state: _ActionState, pool: ActorPool, shares: dict[str, int]
    ) -> list[ActorFacts]:
        kept = state.pools.setdefault(pool.name, _PoolState())
        actors = self.monitor.of_pool(pool.name)
        template = self._template(action, pool)
        self._look_at_failures(action, state, kept, actors)
        shares = self._shares(action, state, version_name(action.spec))
        self._scale(action, state, pool, kept, actors)
        wanted = spread_over_versions(kept.desired, shares)
        facts = [_facts(each) for each in actors]
        plan = plan_actors(wanted, template, facts)
        # First what somebody waits for.
        now = self._clock.monotonic()
        if plan.start and now >= kept.retry_at:
            state.status_not_before = now + _LATER_SECONDS
            await asyncio.gather(*(self._start(action, state, pool, version, template) for version in plan.start))
        elif plan.start:
            self.controller.enqueue(action.key, kept.retry_at - now)
        traffic = dict(traffic_now(shares, facts))
        self._configure(action, state, traffic)
        self._publish_configs()
        self._serve(state, pool, kept, [each for each in actors if each.name in plan.serving])
        by_name = {each.name: each for each in actors}
        if plan.reload:
            version = next(iter(wanted))
            await self._reload(action, state, [by_name[name] for name in plan.reload], version)
            self._serve(state, pool, kept, [each for each in actors if each.name in plan.serving])
        for name in plan.remove:
            await self._remove_pod(by_name[name])
        for each in actors:
            if each.stuck:
                await self._remove_pod(each)
        failed = [(each.created, each.name) for each in actors if each.state is ActorState.FAILED]
        ready = any(each.state is ActorState.READY for each in actors)
        for name in failed_to_remove(failed, ready):
            await self._remove_pod(by_name[name])
        return [_facts(each) for each in self.monitor.of_pool(pool.name)]

    def _serve(self, state: _ActionState, pool: ActorPool, kept: _PoolState, serving: Sequence[TrackedActor]) -> None:
        addresses = tuple(
            ActorAddress(each.name, pool.name, each.version, each.host, ACTOR_PORT, state.token)
            for each in sorted(serving, key=lambda actor: actor.name)
            if each.state is ActorState.READY and not each.stuck
        )
        if addresses != kept.serving:
            kept.serving = addresses
            self._queues.set_actors(pool.name, addresses)

    def _scale(
        self, action: Action, state: _ActionState, pool: ActorPool, kept: _PoolState, actors: Sequence[TrackedActor]
    ) -> None:
        clock = self._clock
        now = clock.monotonic()
        if kept.history is None:
            running = sum(each.state in (ActorState.STARTING, ActorState.READY) for each in actors)
            since = action.status.last_scale_time
            seconds = (clock.now() - parse_rfc3339(since)).total_seconds() if since else None
            kept.history, kept.desired = ScalingHistory.after_restart(running, now, seconds), running
        load = self._with_expected(pool.name, self._queues.loads().get(pool.name, ActionLoad()))
        if load.last_call and not pool.partner:
            since_call = clock.now().timestamp() - load.last_call / 1000
            self._spares.called(self._with_image(action), max(0.0, since_call))
        made = decide(
            action.spec.scaling,
            action.spec.concurrency,
            load,
            kept.desired,
            now,
            int(clock.now().timestamp() * 1000),
            kept.history,
        )
        kept.history = made.history
        if made.replicas != kept.desired:
            log.info("Action scaled", action=pool.name, before=kept.desired, now=made.replicas, lag=load.lag)
            state.last_scale = rfc3339(clock.now())
            kept.desired = made.replicas
            state.status_at = 0.0

    def _look_at_failures(
        self, action: Action, state: _ActionState, kept: _PoolState, actors: Sequence[TrackedActor]
    ) -> None:
        now = self._clock.monotonic()
        for each in actors:
            if each.state is ActorState.READY and now - each.since > _SETTLED_SECONDS:
                kept.failures = 0
            if each.state is not ActorState.FAILED or each.counted:
                continue
            each.counted = True
            if each.exit_code in _BAD_CODE and not each.was_ready:
                self._set_bad(action, state, each.version, each.message)
                continue
            if each.exit_code == exit_codes.DRAINED and each.was_ready:
                continue
            self._event(action, "Warning", "ActorFailed", f"Actor {each.name} ended: {each.message}")
            self._count_failure(kept)

    def _count_failure(self, kept: _PoolState) -> None:
        # The first is replaced at once.
        pause = 0.0 if not kept.failures else min(_LONGEST_RETRY, _FIRST_RETRY * 2.0 ** (kept.failures - 1))
        kept.failures += 1
        kept.retry_at = self._clock.monotonic() + pause

    async def _start(self, action: Action, state: _ActionState, pool: ActorPool, version: str, template: str) -> None:
        spare = self._spares.take(self._with_image(action)) if not pool.partner else None
        if spare is not None:
            self.monitor.claimed(spare.name, spare.uid, spare.host, pool.name, version, template)
            self._spares.start(f"claim {spare.name}", self._claim(spare, action, state, version, template))
            return
        name = f"{action.metadata.name}-{secrets.token_hex(4)}"
        body = actor_pods.actor_pod(
            self._with_image(action), version, name, pool=pool.name, partner=pool.partner, tables=pool.tables
        )
        meta = body["metadata"]
        seal = seal_of(self._state(action).token, name, body["spec"])
        meta["annotations"] = {**(meta.get("annotations") or {}), TEMPLATE_ANNOTATION: template, SEAL_ANNOTATION: seal}
        self.monitor.created(name, pool.name, version, template)
        try:
            created = await self._client.create(PODS.as_dynamic, body)
            self.monitor.made(name, created["metadata"]["uid"])
        except ApiError as problem:
            self.monitor.not_created(name)
            self._event(action, "Warning", "FailedCreate", f"Error creating: {problem.message}")
            if await self._spares.release():  # they may have what this one needs of a quota
                self.controller.enqueue(action.key)
            raise

    async def _is_ours(self, pod: str, pool: str) -> bool:
        """A pod that is there since before this process. One that says it is this action's and is not as it was made is removed, as any
        controller removes what it owns and cannot use."""
        await self.actions.ready.wait()
        action = self.actions.cache.by_key(ObjectKey(self._namespace, action_of_pool(pool)))
        if action is None:
            return False
        try:
            found = await self._client.get(PODS.as_dynamic, pod, self._namespace)
            secret = await self._client.get(
                SECRETS.as_dynamic, actor_pods.token_name(action.metadata.name), self._namespace
            )
        except NotFound:
            return False
        if is_sealed(found, base64.b64decode(secret["data"][actor_pods.TOKEN_KEY]).decode()):
            return True
        owners = found["metadata"].get("ownerReferences") or ()
        if any(each.get("controller") and each.get("uid") == action.metadata.uid for each in owners):
            with contextlib.suppress(NotFound):
                await self._client.delete(PODS, pod, self._namespace, grace=0, uid=found["metadata"]["uid"])
        return False

    async def _claim(self, spare: Spare, action: Action, state: _ActionState, version: str, template: str) -> None:
        """The spare actor is one of the action's from now on, and ends as one. Its pod gets its labels a moment later: should we end before, it
        is removed."""
        name = action.metadata.name
        metadata = actor_pods.claimed_metadata(action, version, name, spare.uid)
        seal = seal_of(state.token, spare.name, spare.spec)
        metadata["annotations"] = {TEMPLATE_ANNOTATION: template, SEAL_ANNOTATION: seal}

        try:
            variables = actor_pods.claimed_variables(action, version, state.token)
            code = await self._stored_code(action, version)
            renaming = self._spares.start(f"rename {spare.name}", self._spares.rename(spare, metadata, _LATER_SECONDS))
            await self._spares.claim(spare, variables, *code)
            self.monitor.answered(spare.name)
            if (refusal := await renaming) is not None:
                raise refusal
        except ClaimRefused as problem:
            log.info("A spare actor cannot load the code", action=name, actor=spare.name, why=problem)
        except (HttpFailure, ApiError) as problem:
            log.warning("A spare actor cannot be used", action=name, actor=spare.name, error=problem)
            if isinstance(problem, Broken):
                self._count_failure(state.pools.setdefault(name, _PoolState()))
            self.monitor.forget(spare.name)
            await self._spares.discard(spare.name)
            self.actors_changed(name)

    def _actor_ready(self, actor: TrackedActor) -> None:
        """Calls that wait for the first actor need not wait for the next reconcile as well."""
        state = self._states.get(action_of_pool(actor.pool))
        kept = state.pools.get(actor.pool) if state is not None else None
        config = self._configs.get(actor.pool)
        if state is None or kept is None or kept.serving or config is None or actor.version not in config.traffic:
            return
        kept.serving = (ActorAddress(actor.name, actor.pool, actor.version, actor.host, ACTOR_PORT, state.token),)
        self._queues.set_actors(actor.pool, kept.serving)

    async def _remove_pod(self, actor: TrackedActor) -> None:
        if actor.state is ActorState.LEAVING:
            return
        # A stuck one would use up its grace period; a failed one has nothing to finish.
        grace = 0 if actor.stuck or actor.state is ActorState.FAILED else None
        self.monitor.leaving(actor.name)
        with contextlib.suppress(NotFound):
            await self._client.delete(PODS, actor.name, self._namespace, grace=grace)

    async def _reload(self, action: Action, state: _ActionState, actors: Sequence[TrackedActor], version: str) -> None:
        handler, code = action.spec.handler, await self._code_of(action, version)

        async def one(actor: TrackedActor) -> None:
            if version in state.bad:
                return
            try:
                await self.monitor.reload(actor, version, handler, code, state.token)
            except ReloadRefused as problem:
                self._set_bad(action, state, version, str(problem))
                return
            except ReloadUnsupported:
                actor.fixed = True
                return
            except HttpFailure as problem:
                log.warning("An actor could not be reached with new code", actor=actor.name, error=problem)
                return
            log.info("Code replaced", actor=actor.name, version=version)
            patch = {"metadata": {"labels": {VERSION_LABEL: version}}}
            with contextlib.suppress(NotFound):  # it left meanwhile
                await self._client.patch(PODS.as_dynamic, actor.name, self._namespace, patch)

        await one(actors[0])  # one that cannot be loaded is asked of one actor only
        await asyncio.gather(*(one(each) for each in actors[1:]))
        self.controller.enqueue(action.key)

    async def _stored_code(self, action: Action, version: str) -> tuple[str, bytes]:
        """The file in the ConfigMap of the version: its name and content. A script as it is, or a .tar.gz."""
        spec = action.spec
        if version == version_name(spec):
            if spec.script:
                return actor_pods.SCRIPT_KEY, spec.script.encode("utf-8", "surrogatepass")
            return actor_pods.ARCHIVE_KEY, packed_code(spec)
        name = actor_pods.code_name(action.metadata.name, version)
        found = await self._client.get(CONFIG_MAPS.as_dynamic, name, self._namespace)
        script = (found.get("data") or {}).get(actor_pods.SCRIPT_KEY)
        if script is not None:
            return actor_pods.SCRIPT_KEY, script.encode("utf-8", "surrogatepass")
        archive = (found.get("binaryData") or {}).get(actor_pods.ARCHIVE_KEY, "")
        return actor_pods.ARCHIVE_KEY, base64.b64decode(archive)

    async def _code_of(self, action: Action, version: str) -> bytes:
        """As a .tar.gz."""
        file, content = await self._stored_code(action, version)
        if file == actor_pods.ARCHIVE_KEY:
            return content
        script = content.decode("utf-8", "surrogatepass")
        return packed_code(msgspec.structs.replace(action.spec, script=script, archive=""))

    def _with_image(self, action: Action) -> Action:
        if not self._image or action.spec.image != DEFAULT_IMAGE:
            return action
        return msgspec.structs.replace(action, spec=msgspec.structs.replace(action.spec, image=self._image))

    def _template(self, action: Action, pool: ActorPool | None = None) -> str:
        """Of everything about a pod that running actors cannot take over: not the code. A handler is no part of a version, so another one gets
        new pods."""
        body = actor_pods.actor_pod(self._with_image(action), "", "", pool=action.metadata.name)
        return content_hash(body["spec"] if pool is None or not pool.tables else [body["spec"], *pool.tables], None)

    # Status.

    async def _write_status(
        self, action: Action, state: _ActionState, version: str, facts: Sequence[ActorFacts]
    ) -> None:
        now = self._clock.monotonic()
        if now < state.status_not_before:
            self.controller.enqueue(action.key, state.status_not_before - now)
            return
        loads = [self._queues.loads().get(name, ActionLoad()) for name in state.pools]
        shares = self._shares(action, state, version)
        alive = [each for each in facts if each.state in (ActorState.STARTING, ActorState.READY)]
        history = [
            msgspec.structs.replace(
                each, percent=shares.get(each.name, 0), replicas=sum(actor.version == each.name for actor in alive)
            )
            for each in await self._trimmed(action, state, version, alive)
        ]
        ready = sum(each.state is ActorState.READY for each in alive)
        made = ActionStatus(
            observed_generation=action.metadata.generation,
            version=version,
            versions=tuple(history),
            desired_replicas=sum(each.desired for each in state.pools.values()),
            replicas=len(alive),
            ready_replicas=ready,
            calls_per_minute=sum(each.calls for each in loads),
            errors_per_minute=sum(each.errors for each in loads),
            cold_starts=sum(each.cold_starts for each in loads),
            dead_letters=sum(each.dead_letters for each in loads),
            last_scale_time=state.last_scale,
            conditions=self._conditions(action, state, version, shares, ready),
        )
        if made == action.status:
            return
        figures = msgspec.structs.replace(
            made,
            calls_per_minute=action.status.calls_per_minute,
            errors_per_minute=action.status.errors_per_minute,
            cold_starts=action.status.cold_starts,
        )
        if figures == action.status and now - state.status_at < _STATUS_SECONDS:
            self.controller.enqueue(action.key, _TICK_SECONDS)
            return
        state.status_at = now
        await self._patch_status(action, _status_body(made))

    def _conditions(
        self, action: Action, state: _ActionState, version: str, shares: Mapping[str, int], ready: int
    ) -> tuple[Condition, ...]:
        now, meta = rfc3339(self._clock.now()), action.metadata
        kept = action.status.conditions or ()
        found = [
            Condition(type=READY, status="True", reason="Available" if ready else "ScaledToZero"),
            Condition(type=RELOAD_FAILED, status="False", reason="Loaded"),
        ]
        if version in state.bad:
            message = f"{version}: {state.bad[version]}"
            found[1] = Condition(type=RELOAD_FAILED, status="True", reason="BadCode", message=message)
        missing = [each.version for each in action.spec.traffic or () if each.version not in shares and each.percent]
        actors = [each for name in state.pools for each in self.monitor.of_pool(name)]
        waiting = next((each.message for each in actors if each.state is ActorState.STARTING and each.message), "")
        failing = next((each.message for each in actors if each.state is ActorState.FAILED), "")
        wanted = any(each.desired for each in state.pools.values())
        if not shares:
            found[0] = Condition(type=READY, status="False", reason="BadCode", message="; ".join(state.bad.values()))
        elif missing:
            message = f"traffic names versions that are not there or cannot be loaded: {', '.join(missing)}"
            found[0] = Condition(type=READY, status="False", reason="UnknownVersion", message=message)
        elif wanted and not ready and (waiting or failing):
            reason = "ActorsFail" if failing else "ActorsDoNotStart"
            found[0] = Condition(type=READY, status="False", reason=reason, message=failing or waiting)
        elif wanted and not ready:
            found[0] = Condition(type=READY, status="True", reason="Starting")
        for each in found:
            kept = set_condition(kept, msgspec.structs.replace(each, observed_generation=meta.generation), now)
        return tuple(kept)

    async def _trimmed(
        self, action: Action, state: _ActionState, version: str, alive: Sequence[ActorFacts]
    ) -> list[ActionVersion]:
        """The history without what is more than `versionHistoryLimit`; versions with calls or actors stay."""
        history = self._history(action, version)
        used = {version, *self._shares(action, state, version), *(each.version for each in alive)}
        used |= {each.version for each in action.spec.traffic or ()}
        keep = max(1, action.spec.version_history_limit)
        kept: list[ActionVersion] = []
        for each in history:
            if len(kept) < keep or each.name in used:
                kept.append(each)
                continue
            name = actor_pods.code_name(action.metadata.name, each.name)
            state.stored.discard(each.name)
            with contextlib.suppress(NotFound):
                await self._client.delete(CONFIG_MAPS, name, self._namespace)
        return kept

    async def _patch_status(self, action: Action, status: Object) -> None:
        body = {"metadata": {"uid": action.metadata.uid}, "status": status}
        with contextlib.suppress(NotFound):
            await self._client.patch_status(ACTIONS.as_dynamic, action.metadata.name, self._namespace, body)

    def _event(self, action: Action, type_: str, reason: str, message: str) -> None:
        resource = ACTIONS.resource
        about = reference_to(action, api_version=resource.api_version, kind=resource.kind)
        self._events.record(about, "Warning" if type_ == "Warning" else "Normal", reason, message)


def _is_owned(found: Object, action: Action) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == action.metadata.uid for each in owners)


def _facts(actor: TrackedActor) -> ActorFacts:
    state = ActorState.FAILED if actor.stuck and actor.state is ActorState.READY else actor.state
    return ActorFacts(actor.name, actor.version, actor.template, state, 0, actor.fixed)


def _status_body(status: ActionStatus) -> Object:
    """All fields: one that is zero now replaces what was there."""
    made: Object = msgspec.to_builtins(status)
    defaults = {
        "desiredReplicas": 0,
        "replicas": 0,
        "readyReplicas": 0,
        "callsPerMinute": 0,
        "errorsPerMinute": 0,
        "coldStarts": 0,
        "deadLetters": 0,
    }
    return {**defaults, **made}
