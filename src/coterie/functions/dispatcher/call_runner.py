"""Runs one call in an actor, and writes what it leads to.

    answer | next call | undeclared target, too large      ─> done
    unreachable actor                                     ─> another one, at once
    actor ended | out of time                             ─> counted; again after a while, or given up: 502, 504 and a dead letter
    first part of a streamed answer                       ─> from here on not again

Each arrow is one publish, together with the note of the partition's commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from random import Random

import msgspec

from coterie.base.backoff import Policy, delay
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.functions.bus.protocol import Entry
from coterie.functions.call_traces import child_traceparent
from coterie.functions.dispatcher.acceptance import CallAcceptance
from coterie.functions.dispatcher.actor_client import (
    ActorAnswer,
    ActorCaller,
    ActorFailed,
    ActorTimeout,
    ActorUnreachable,
    AnswerTooLarge,
    CallHead,
)
from coterie.functions.dispatcher.answers import (
    answer_entries,
    dead_letter_entry,
    encode,
    invoke_entry,
    next_invoke,
    plain_name,
    problem_response,
    record_entry,
    refused_target,
    result_entry,
    user_response,
)
from coterie.functions.dispatcher.dead_letters import dead_call
from coterie.functions.dispatcher.lane import ActorPlaces, CallPhase, PendingCall
from coterie.functions.dispatcher.output_writer import Output, OutputWriter
from coterie.functions.dispatcher.progress import PartitionProgress
from coterie.functions.dispatcher.served_action import DispatcherEvents, DispatcherLimits, ServedAction
from coterie.functions.dispatcher.streams import MAX_PART, StreamWindows
from coterie.functions.messages import CallRecord, FunctionResponse, GivenUpCall, body_of, call_id, payload_of
from coterie.functions.model import ActionConfig, ActorAddress

log = logger("functions.calls")

_END_SECONDS = 3.0
"""Within which the pod of an actor that ended says why."""
_UNREACHABLE = Policy(first=0.05, factor=2.0, limit=5.0, jitter=0.3)


class CallRunner:
    def __init__(
        self,
        caller: ActorCaller,
        writer: OutputWriter,
        calls: CallAcceptance,
        streams: StreamWindows,
        *,
        events: DispatcherEvents,
        limits: DispatcherLimits,
        clock: Clock,
        random: Random | None,
        configs: Callable[[], Mapping[str, ActionConfig]],
        pump: Callable[[ServedAction], None],
    ) -> None:
        """`pump`: begins what can begin, after a place became free or a call ended."""
        self._caller = caller
        self._writer = writer
        self._calls = calls
        self._streams = streams
        self._events = events
        self._limits = limits
        self._clock = clock
        self._random = random
        self._configs = configs
        self._pump = pump

    async def run(self, served: ServedAction, call: PendingCall, places: ActorPlaces) -> None:
        started = self._clock.monotonic()
        if served.lane.config.own_tables and call.invoke.origin:
            served.lane.release(places)
            await self.end(
                served,
                call,
                403,
                f"action {plain_name(served.lane.config.name)} reads tables of our own: calls of partners do not go on there",
            )
            return
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                served.lane.release(places)
                self._pump(served)

        try:
            answer = await self._attempt(served, call, places)
            if answer is None:
                return
            places.failures = 0
            await self._use(served, call, places, answer, started, release)
        except ActorUnreachable as problem:
            release()
            await self._unreachable(served, call, places, str(problem))
        except ActorTimeout as problem:
            served.lane.retire(places)
            release()
            self._events.stuck(places.address)
            await self._failed(served, call, 504, str(problem))
        except ActorFailed as problem:
            release()
            await self._failed(served, call, 502, str(problem), places.address)
        finally:
            release()
            if places.removed and not places.running:
                await self._caller.forget(places.address)

    async def _attempt(self, served: ServedAction, call: PendingCall, places: ActorPlaces) -> ActorAnswer | None:
        """None: its deadline has passed meanwhile, and it was answered."""
        invoke, config = call.invoke, served.lane.config
        head = CallHead(
            id=call_id(invoke.request_uid, invoke.hop, plain_name(invoke.action)),
            request=invoke.request_uid,
            action=plain_name(invoke.action),
            path=invoke.trigger_path,
            params=invoke.params,
            content_type=invoke.content_type,
            headers=invoke.headers,
            deadline=invoke.deadline,
            attempt=call.attempts,
            traceparent=child_traceparent(invoke),
        )
        left = (invoke.deadline - self._now()) / 1000 if invoke.deadline else config.timeout
        exchange = self._caller.invoke(places.address, head, body_of(invoke), config.timeout)
        if left >= config.timeout:
            return await exchange
        # Whoever called does not wait as long as the action may take; its code goes on, and its place stays taken.
        running = served.start("late call", _outcome(exchange))
        timer = served.start("deadline", self._clock.sleep(left))
        try:
            await asyncio.wait((running, timer), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                call.phase = CallPhase.ANSWERED
                await self.end(served, call, 504, "the call was not answered before its deadline")
            outcome: ActorAnswer | Exception = await running
        finally:
            timer.cancel()
            running.cancel()
        late = call.phase is CallPhase.ANSWERED
        if isinstance(outcome, ActorTimeout) and late:
            served.lane.retire(places)
            self._events.stuck(places.address)
        if isinstance(outcome, Exception):
            if late:
                return None
            raise outcome
        if late:
            outcome.close()
            return None
        return outcome

    async def _use(
        self,
        served: ServedAction,
        call: PendingCall,
        places: ActorPlaces,
        answer: ActorAnswer,
        started: float,
        release: Callable[[], None],
    ) -> None:
        invoke, config, limit = call.invoke, served.lane.config, self._limits.max_answer
        head = answer.head
        try:
            if head.response is not None:
                if answer.streamed and invoke.return_topic and not invoke.origin:
                    await self._stream(served, call, places, answer, started)
                    return
                body = await answer.body(limit)
                release()
                response = user_response(invoke, head.response, body)
                failed = bool(head.response.error) or response.status_code >= 500
                await self._answer(served, call, response, started, failed)
                return
            assert head.invoke is not None, "the client checked it"
            body = await answer.body(limit)
        except AnswerTooLarge:
            release()
            message = f"the answer of action {plain_name(config.name)} is larger than {limit} bytes"
            await self.end(served, call, 502, message, started)
            return
        release()
        problem = refused_target(config, head.invoke, invoke.hop)
        if problem:
            await self.end(served, call, 500, problem, started)
            return
        following = next_invoke(invoke, head.invoke, body, self._configs())
        entry = invoke_entry(following)
        gone = f"action {plain_name(config.name)} calls {head.invoke.action}, which is not there"
        call.phase = CallPhase.ANSWERED
        record, recorded = self._recorded(served, call, started, error=False)

        def without(missing: frozenset[str]) -> list[Entry]:
            if entry.topic not in missing:
                return [entry, recorded]
            return [*answer_entries(invoke, problem_response(invoke, 500, gone)), recorded]

        output = Output([entry, recorded], call.partition, lambda progress: progress.finish(call.offset), without)
        positions = await self._writer.put(output)
        await self._ended(served, call, record)
        if output.entries and output.entries[0] is not entry:
            await self._calls.add_results(problem_response(invoke, 500, gone), output.entries, positions)

    def _recorded(
        self, served: ServedAction, call: PendingCall, started: float, *, error: bool
    ) -> tuple[CallRecord, Entry]:
        milliseconds = (self._clock.monotonic() - started) * 1000 if started else 0.0
        return record_entry(call, served.lane.config.name, milliseconds, error)

    async def _answer(
        self, served: ServedAction, call: PendingCall, response: FunctionResponse, started: float, error: bool,
        more: Sequence[Entry] = (),
    ) -> None:  # fmt: skip
        call.phase = CallPhase.ANSWERED
        record, recorded = self._recorded(served, call, started, error=error)
        entries = [*answer_entries(call.invoke, response), recorded, *more]
        output = Output(entries, call.partition, lambda progress: progress.finish(call.offset))
        positions = await self._writer.put(output)
        await self._calls.add_results(response, output.entries, positions)
        await self._ended(served, call, record)

    async def end(
        self, served: ServedAction, call: PendingCall, status: int, message: str, started: float = 0.0
    ) -> None:
        await self._answer(served, call, problem_response(call.invoke, status, message), started, error=True)

    async def _ended(self, served: ServedAction, call: PendingCall, record: CallRecord) -> None:
        """What it led to is on the bus."""
        served.counter.ended(record)
        self._events.ended(record, call.invoke)
        served.lane.ended(call)
        served.done(call.invoke)
        served.room.set()
        self._pump(served)

    # -- failures -------------------------------------------------------------------------------------------------

    async def _unreachable(self, served: ServedAction, call: PendingCall, places: ActorPlaces, reason: str) -> None:
        """It was not begun: another actor may have it at once, this one after a while."""
        log.info("Actor cannot be reached", actor=places.address.name, error=reason)
        call.reason = reason
        places.paused = True
        places.failures += 1
        served.lane.again(call)
        self._pump(served)
        await self._clock.sleep(delay(_UNREACHABLE, places.failures - 1, self._random))
        places.paused = False
        self._pump(served)

    async def _failed(
        self, served: ServedAction, call: PendingCall, status: int, reason: str, ended: ActorAddress | None = None
    ) -> None:
        """`ended`: an actor that broke off."""
        config, invoke = served.lane.config, call.invoke
        call.attempts += 1
        call.reason = reason
        log.info("Attempt failed", action=config.name, request=invoke.request_uid, attempts=call.attempts, error=reason)
        if call.attempts > config.retries:
            await self._give_up(served, call, status, await self._with_end(call, reason, ended))
            return
        policy = Policy(first=config.first_delay, factor=2.0, limit=max(30.0, config.first_delay), jitter=0.5)
        wait = delay(policy, call.attempts - 1, self._random)
        if invoke.deadline and self._now() + wait * 1000 >= invoke.deadline:
            reason = await self._with_end(call, reason, ended)
            await self._give_up(served, call, status, f"no time for another attempt: {reason}")
            return
        attempts = call.attempts
        call.phase = CallPhase.WAITING
        await self._writer.put(Output([], call.partition, lambda progress: _note_attempts(progress, call, attempts)))
        again = self._clock.monotonic() + wait
        if ended is not None and (why := await self._events.why_ended(ended, wait)):
            call.reason = f"{reason}: {why}"
        await self._clock.sleep(max(0.0, again - self._clock.monotonic()))
        if call.phase is CallPhase.WAITING:
            served.lane.again(call)
            self._pump(served)

    async def _with_end(self, call: PendingCall, reason: str, ended: ActorAddress | None) -> str:
        """What the caller is told: a connection that broke says less than a pod whose memory was not enough."""
        if ended is None:
            return reason
        left = (call.invoke.deadline - self._now()) / 1000 if call.invoke.deadline else _END_SECONDS
        why = await self._events.why_ended(ended, max(0.0, min(_END_SECONDS, left)))
        return f"{reason}: {why}" if why else reason

    async def _give_up(self, served: ServedAction, call: PendingCall, status: int, reason: str) -> None:
        name = served.lane.config.name
        letter = GivenUpCall(invoke=call.invoke, reason=reason, attempts=call.attempts, time=self._now())
        message = f"action {plain_name(name)} failed: {reason}"
        response = problem_response(call.invoke, status, message)
        kept = dead_call(name, letter)
        served.dead_letter_bytes += kept.size
        if (
            served.counter.dead_letters >= self._limits.max_dead_letters
            or served.dead_letter_bytes > self._limits.max_dead_letter_bytes
        ):
            served.dead_letter_bytes -= kept.size
            log.warning("There are too many dead letters: a call is not kept", action=name, request=kept.request_uid)
            await self._answer(served, call, response, 0.0, True)
            return
        await self._answer(served, call, response, 0.0, True, [dead_letter_entry(name, letter)])
        served.counter.dead_letters += 1
        self._events.dead_letter(kept)

    # -- streamed answers -----------------------------------------------------------------------------------------

    async def _stream(
        self, served: ServedAction, call: PendingCall, places: ActorPlaces, answer: ActorAnswer, started: float
    ) -> None:
        """Parts on the return topic, at the pace of the client. From the first part on the call is not run again."""
        invoke, head = call.invoke, answer.head.response
        assert head is not None
        whole = user_response(invoke, head, b"")
        kept: list[bytes] | None = []
        part, size, problem = 0, 0, ""
        self._streams.open(invoke.request_uid)
        try:
            async with aclosing(_cut_pieces(answer.pieces())) as pieces:
                async for piece in pieces:
                    part += 1
                    size += len(piece)
                    if size > self._limits.max_stream:
                        problem = f"it is larger than {self._limits.max_stream} bytes"
                        break
                    kept = [*kept, piece] if kept is not None and size <= self._limits.max_answer else None
                    await self._room(call, served, part)
                    await self._put_part(call, whole, part, piece)
        except (ActorFailed, ActorTimeout) as failure:
            if part == 0:
                raise
            problem = str(failure)
            if isinstance(failure, ActorTimeout):
                served.lane.retire(places)
                self._events.stuck(places.address)
        finally:
            self._streams.close(invoke.request_uid)
            answer.close()
        await self._end_stream(
            served, call, whole, part + 1, b"".join(kept) if kept is not None else None, problem, started
        )

    async def _room(self, call: PendingCall, served: ServedAction, part: int) -> None:
        deadline = call.invoke.deadline
        left = (deadline - self._now()) / 1000 if deadline else served.lane.config.timeout
        try:
            async with asyncio.timeout(max(0.0, left)):
                await self._streams.room(call.invoke.request_uid, part)
        except TimeoutError:
            raise ActorFailed("nobody took the answer in time") from None

    async def _put_part(self, call: PendingCall, whole: FunctionResponse, part: int, piece: bytes) -> None:
        payload, payload_base64 = payload_of(piece)
        message = msgspec.structs.replace(whole, payload=payload, payload_base64=payload_base64, part=part, last=False)
        entry = Entry(call.invoke.return_topic, call.invoke.request_uid, encode(message))
        if part == 1:
            await self._writer.put(Output([entry], call.partition, lambda progress: progress.set_streamed(call.offset)))
        else:
            await self._writer.put(Output([entry]))

    async def _end_stream(
        self, served: ServedAction, call: PendingCall, whole: FunctionResponse, part: int, body: bytes | None, problem: str,
        started: float,
    ) -> None:  # fmt: skip
        """The last part is empty; one with status 502 says that the answer is not complete."""
        invoke = call.invoke
        if problem:
            name = plain_name(served.lane.config.name)
            result = problem_response(invoke, 502, f"the streamed answer of action {name} is not complete: {problem}")
            last = msgspec.structs.replace(result, part=part)
        else:
            last = msgspec.structs.replace(whole, part=part)
            if body is None:
                result = problem_response(invoke, 410, "the answer was streamed and is too large to be kept")
            else:
                payload, payload_base64 = payload_of(body)
                result = msgspec.structs.replace(whole, payload=payload, payload_base64=payload_base64)
        call.phase = CallPhase.ANSWERED
        record, recorded = self._recorded(served, call, started, error=bool(problem))
        entries = [
            Entry(invoke.return_topic, invoke.request_uid, encode(last)),
            result_entry(result, invoke.origin),
            recorded,
        ]
        output = Output(entries, call.partition, lambda progress: progress.finish(call.offset))
        positions = await self._writer.put(output)
        await self._calls.add_results(result, output.entries, positions)
        await self._ended(served, call, record)

    async def break_stream(self, served: ServedAction, call: PendingCall) -> None:
        """The process ended while this answer was being streamed."""
        whole = problem_response(call.invoke, 502, "")
        await self._end_stream(served, call, whole, 1 << 30, None, "the dispatcher was restarted", 0.0)

    async def end_late(self, served: ServedAction, call: PendingCall) -> None:
        if call.attempts:
            await self._give_up(served, call, 504, f"out of time after {call.attempts} attempts: {call.reason}")
        else:
            await self.end(served, call, 504, "the call was not begun before its deadline")

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)


def _note_attempts(progress: PartitionProgress, call: PendingCall, attempts: int) -> None:
    if call.phase is not CallPhase.ANSWERED:
        progress.set_attempts(call.offset, attempts)


async def _outcome(exchange: Awaitable[ActorAnswer]) -> ActorAnswer | Exception:
    try:
        return await exchange
    except (ActorUnreachable, ActorFailed, ActorTimeout) as problem:
        return problem


async def _cut_pieces(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for piece in pieces:
        for at in range(0, len(piece), MAX_PART):
            yield piece[at : at + MAX_PART]
