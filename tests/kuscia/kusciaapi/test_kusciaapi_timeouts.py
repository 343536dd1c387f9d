"""`readTimeout`, `writeTimeout` and `idleTimeout` reach the ports that they are about."""

from __future__ import annotations

from pathlib import Path

from coterie.base.paths import DomainPaths
from coterie.kuscia.kusciaapi.http_frontend import LIMITS, limits
from coterie.kuscia.kusciaapi.settings import KusciaApiSettings, Timeouts


def test_what_is_not_given_is_as_usual() -> None:
    assert limits(Timeouts()) == LIMITS
    assert limits(Timeouts(idle=7)).idle_timeout == 7
    assert limits(Timeouts(idle=7)).header_timeout == LIMITS.header_timeout


def test_reading_is_head_and_body() -> None:
    made = limits(Timeouts(read=3, write=4, idle=5))
    assert (made.header_timeout, made.body_timeout, made.write_timeout, made.idle_timeout) == (3, 3, 4, 5)
    assert made.max_body == LIMITS.max_body


def test_they_are_handed_to_the_child() -> None:
    given = KusciaApiSettings(
        "alice", "lite", DomainPaths(Path("/x")), timeouts=Timeouts(1, 0, 3), conf_timeouts=Timeouts(4, 5, 6)
    )
    options = given.options()
    assert Timeouts.parse(options["--timeouts"]) == given.timeouts
    assert Timeouts.parse(options["--conf-timeouts"]) == given.conf_timeouts
