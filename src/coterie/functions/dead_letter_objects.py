"""DeadLetter objects for calls that were given up: what people see, replay and delete. The calls themselves are on the bus.

A letter has an object soon after it was written, also when the process was killed in between; at most `LIMIT` for an action, the oldest first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.functions.dispatcher.dead_letters import DeadCall
from coterie.functions.messages import call_id
from coterie.functions.pools import action_of_pool
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kuscia.api.functions.types import ACTION_LABEL, ACTIONS, DEAD_LETTERS, Action, DeadLetter

log = logger("functions.deadletters")

LIMIT = 100
_MAX_REASON = 500


class LetterBox(Protocol):
    """What is needed of the dispatcher."""

    async def dead_letter_topics(self) -> Sequence[str]:
        """Actions and pools that may have dead letters."""

    async def dead_letters(self, action: str) -> list[DeadCall]: ...

    async def replay(self, action: str, request_uid: str, hop: int = 0) -> bool: ...

    async def drop(self, action: str, request_uid: str, hop: int = 0) -> bool: ...


def letter_name(letter: DeadCall) -> str:
    return f"{letter.action}-{call_id(letter.request_uid, letter.hop, letter.action)[:12]}"


def letter_object(action: Action, letter: DeadCall) -> Object:
    resource, meta = ACTIONS.resource, action.metadata
    owner = {"apiVersion": resource.api_version, "kind": resource.kind, "name": meta.name, "uid": meta.uid}
    return {
        "apiVersion": DEAD_LETTERS.resource.api_version,
        "kind": DEAD_LETTERS.resource.kind,
        "metadata": {
            "name": letter_name(letter),
            "namespace": meta.namespace,
            "labels": {ACTION_LABEL: letter.action},
            "ownerReferences": [owner],
        },
        "spec": {
            "action": letter.action,
            "request": letter.request_uid,
            "reason": letter.reason[:_MAX_REASON],
            "attempts": letter.attempts,
            "size": letter.size,
            "contentType": letter.content_type,
            "time": rfc3339(datetime.fromtimestamp(letter.time / 1000, UTC)),
        },
    }


class DeadLetterObjects:
    """Keys are actions (pools): all letters of one are looked at together."""

    def __init__(self, client: Client, informers: Informers, letters: LetterBox, clock: Clock, namespace: str) -> None:
        self._client = client
        self._letters = letters
        self._namespace = namespace
        self._known: dict[str, set[str]] = {}
        """Objects that were seen, by pool: one that is missing now was deleted by somebody."""
        self.actions = informers.get(ACTIONS, namespace)
        self.objects = informers.get(DEAD_LETTERS, namespace)
        self.objects.add_handler(self._seen)
        self._first_look: set[str] = set()
        """Actions whose letters were looked at since the start."""
        self.controller = Controller(
            "functions-deadletter",
            self.reconcile,
            [Watches(self.actions, self._of_action), Watches(self.objects, self._of_object)],
            clock=clock,
            workers=1,
        )

    def changed(self, letter: DeadCall) -> None:
        """The dispatcher gave up a call."""
        self.controller.enqueue(ObjectKey(self._namespace, letter.action))

    def _seen(self, change: ObjectChange[DeadLetter]) -> None:
        if change.type != "deleted":
            self._known.setdefault(change.object.spec.action, set()).add(change.object.metadata.name)

    def _of_action(self, action: Action) -> Sequence[ObjectKey]:
        """Once for each action, when the process starts or the action is made."""
        return () if action.metadata.name in self._first_look else (action.key,)

    def _of_object(self, letter: DeadLetter) -> Sequence[ObjectKey]:
        return (ObjectKey(self._namespace, letter.spec.action),)

    async def reconcile(self, key: ObjectKey) -> Result:
        pool = key.name
        action = self.actions.cache.by_key(ObjectKey(self._namespace, action_of_pool(pool)))
        if action is None or action.metadata.deleting:
            self._known.pop(pool, None)
            self._first_look.discard(pool)
            return DONE
        if pool not in self._first_look:
            self._first_look.add(pool)
            for each in await self._letters.dead_letter_topics():
                if each not in self._first_look and action_of_pool(each) == pool:  # of its calls for partners
                    self.controller.enqueue(ObjectKey(self._namespace, each))
        letters = {letter_name(each): each for each in await self._letters.dead_letters(pool)}
        # After the wait: what is known and what is there must be of one moment, or a new object would count as deleted.
        there = {each.metadata.name: each for each in self.objects.cache.list() if each.spec.action == pool}
        known = self._known.setdefault(pool, set())
        for name in [each for each in known if each not in there]:
            known.discard(name)
            if name in letters:
                letter = letters.pop(name)
                await self._letters.drop(pool, letter.request_uid, letter.hop)
                log.info("Dead letter dropped", action=pool, request=letter.request_uid)
        for name, found in there.items():
            letter_of = letters.get(name)
            if letter_of is not None and found.spec.replay:
                await self._letters.replay(pool, letter_of.request_uid, letter_of.hop)
                log.info("Dead letter replayed", action=pool, request=letter_of.request_uid)
                letters.pop(name)
            if name not in letters:  # replayed, or too old
                known.discard(name)
                await self._delete(found)
        missing = [
            each for each in sorted(letters.values(), key=lambda each: each.time) if letter_name(each) not in there
        ]
        for letter in missing[: max(0, LIMIT - len(there))]:
            await self._create(action, letter)  # it is known when the cache has it
        return DONE

    async def _create(self, action: Action, letter: DeadCall) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(DEAD_LETTERS.as_dynamic, letter_object(action, letter))

    async def _delete(self, letter: DeadLetter) -> None:
        meta = letter.metadata
        with contextlib.suppress(NotFound):
            await self._client.delete(DEAD_LETTERS, meta.name, meta.namespace, uid=meta.uid)
