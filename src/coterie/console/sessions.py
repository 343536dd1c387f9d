"""Who is logged in: one-time codes that become sessions, and sessions that end.

    coterie console ──token──> code (60 s, once) ──browser POSTs it──> session (cookie) ──idle 30 min, logout, restart──> gone

The token of a person is only in this memory; the browser has a cookie that means nothing elsewhere. A session also ends with
its token: at the time that the token names, and as soon as the API server refuses it.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
from dataclasses import dataclass, field

import msgspec

from coterie.base.clock import Clock
from coterie.base.secret import SecretValue
from coterie.console.activity import ActivitySampler

CODE_SECONDS = 60.0
IDLE_SECONDS = 1800.0
LONGEST_SECONDS = 8 * 3600.0
MAX_CODES = 32
MAX_SESSIONS = 64
MAX_PER_ACCOUNT = 16
"""Beyond it the session ends that was not used for longest: one account cannot keep the others out."""
MAX_CONNECTIONS = 32
"""WebSockets of one session: tabs and terminals."""
MAX_FAILURES = 30
"""Wrong codes of one address in a minute; after that it is told to wait. Codes have 256 bits, so a right one always counts."""
_MAX_ADDRESSES = 1024
_BYTES = 32


class TooManySessions(Exception):
    """Nobody else can log in until a session ends."""


@dataclass(frozen=True, slots=True)
class Login:
    """Somebody whom the API server knows."""

    account: str
    token: SecretValue
    uid: int | None = None
    """The only user of this machine who may use the link; None: whoever has it."""


class _Claims(msgspec.Struct, frozen=True):
    exp: float | None = None


def expiry_of(token: SecretValue) -> float | None:
    """Seconds since 1970 at which a token ends; None: it does not say. Whether it is valid is the API server's to decide."""
    parts = token.reveal().split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=_Claims).exp
    except (ValueError, RecursionError):
        return None


@dataclass(slots=True, eq=False)
class ConsoleSession:
    login: Login
    csrf: str = field(repr=False)
    began: float
    ends: float
    """At the latest."""
    used: float
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """It has ended, for whatever reason: what it opened must close."""
    tabs: int = 0
    """Live connections: a page that somebody watches is not idle."""
    terminals: int = 0
    activity: ActivitySampler | None = None
    """From when a page asked for it."""


class SessionTable:
    """Times are those of the clock's monotonic time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._codes: dict[str, tuple[Login, float]] = {}
        self._sessions: dict[str, ConsoleSession] = {}

    @property
    def in_use(self) -> bool:
        self._expire()
        return bool(self._sessions or self._codes)

    def new_code(self, login: Login) -> str:
        """For the fragment of a link. Codes that nobody used end first when there are too many."""
        self._expire()
        while len(self._codes) >= MAX_CODES:
            self._codes.pop(next(iter(self._codes)))
        code = secrets.token_urlsafe(_BYTES)
        self._codes[code] = (login, self._clock.monotonic() + CODE_SECONDS)
        return code

    def begin(self, code: str) -> tuple[str, ConsoleSession] | None:
        """(cookie, session) for a code that is valid, which is used up by this; None: it is not."""
        self._expire()
        found = next((known for known in self._codes if hmac.compare_digest(known.encode(), code.encode())), None)
        if found is None:
            return None
        self._make_room(self._codes[found][0].account)
        if len(self._sessions) >= MAX_SESSIONS:
            raise TooManySessions
        login, _ = self._codes.pop(found)
        now = self._clock.monotonic()
        session = ConsoleSession(login, secrets.token_urlsafe(_BYTES), now, now + self._longest(login), now)
        cookie = secrets.token_urlsafe(_BYTES)
        self._sessions[cookie] = session
        return cookie, session

    def find(self, cookie: str) -> ConsoleSession | None:
        """The session, which is used by this."""
        self._expire()
        session = self._sessions.get(cookie)
        if session is not None:
            session.used = self._clock.monotonic()
        return session

    def end(self, cookie: str) -> None:
        if (session := self._sessions.pop(cookie, None)) is not None:
            _close(session)

    def end_session(self, session: ConsoleSession) -> None:
        for cookie in [cookie for cookie, each in self._sessions.items() if each is session]:
            self.end(cookie)

    def is_alive(self, session: ConsoleSession) -> bool:
        self._expire()
        return not session.over.is_set()

    async def wait_until_ended(self, session: ConsoleSession) -> None:
        """For who holds a connection of it: such a session is not idle."""
        while self.is_alive(session):
            timer = asyncio.ensure_future(self._clock.sleep(session.ends - self._clock.monotonic()))
            over = asyncio.ensure_future(session.over.wait())
            try:
                await asyncio.wait((timer, over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                over.cancel()

    def _longest(self, login: Login) -> float:
        expiry = expiry_of(login.token)
        left = LONGEST_SECONDS if expiry is None else expiry - self._clock.now().timestamp()
        return max(0.0, min(LONGEST_SECONDS, left))

    def _make_room(self, account: str) -> None:
        own = {cookie: each for cookie, each in self._sessions.items() if each.login.account == account}
        while len(own) >= MAX_PER_ACCOUNT:
            oldest = min(own, key=lambda cookie: own[cookie].used)
            del own[oldest]
            self.end(oldest)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for code in [code for code, (_, until) in self._codes.items() if until <= now]:
            del self._codes[code]
        for cookie in [cookie for cookie, each in self._sessions.items() if _has_ended(each, now)]:
            self.end(cookie)


class FailedLogins:
    """Wrong codes by address, of the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[str, tuple[float, int]] = {}
        """Address: when its minute began, and how many since."""

    def count(self, address: str) -> bool:
        """One more; whether these are too many."""
        now = self._clock.monotonic()
        began, failures = self._counts.pop(address, (now, 0))
        if now - began >= CODE_SECONDS:
            began, failures = now, 0
        while len(self._counts) >= _MAX_ADDRESSES:
            del self._counts[next(iter(self._counts))]
        self._counts[address] = (began, failures + 1)
        return failures >= MAX_FAILURES


def _close(session: ConsoleSession) -> None:
    session.over.set()
    if session.activity is not None:
        session.activity.stop()
        session.activity = None


def _has_ended(session: ConsoleSession, now: float) -> bool:
    idle = session.tabs == 0 and now - session.used >= IDLE_SECONDS
    return idle or now >= session.ends
