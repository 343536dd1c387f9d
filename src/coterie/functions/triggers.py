"""What calls actions besides HTTP: schedules, records of a topic, changes of tables. And the table of HTTP triggers for gateways.

Every call has a request id that follows from its cause, and whoever accepts calls drops an id that it has seen. So a cause that is looked at
again after a crash is one call all the same:

    schedule     the trigger and the time       written down: status.lastCallTime      missed runs are made up for by one
    topic        the trigger, the offset and the record's time     committed after the call
    DomainData   the trigger, the table's uid and its generation      written down in a ConfigMap of the trigger
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
import orjson

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock, parse_rfc3339, rfc3339
from coterie.base.log import logger
from coterie.base.tasks import TaskFailed, TaskOwner
from coterie.functions.bus.protocol import Bus, BusError, Commit, Record, UnknownTopic
from coterie.functions.dispatcher.dispatcher import UnknownAction
from coterie.functions.messages import Invoke, dead_letter_topic, is_own_topic, payload_of
from coterie.functions.topic_records import MOST_VALUE, TopicRecords
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Condition, Object, ObjectKey, set_condition
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.controller import DONE, Controller, ControllerOwner, Result, Watches, own_key
from coterie.kube.controllers.cronjob import schedule
from coterie.kuscia.api.functions.types import ACTIONS, READY, TRIGGERS, Trigger
from coterie.kuscia.api.types.data import DOMAIN_DATAS, DomainData

log = logger("functions.triggers")

_NAMESPACE = uuid.UUID("5d3f4b57-6d2c-4d53-9f2e-0d5a0f2f6c11")
_READ_AT_ONCE, _READ_SECONDS = 100, 20.0
_PAUSE = Policy(first=0.2, factor=2.0, limit=10.0, jitter=0.2)
_RECHECK_SECONDS = 5.0
_NOTED_SECONDS = 10.0
"""Between two writes of a topic's last call."""
_LONGEST_KEY = 256
"""Of other clients of Kafka a key may be longer."""
_STATE_KEY = "tables"


class CallIntake(Protocol):
    async def submit(self, invoke: Invoke, *, repeated: bool = True) -> object:
        """The call is on the bus when it returns. One whose id was accepted before is dropped. Raises BusError and UnknownAction."""


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """For gateways: what they serve."""

    path: str
    action: str
    methods: tuple[str, ...]
    """Empty: all."""
    key: str
    """The query parameter whose value orders calls."""


