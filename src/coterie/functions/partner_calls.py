"""What calls between domains (`hops/`) ask of the dispatcher and of the controller of actions."""

from __future__ import annotations

from coterie.functions.bus.protocol import Position
from coterie.functions.controller import ActionController
from coterie.functions.dispatcher.dispatcher import CallDispatcher
from coterie.functions.messages import FunctionResponse
from coterie.functions.model import ActionLoad


class PartnerCalls:
    """`LocalFunctions` of hops."""

    def __init__(self, dispatcher: CallDispatcher, actions: ActionController, namespace: str) -> None:
        self._dispatcher = dispatcher
        self._actions = actions
        self._namespace = namespace

    def wanted(self, pool: str, calls_per_minute: int) -> None:
        self._actions.expect(pool, calls_per_minute)

    def has_room(self, pool: str, size: int) -> bool:
        return self._dispatcher.has_room(pool, size)

    def added(self, pool: str, size: int) -> None:
        self._dispatcher.added(pool, size)

    def version(self, pool: str, request_uid: str) -> str:
        return self._dispatcher.version_of(pool, request_uid)

    def expected_calls(self, source: str, target: str) -> int:
        """The calls of the source in the last minute, shared by all that it may call."""
        action = self._actions.actions.cache.get(source, self._namespace)
        if action is None or target not in action.spec.targets:
            return 0
        return self._dispatcher.loads().get(source, ActionLoad()).calls // len(action.spec.targets)

    def result_published(self, response: FunctionResponse, position: Position) -> None:
        self._dispatcher.result_published(response, position)
