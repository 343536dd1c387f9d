"""Codes are for once and for a minute; sessions end."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.secret import SecretValue
from coterie.console.sessions import (
    CODE_SECONDS,
    IDLE_SECONDS,
    LONGEST_SECONDS,
    MAX_CODES,
    MAX_FAILURES,
    MAX_PER_ACCOUNT,
    MAX_SESSIONS,
    FailedLogins,
    Login,
    SessionTable,
    TooManySessions,
    expiry_of,
)


def login(name: str = "anna") -> Login:
    return Login(name, SecretValue("a-token"))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def table(clock: VirtualClock) -> SessionTable:
    return SessionTable(clock)


def test_a_code_logs_in_once(table: SessionTable) -> None:
    code = table.new_code(login())
    begun = table.begin(code)
    assert begun is not None
    cookie, session = begun
    assert table.find(cookie) is session and session.login.account == "anna"
    assert table.begin(code) is None, "a stolen link is worth nothing"
    assert code not in cookie and "a-token" not in repr(session)


async def test_a_code_ends(table: SessionTable, clock: VirtualClock) -> None:
    code = table.new_code(login())
    await clock.advance(CODE_SECONDS)
    assert table.begin(code) is None and not table.in_use


async def test_sessions_end_when_nobody_looks(table: SessionTable, clock: VirtualClock) -> None:
    cookie, session = table.begin(table.new_code(login())) or pytest.fail()
    await clock.advance(IDLE_SECONDS - 1)
    assert table.find(cookie) is session
    await clock.advance(IDLE_SECONDS)
    assert table.find(cookie) is None and not table.is_alive(session) and not table.in_use


async def test_a_page_that_is_open_is_not_idle_but_nobody_stays_for_ever(
    table: SessionTable, clock: VirtualClock
) -> None:
    cookie, session = table.begin(table.new_code(login())) or pytest.fail()
    session.tabs = 1
    await clock.advance(IDLE_SECONDS * 2)
    assert table.find(cookie) is session
    await clock.advance(LONGEST_SECONDS)
    assert table.find(cookie) is None


def test_logout(table: SessionTable) -> None:
    cookie, session = table.begin(table.new_code(login())) or pytest.fail()
    table.end(cookie)
    assert table.find(cookie) is None and not table.is_alive(session)


def test_neither_codes_nor_sessions_grow_without_bound(table: SessionTable) -> None:
    first = table.new_code(login())
    for _ in range(MAX_CODES):
        table.new_code(login())
    assert table.begin(first) is None, "the oldest code makes room"
    for number in range(MAX_SESSIONS):
        assert table.begin(table.new_code(login(f"person-{number // MAX_PER_ACCOUNT}"))) is not None
    code = table.new_code(login())
    with pytest.raises(TooManySessions):
        table.begin(code)


async def test_one_account_does_not_keep_the_others_out(table: SessionTable, clock: VirtualClock) -> None:
    begun = []
    for _ in range(MAX_PER_ACCOUNT):
        begun.append(table.begin(table.new_code(login())) or pytest.fail())
        await clock.advance(1)
    assert table.find(begun[0][0]) is begun[0][1], "this one is used"
    table.begin(table.new_code(login())) or pytest.fail()
    assert table.is_alive(begun[0][1]) and begun[1][1].over.is_set(), "the one that was not used for longest ends"


def a_token(**claims: object) -> SecretValue:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return SecretValue(f"head.{payload}.signature")


async def test_a_session_does_not_outlive_its_token(table: SessionTable, clock: VirtualClock) -> None:
    token = a_token(exp=clock.now().timestamp() + 600, aud=["x"])
    cookie, session = table.begin(table.new_code(Login("anna", token))) or pytest.fail()
    session.tabs = 1
    waiting = asyncio.ensure_future(table.wait_until_ended(session))
    await clock.advance(599)
    assert not waiting.done() and table.find(cookie) is session
    await clock.advance(1)
    assert waiting.done() and table.find(cookie) is None


async def test_who_waits_for_the_end_hears_of_a_logout_at_once(table: SessionTable, clock: VirtualClock) -> None:
    cookie, session = table.begin(table.new_code(login())) or pytest.fail()
    waiting = asyncio.ensure_future(table.wait_until_ended(session))
    await asyncio.sleep(0)
    table.end(cookie)
    await asyncio.wait_for(waiting, 40)
    assert clock.monotonic() == 0


@pytest.mark.parametrize("text", ["", "a-token", "a.b.c", "a.W10.c", "a.eyJleHAiOiJ4In0.c", f"a.{'W1tb' * 9000}.c"])
def test_tokens_of_other_shapes_have_no_end_of_their_own(text: str) -> None:
    assert expiry_of(SecretValue(text)) is None


async def test_wrong_codes_are_counted_for_each_address(clock: VirtualClock) -> None:
    failures = FailedLogins(clock)
    assert [failures.count("10.0.0.1") for _ in range(MAX_FAILURES + 2)] == [False] * MAX_FAILURES + [True] * 2
    assert not failures.count("10.0.0.2")
    await clock.advance(CODE_SECONDS)
    assert not failures.count("10.0.0.1")
    for number in range(5000):
        failures.count(str(number))
    assert len(failures._counts) <= 1024