def request_uid(trigger: Trigger, cause: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{trigger.metadata.uid}\n{cause}"))


def topic_fault(trigger: Trigger) -> str:
    """Why its topic cannot be read; empty: it can. Records that calls themselves make would call for ever."""
    topic = trigger.spec.topic
    if topic == dead_letter_topic(trigger.spec.action):
        return f'topic "{topic}" has the calls that "{trigger.spec.action}" gave up: another action may read it'
    if is_own_topic(topic) and not topic.endswith(dead_letter_topic("")):
        return f'topic "{topic}" belongs to functions themselves'
    return ""


def scheduled_time(trigger: Trigger, now: datetime) -> datetime | None:
    """The latest moment that is due and was not called yet; None: none is."""
    last = trigger.status.last_call_time or trigger.metadata.creation_timestamp
    after = parse_rfc3339(last) if last else now
    return schedule.parse(trigger.spec.schedule).latest(after, now)


def changed_tables(seen: Mapping[str, str], tables: Iterable[DomainData], only: str) -> list[tuple[DomainData, str]]:
    """Tables whose content changed since `seen` (generations by uid), each with what happened to it."""
    found = []
    for each in tables:
        meta = each.metadata
        if only not in ("", meta.name) or meta.deleting:
            continue
        before = seen.get(meta.uid)
        if before != _generation(each):
            found.append((each, "created" if before is None else "updated"))
    return sorted(found, key=lambda pair: pair[0].metadata.name)


def _generation(table: DomainData) -> str:
    return str(table.metadata.generation)


def generations(tables: Iterable[DomainData], only: str) -> dict[str, str]:
    return {each.metadata.uid: _generation(each) for each in tables if only in ("", each.metadata.name)}


def state_name(trigger: str) -> str:
    """Of the ConfigMap that has what a trigger saw of tables."""
    return f"trigger-{trigger}"


class TriggerController(ControllerOwner):
    def __init__(
        self,
        client: Client,
        informers: Informers,
        bus: Bus,
        intake: CallIntake,
        clock: Clock,
        namespace: str,
        routes_changed: Callable[[Sequence[HttpRoute]], None],
        records: TopicRecords,
    ) -> None:
        self._client = client
        self._informers = informers
        self._bus = bus
        self._intake = intake
        self._clock = clock
        self._namespace = namespace
        self._routes_changed = routes_changed
        self._records = records
        self._routes: list[HttpRoute] | None = None
        self._owner = TaskOwner("topic-triggers")
        self._readers: dict[str, tuple[tuple[str, str, int], asyncio.Task[None]]] = {}
        """By uid: what it was started for, and the task."""
        self._noted: dict[str, float] = {}
        """When the last call of a topic was written down, by the trigger's uid."""
        self.triggers = informers.get(TRIGGERS, namespace)
        self.actions = informers.get(ACTIONS, namespace)
        self._watching_tables = False
        self.controller = Controller(
            "functions-trigger",
            self.reconcile,
            [Watches(self.triggers, own_key), Watches(self.actions, self._of_action)],
            clock=clock,
            workers=2,
        )

    async def run(self) -> None:
        self._update_routes()  # also of a domain without triggers: gateways take calls when they know their paths
        async with self._owner:
            await self.controller.run()

    def _of_action(self, action: object) -> list[ObjectKey]:
        name = action.metadata.name  # type: ignore[attr-defined]
        return [each.key for each in self.triggers.cache.list() if each.spec.action == name]

    async def reconcile(self, key: ObjectKey) -> Result:
        self._update_routes()
        trigger = self.triggers.cache.by_key(key)
        if trigger is None or trigger.metadata.deleting:
            self._stop_readers()
            return DONE
        fault = topic_fault(trigger) if trigger.spec.topic else ""
        if not fault and self.actions.cache.by_key(ObjectKey(self._namespace, trigger.spec.action)) is None:
            fault = f'there is no action "{trigger.spec.action}"'
        await self._write_condition(trigger, fault)
        if fault or trigger.spec.suspend:
            self._stop_readers()
            return DONE
        if trigger.spec.topic:
            self._read_topic(trigger)
        if trigger.spec.domain_data is not None:
            await self._tables(trigger)
        if trigger.spec.schedule:
            return await self._schedule(trigger)
        return DONE

    # HTTP.

    def _update_routes(self) -> None:
        found = http_routes(self.triggers.cache.list(), {each.metadata.name for each in self.actions.cache.list()})
        if found != self._routes:
            self._routes = found
            self._routes_changed(found)
        groups: dict[str, list[str]] = {}
        for each in self.triggers.cache.list():
            if each.spec.topic and not each.metadata.deleting and not topic_fault(each):
                groups.setdefault(each.spec.topic, []).append(trigger_group(each))
        self._records.set_topics(groups)

    # Schedules.

    async def _schedule(self, trigger: Trigger) -> Result:
        now = self._clock.now()
        due = scheduled_time(trigger, now)
        if due is not None:
            at = rfc3339(due)
            params = {**(trigger.spec.params or {}), "time": at}
            await self._intake.submit(
                Invoke(request_uid=request_uid(trigger, at), action=trigger.spec.action, return_topic="", params=params)
            )
            await self._write_last_call(trigger, at)
        coming = schedule.parse(trigger.spec.schedule).next_after(now)
        return Result(after=max(0.05, (coming - now).total_seconds())) if coming is not None else DONE

    # Tables.

    async def _tables(self, trigger: Trigger) -> None:
        assert trigger.spec.domain_data is not None
        informer = self._informers.get(DOMAIN_DATAS, self._namespace)
        if not self._watching_tables:
            self._watching_tables = True
            informer.add_handler(lambda _: self._tables_changed())
        await informer.ready.wait()
        tables, only = informer.cache.list(), trigger.spec.domain_data.name
        seen = await self._seen_tables(trigger)
        if seen is None:
            await self._write_seen(trigger, generations(tables, only), new=True)  # what is there before it is no change
            return
        changes = changed_tables(seen, tables, only)
        for table, event in changes:
            meta = table.metadata
            params = {**(trigger.spec.params or {}), "name": meta.name, "event": event}
            cause = f"{meta.uid}\n{_generation(table)}"
            await self._intake.submit(
                Invoke(
                    request_uid=request_uid(trigger, cause),
                    action=trigger.spec.action,
                    return_topic="",
                    params=params,
                    key=meta.name,
                )
            )
        now = generations(tables, only)
        if now != seen:
            await self._write_seen(trigger, now)
        if changes:
            await self._write_last_call(trigger, rfc3339(self._clock.now()))

    def _tables_changed(self) -> None:
        for each in self.triggers.cache.list():
            if each.spec.domain_data is not None:
                self.controller.enqueue(each.key)

    async def _seen_tables(self, trigger: Trigger) -> dict[str, str] | None:
        try:
            found = await self._client.get(CONFIG_MAPS.as_dynamic, state_name(trigger.metadata.name), self._namespace)
        except NotFound:
            return None
        owners = found["metadata"].get("ownerReferences") or ()
        if not any(each.get("uid") == trigger.metadata.uid for each in owners):
            return None  # of a trigger before it
        try:
            return msgspec.json.decode((found.get("data") or {}).get(_STATE_KEY, "{}"), type=dict[str, str])
        except msgspec.MsgspecError:
            return {}

    async def _write_seen(self, trigger: Trigger, seen: Mapping[str, str], *, new: bool = False) -> None:
        name = state_name(trigger.metadata.name)
        body: Object = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self._namespace, "ownerReferences": [owner_reference(trigger)]},
            "data": {_STATE_KEY: orjson.dumps(dict(seen)).decode()},
        }
        if new:
            try:
                await self._client.create(CONFIG_MAPS.as_dynamic, body)
                return
            except AlreadyExists:
                pass
        await self._client.patch(
            CONFIG_MAPS.as_dynamic,
            name,
            self._namespace,
            {"metadata": {"ownerReferences": body["metadata"]["ownerReferences"]}, "data": body["data"]},
        )

    # Topics.

    def _read_topic(self, trigger: Trigger) -> None:
        self._stop_readers()
        uid, started_for = trigger.metadata.uid, (trigger.spec.topic, trigger.spec.action, trigger.metadata.generation)
        if uid not in self._readers:
            task = self._owner.start(trigger.metadata.name, self._read_for_ever(trigger), vital=False)
            self._readers[uid] = (started_for, task)

    def _stop_readers(self) -> None:
        """Of triggers that are gone, suspended or different."""
        wanted = {
            each.metadata.uid: (each.spec.topic, each.spec.action, each.metadata.generation)
            for each in self.triggers.cache.list()
            if each.spec.topic and not each.spec.suspend and not each.metadata.deleting and not topic_fault(each)
        }
        for uid, (started_for, task) in list(self._readers.items()):
            if wanted.get(uid) != started_for or task.done():
                task.cancel()
                del self._readers[uid]
                self._noted.pop(uid, None)

    async def _read_for_ever(self, trigger: Trigger) -> None:
        backoff = Backoff(_PAUSE)
        while True:
            try:
                partitions = await self._bus.share_topic(trigger.spec.topic)
                async with TaskOwner(f"trigger-{trigger.metadata.name}") as owner:
                    owner.start("look", self._records.look(trigger.spec.topic), endless=True)
                    for number in range(partitions):
                        owner.start(f"partition-{number}", self._read_partition(trigger, number, backoff), endless=True)
                    await owner.wait()
            except BusError as problem:
                log.warning("A topic cannot be read", trigger=trigger.metadata.name, error=problem)
            except TaskFailed as failure:
                if not isinstance(failure.__cause__, UnknownTopic):
                    raise
                log.info("A topic is gone and is made again", trigger=trigger.metadata.name, topic=trigger.spec.topic)
            await self._clock.sleep(backoff.failed())

    async def _read_partition(self, trigger: Trigger, number: int, backoff: Backoff) -> None:
        """UnknownTopic: it was deleted."""
        topic, group = trigger.spec.topic, trigger_group(trigger)
        offset: int | None = None
        while True:
            try:
                if offset is None:
                    offset = await self._begin(group, topic, number)
                records = await self._bus.read(topic, number, offset, _READ_AT_ONCE, _READ_SECONDS)
                for record in records:
                    if len(record.value) > MOST_VALUE:
                        log.error("A record is too large for a call and is left out", topic=topic, offset=record.offset)
                    else:
                        await self._intake.submit(call_of_record(trigger, record))
                    offset = record.offset + 1
                    await self._bus.publish([], [Commit(group, topic, number, offset)])
                    backoff.succeeded()
                if records:
                    await self._note_call(trigger)
            except UnknownTopic:
                raise
            except (BusError, UnknownAction) as problem:
                # An action that is not there is made, or the trigger is found to be unusable and this task is cancelled.
                log.warning("Records of a topic wait", trigger=trigger.metadata.name, error=problem)
                await self._clock.sleep(backoff.failed())

    async def _begin(self, group: str, topic: str, number: int) -> int:
        """Where to go on. An offset beyond the end is of an earlier topic of this name, which somebody removed from the broker."""
        offset = (await self._bus.committed(group, topic)).get(number, 0)
        return offset if offset <= (await self._bus.ends(topic)).get(number, 0) else 0

    async def _note_call(self, trigger: Trigger) -> None:
        """In the status, now and then."""
        uid, now = trigger.metadata.uid, self._clock.monotonic()
        if now - self._noted.get(uid, -_NOTED_SECONDS) < _NOTED_SECONDS:
            return
        self._noted[uid] = now
        try:
            await self._write_last_call(trigger, rfc3339(self._clock.now()))
        except (ApiError, TransportError) as problem:
            log.debug("The status of a trigger was not written", trigger=trigger.metadata.name, error=problem)

    # Status.

    async def _write_condition(self, trigger: Trigger, fault: str) -> None:
        meta, status = trigger.metadata, trigger.status
        condition = Condition(
            type=READY,
            status="False" if fault else "True",
            reason="NotUsable" if fault else "Suspended" if trigger.spec.suspend else "Installed",
            message=fault,
            observed_generation=meta.generation,
        )
        conditions = set_condition(status.conditions, condition, rfc3339(self._clock.now()))
        if conditions != status.conditions or status.observed_generation != meta.generation:
            patch = {"conditions": msgspec.to_builtins(conditions), "observedGeneration": meta.generation}
            await self._patch_status(trigger, patch)

    async def _write_last_call(self, trigger: Trigger, at: str) -> None:
        await self._patch_status(trigger, {"lastCallTime": at})

    async def _patch_status(self, trigger: Trigger, patch: Object) -> None:
        body = {"metadata": {"uid": trigger.metadata.uid}, "status": patch}
        await self._client.patch_status(TRIGGERS.as_dynamic, trigger.metadata.name, self._namespace, body)


