"""The evidence log as a part of a node: opened first, written by parts of the process and by children over a private socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coterie.base.clock import Clock
from coterie.base.files import private_directory, read_bytes_or_none, write_atomic
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.base.pki import PkiError
from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.control.evidence_recorder import RECORD_PATH
from coterie.kuscia.evidence import domain_log
from coterie.kuscia.evidence.domain_log import DomainLog
from coterie.kuscia.evidence.log_file import EvidenceFile
from coterie.kuscia.evidence.shared_log import SharedEvidence
from coterie.kuscia.evidence.signed_notes import Checkpoint, LogSigner, NoteError, SignedNote, open_checkpoint
from coterie.kuscia.evidence.witness import introduction_of
from coterie.kuscia.identity import domain_identity

log = logger("evidence")

_ELSEWHERE = "another member of this control plane holds the evidence log; `coterie status` shows which one leads"
CHECKPOINT_SECONDS = 600.0
"""Between two checkpoints of a log to which something was added."""
LOCATION_FILE = "evidence.location"
"""In `var/run`: where the socket is, for other programs of this user."""
_OPEN_SECONDS = 10.0
_RETRY_SECONDS = 5.0
SIGN_PATH, ERASE_PATH, RETAIN_PATH, REOPEN_PATH, ROTATE_PATH = "/sign", "/erase", "/retain", "/reopen", "/rotate"
_CALLS = frozenset((RECORD_PATH, SIGN_PATH, ERASE_PATH, RETAIN_PATH, REOPEN_PATH, ROTATE_PATH))
_decoder = msgspec.json.Decoder(tuple[EventRequest, ...])


def evidence_directory(paths: DomainPaths) -> Path:
    return paths.storage / "evidence"


class EvidenceService:
    """A Runnable. It is ready when the log is open; a log that cannot be used stops what must be recorded, not the node: it says why in the
    log and in each refusal, and is tried again."""

    name = "evidence"

    def __init__(
        self,
        paths: DomainPaths,
        domain: str,
        socket: Path,
        clock: Clock,
        *,
        announced: Callable[[], Sequence[EventRequest]] = tuple,
    ) -> None:
        """`announced`: what is recorded before anything else, when the log is opened for the first time."""
        self.ready = asyncio.Event()
        self.paths = paths
        self.domain = domain
        self.socket = socket
        self._clock = clock
        self._log: DomainLog | None = None
        self._opened = asyncio.Event()
        self._problem = "the node is starting"
        self._opening = asyncio.Lock()
        self._announced: Callable[[], Sequence[EventRequest]] = announced
        self._stop = asyncio.Event()
        self._http = HttpServer(self._handle)
        self._more_calls: dict[str, Callable[[bytes], Awaitable[object]]] = {}
        self._shared: SharedEvidence | None = None
        self._holds = True
        self.inherited: tuple[bytes, ...] = ()
        """Introductions of the logs that other members of the control plane held."""

    def add_call(self, path: str, answer: Callable[[bytes], Awaitable[object]]) -> None:
        """A call on the private socket that another part answers."""
        self._more_calls[path] = answer

    @property
    def log(self) -> DomainLog | None:
        return self._log

    @property
    def problem(self) -> str:
        """Why the log cannot be used, where it cannot."""
        return self._problem

    @property
    def shared(self) -> SharedEvidence | None:
        return self._shared

    def share(self, shared: SharedEvidence) -> None:
        """Of a control plane of several members: the log is held between `take` and `hand_over`. Before `run`."""
        self._shared, self._holds, self._problem = shared, False, _ELSEWHERE

    async def take(self) -> None:
        """This member holds the log from now on; one that cannot be opened is tried again."""
        self._holds = True
        await self._open()

    async def hand_over(self) -> None:
        """Another member may hold the log from now on."""
        async with self._opening:
            self._holds = False
            used, self._log = self._log, None
            self._opened.clear()
            self._problem = _ELSEWHERE
            if used is not None:
                try:
                    await used.checkpoint()
                except (EvidenceError, OSError) as problem:
                    log.error("The evidence log cannot be signed", error=problem)
                await used.file.close()

    async def record(self, *requests: EventRequest) -> None:
        """See EvidenceRecorder."""
        if self._shared is not None and not self._holds:
            return await self._shared.record(requests)
        if self._log is None:
            try:
                await asyncio.wait_for(self._opened.wait(), _OPEN_SECONDS)
            except TimeoutError:
                raise EvidenceError(self._problem) from None
        assert self._log is not None
        try:
            await self._log.record_requests(requests)
        except ValueError as problem:
            raise EvidenceError(f"this cannot be recorded: {problem}") from problem

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        await self._http.serve(private_socket(self.socket))
        location = self.paths.run / LOCATION_FILE
        await asyncio.to_thread(write_atomic, location, str(self.socket), mode=0o600, durable=False)
        try:
            if self._holds:
                await self._open()
            self.ready.set()
            while not self._stop.is_set():
                if self._log is None:
                    await self._wait(_RETRY_SECONDS)
                    await self._open()
                else:
                    await self._wait(CHECKPOINT_SECONDS)
                    await self._checkpoint()
                    await self._rotate_with_the_year()
        finally:
            await self._http.stop(1.0)
            location.unlink(missing_ok=True)
            self.socket.unlink(missing_ok=True)
            if self._log is not None:
                await self._checkpoint()
                await self._log.file.close()

    async def _wait(self, seconds: float) -> None:
        stopped = asyncio.ensure_future(self._stop.wait())
        slept = asyncio.ensure_future(self._clock.sleep(seconds))
        await asyncio.wait((stopped, slept), return_when=asyncio.FIRST_COMPLETED)
        for each in (stopped, slept):
            each.cancel()
        await asyncio.gather(stopped, slept, return_exceptions=True)

    async def _open(self) -> None:
        async with self._opening:
            if self._log is not None or self._stop.is_set() or not self._holds:
                return
            try:
                opened = await self._opened_log()
                if requests := self._announced():
                    await opened.record_requests(requests)
                self._announced = tuple
                self._log = opened
            except EvidenceError as problem:
                if str(problem) != self._problem:
                    self._problem = str(problem)
                    log.error("The evidence log cannot be used: what must be recorded is refused", error=problem)
                return
            self._opened.set()

    async def _opened_log(self, reopened_after: str = "") -> DomainLog:
        """Raises EvidenceError."""
        if self._shared is None:
            return await open_domain_log(self.paths, self.domain, self._clock, reopened_after=reopened_after)
        before = await self._shared.inherited()
        self.inherited = before.introductions
        if not reopened_after and before.head and not await asyncio.to_thread(self._is_own_head, before.head):
            reopened_after = before.head
        opened = await open_domain_log(self.paths, self.domain, self._clock, reopened_after=reopened_after)
        shared, number = self._shared, domain_log.number_of(opened.origin)

        async def publish(note: SignedNote) -> None:
            shown = await asyncio.to_thread(introduction_of, opened.file, note)
            await shared.publish(number, msgspec.json.encode(shown), str(SignedNote(note.text, note.signatures[:1])))

        opened.publish = publish
        try:
            # Whoever takes over from us, however soon, goes on from here.
            await opened.checkpoint()
        except BaseException:
            await opened.file.close()
            raise
        return opened

    def _is_own_head(self, head: str) -> bool:
        """Whether the newest head is one of our newest log: then we go on with it."""
        numbers = domain_log.log_numbers(evidence_directory(self.paths))
        if not numbers or not (self.paths.certs / domain_log.KEY_FILE).exists():
            return False
        key = domain_log.load_key(self.paths.certs / domain_log.KEY_FILE)
        own = LogSigner(domain_log.origin_of(self.domain, numbers[-1]), key).key
        try:
            open_checkpoint(head, own)
        except NoteError:
            return False
        return True

    async def _checkpoint(self) -> None:
        if self._log is None:
            return
        try:
            await self._log.checkpoint()
        except (EvidenceError, OSError) as problem:
            log.error("The evidence log cannot be signed", error=problem)

    async def sign(self) -> str:
        """A checkpoint over all events that there are now. Raises EvidenceError."""
        return str(await (await self._usable()).checkpoint())

    async def erase(self, subject: str, value: str) -> int:
        """Destroys the salts of a value, in this log and in those before: what its commitments stood for can no longer be shown. Recorded
        first. The number of commitments. Raises EvidenceError."""
        used = await self._usable()
        found = [(used.file, used.file.find(value, subject))]
        async with self._older_logs() as older:
            found += [(file, file.find(value, subject)) for file in older]
            events = [
                EvidenceEvent(kind=evidence.SALTS_ERASED, object=(subject, each.commitment))
                for _, each in found
                if each is not None
            ]
            if events:
                await used.record(*events)
            return sum([await file.erase(value, subject) for file, each in found if each is not None])

    async def retain(self, days: float) -> int:
        """Removes the bodies of events that are older, in this log and in those before; their hashes stay. Recorded first. The number of
        events. Raises EvidenceError."""
        used = await self._usable()
        limit = int((self._clock.now().timestamp() - days * 86400) * 1000)
        count = 0
        async with self._older_logs() as older:
            for file in (*older, used.file):
                end = await asyncio.to_thread(_older_than, file, limit)
                if end > 1:
                    which = domain_log.origin_of(self.domain, int(file.path.parent.name))
                    await used.record(EvidenceEvent(kind=evidence.BODIES_REMOVED, count=end, more={"log": which}))
                    count += await file.remove_bodies(end)
        return count

    @asynccontextmanager
    async def _older_logs(self) -> AsyncIterator[list[EvidenceFile]]:
        """Those that are closed."""
        directory = evidence_directory(self.paths)
        numbers = await asyncio.to_thread(domain_log.log_numbers, directory)
        opened: list[EvidenceFile] = []
        try:
            for number in numbers[:-1]:
                path = directory / str(number) / domain_log.LOG_FILE
                if path.exists():
                    opened.append(await asyncio.to_thread(EvidenceFile, path, self._clock))
            yield opened
        finally:
            for each in opened:
                await each.close()

    async def reopen(self) -> str:
        """Begins a new log whose first event names the last head of the old one: the honest way after a restored backup. The new origin."""
        async with self._opening:
            return await self._reopen()

    async def _reopen(self) -> str:
        directory = evidence_directory(self.paths)
        numbers = await asyncio.to_thread(domain_log.log_numbers, directory)
        await self._close_log()
        head = self.paths.certs / f"{domain_log.HEAD_FILE}.{numbers[-1] if numbers else 1}"
        kept = await asyncio.to_thread(read_bytes_or_none, head)
        if kept is None:
            raise EvidenceError(f"there is no signed head of an older log ({head}): nothing to go on from")
        return await self._begin(reopened_after=kept.decode())

    async def rotate(self, new_key: bool) -> str:
        """Closes the log and begins the next one, which names its last head. `new_key`: signed with another key from then on; the old one
        and the new one both sign that. The new origin. Raises EvidenceError."""
        async with self._opening:
            await self._usable()
            made = await asyncio.to_thread(domain_log.make_next_key, self.paths.certs) if new_key else None
            await self._close_log(made)
            return await self._begin()

    async def _rotate_with_the_year(self) -> None:
        """One log a year, so that none grows without end."""
        if self._log is None or self._stop.is_set():
            return
        file = self._log.file
        for stored in await asyncio.to_thread(lambda: list(file.events(0, 1))):
            begun = evidence.decode(stored.body).time if stored.body is not None else 0
            if begun and datetime.fromtimestamp(begun / 1000, UTC).year < self._clock.now().astimezone(UTC).year:
                log.info("A new year: the evidence log is closed and the next one begun", log=self._log.origin)
                try:
                    await self.rotate(False)
                except EvidenceError as problem:
                    log.error("The evidence log of the last year cannot be closed", error=problem)

    async def _close_log(self, next_key: Ed25519PrivateKey | None = None) -> None:
        """Whoever records meanwhile waits for the next log."""
        if self._log is None:
            return
        closing, self._log = self._log, None
        self._opened.clear()
        self._problem = "the next evidence log is being begun"
        try:
            await closing.close(next_key)
        except EvidenceError:
            self._log = closing
            self._opened.set()
            raise

    async def _begin(self, reopened_after: str = "") -> str:
        self._log = await self._opened_log(reopened_after)
        self._opened.set()
        await self._log.checkpoint()
        return self._log.origin

    async def rolled_back(self, note: SignedNote) -> None:
        """A partner showed a checkpoint that we signed and that our log does not have. It is the newer one: nothing is recorded until the
        log is put back or opened anew, as when the node itself finds it out."""
        async with self._opening:
            used = self._log
            if used is None or not await used.contradicts(note):
                return
            number = domain_log.number_of(used.origin)
            try:
                await asyncio.to_thread(write_atomic, self.paths.certs / f"{domain_log.HEAD_FILE}.{number}", str(note))
            except OSError as problem:
                raise EvidenceError(f"the last signed head cannot be kept: {problem}") from problem
            self._log = None
            self._opened.clear()
            size = Checkpoint.parse(note.text).size
            self._problem = (
                f"the evidence log has {used.file.size} events, and a partner has a checkpoint of ours over {size} that it does not have: an older copy "
                "was restored. Put the newer file back, or begin a new log with `coterie audit reopen`"
            )
            log.error("The evidence log was rolled back: what must be recorded is refused", why=self._problem)
            await used.file.close()

    async def _usable(self) -> DomainLog:
        if self._log is None:
            raise EvidenceError(self._problem)
        return self._log

    async def _handle(self, request: Request) -> Response:
        """Only processes of the same user reach the socket: children of the node, and `coterie audit`."""
        if request.method != "POST" or request.path not in (*_CALLS, *self._more_calls):
            return Response(404, b"there is no such call")
        try:
            return Response(200, msgspec.json.encode(await self._call(request.path, request.body)))
        except (msgspec.DecodeError, ValueError) as problem:
            return Response(400, str(problem).encode())
        except EvidenceError as problem:
            return Response(503, str(problem).encode())

    async def _call(self, path: str, body: bytes) -> object:
        if path in self._more_calls:
            return await self._more_calls[path](body)
        if path == RECORD_PATH:
            await self.record(*_decoder.decode(body))
            return None
        if path == ERASE_PATH:
            subject, value = msgspec.json.decode(body, type=tuple[str, str])
            return await self.erase(subject, value)
        if path == RETAIN_PATH:
            return await self.retain(msgspec.json.decode(body, type=float))
        if path == ROTATE_PATH:
            return await self.rotate(msgspec.json.decode(body, type=bool))
        return await (self.reopen() if path == REOPEN_PATH else self.sign())


def _older_than(file: EvidenceFile, limit: int) -> int:
    """The number of events at the beginning that are as old or older; never the first one, which certifies the key."""
    for stored in file.events(1):
        if stored.body is not None and evidence.decode(stored.body).time > limit:
            return stored.index
    return file.size


async def open_domain_log(paths: DomainPaths, domain: str, clock: Clock, *, reopened_after: str = "") -> DomainLog:
    """Raises EvidenceError."""
    try:
        identity = await asyncio.to_thread(domain_identity.load, paths, domain)
        directory = await asyncio.to_thread(private_directory, evidence_directory(paths))
    except (PkiError, OSError) as problem:
        raise EvidenceError(
            f"the domain's key or the directory of the evidence log cannot be used: {problem}"
        ) from problem
    return await domain_log.open_log(
        directory,
        paths.certs,
        domain,
        identity.key,
        clock,
        reopened_after=reopened_after,
        certificate=identity.certificate,
    )