def http_routes(triggers: Iterable[Trigger], actions: set[str]) -> list[HttpRoute]:
    """Of two triggers for one path, the older has it."""
    found: dict[tuple[str, tuple[str, ...]], HttpRoute] = {}
    usable = [each for each in triggers if each.spec.http is not None and not each.spec.suspend]
    for each in sorted(usable, key=lambda trigger: (trigger.metadata.creation_timestamp or "", trigger.metadata.name)):
        http = each.spec.http
        assert http is not None
        if each.metadata.deleting or each.spec.action not in actions:
            continue
        methods = tuple(sorted(method.upper() for method in http.methods or ()))
        route = HttpRoute(http.path, each.spec.action, methods, http.key)
        found.setdefault((http.path, methods), route)
    return sorted(found.values(), key=lambda route: (route.path, route.methods))


def call_of_record(trigger: Trigger, record: Record) -> Invoke:
    # With its time: a topic that was made again counts from 0 again.
    cause = f"{record.topic}\n{record.partition}\n{record.offset}\n{record.time}"
    payload, encoded = payload_of(record.value)
    return Invoke(
        request_uid=request_uid(trigger, cause),
        action=trigger.spec.action,
        return_topic="",
        params=dict(trigger.spec.params or {}),
        payload=payload,
        payload_base64=encoded,
        key=record.key if len(record.key) <= _LONGEST_KEY else hashlib.sha256(record.key.encode()).hexdigest(),
    )


def trigger_group(trigger: Trigger) -> str:
    return f"trigger-{trigger.metadata.uid}"


def owner_reference(trigger: Trigger) -> Object:
    resource, meta = TRIGGERS.resource, trigger.metadata
    return {"apiVersion": resource.api_version, "kind": resource.kind, "name": meta.name, "uid": meta.uid}
