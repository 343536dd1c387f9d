"""Where databases are, and what is told of their users: nothing."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import pymysql
import pytest

from coterie.base.secret import SecretValue
from coterie.kuscia.sources.endpoints import SourceEndpoint, address_of, endpoint_of, without
from coterie.kuscia.sources.mysql_connection import MySQLConnection
from coterie.kuscia.sources.postgresql import PostgreSQL
from coterie.kuscia.sources.protocol import DataLocation, SourceError, SourceInfo


@pytest.mark.parametrize(
    ("text", "host", "port", "options"),
    [
        ("db", "db", 3306, {}),
        ("db:", "db", 3306, {}),
        ("db.example:13306", "db.example", 13306, {}),
        ("db:3307?tls=skip-verify&x=1", "db", 3307, {"tls": "skip-verify", "x": "1"}),
        ("[::1]:3307", "::1", 3307, {}),
        ("[::1]", "::1", 3306, {}),
        ("fe80::2", "fe80::2", 3306, {}),
        ("/run/mysql.sock?tls=true", "/run/mysql.sock", 3306, {"tls": "true"}),
    ],
)
def test_a_place_is_read(text: str, host: str, port: int, options: dict[str, str]) -> None:
    assert endpoint_of(text, 3306) == SourceEndpoint(host, port, options)
    assert "?" not in address_of(text)


@pytest.mark.parametrize(
    "text", ["", ":3306", "db:port", "db:0", "db:65536", "db:" + "9" * 5000, "db:٣", "u:swordfish@db:1"]
)
async def test_what_is_no_place_is_told_and_not_quoted(text: str) -> None:
    info = SourceInfo("mysql", endpoint=text, user="u", password=SecretValue("p"), database="d")
    calls: list[Callable[[], object]] = [lambda: endpoint_of(text, 1), MySQLConnection(info).connect]
    for call in calls:
        with pytest.raises(SourceError, match="no host:port") as told:
            call()
        assert "swordfish" not in str(told.value)
    with pytest.raises(SourceError, match="no host:port"):
        await PostgreSQL(info).schema(DataLocation("t"))


def test_the_user_is_left_out_of_a_servers_words() -> None:
    assert without("denied to user 'anna'@'h'", "anna") == "denied to user the source's user@'h'"
    assert without('too many connections for role "anna"', "anna") == "too many connections for role the source's user"
    assert without("nothing", "") == "nothing"


@pytest.mark.parametrize("code", [1045, 1226, 1370, 9999])
def test_mysql_says_nothing_of_the_user(code: int) -> None:
    line = MySQLConnection(SourceInfo("mysql", endpoint="db", user="anna", database="d"))
    with pytest.raises(SourceError) as told, line._errors():
        raise pymysql.err.OperationalError(code, "command denied to user 'anna'@'localhost'")
    assert "anna" not in str(told.value) and "d at db" in str(told.value)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InvalidPasswordError('password authentication failed for user "anna"'),
        asyncpg.TooManyConnectionsError('too many connections for role "anna"'),
        asyncpg.InsufficientPrivilegeError('permission denied to set role "anna"'),
        asyncpg.PostgresError('role "anna" is strange'),
    ],
)
def test_postgresql_says_nothing_of_the_user(error: asyncpg.PostgresError) -> None:
    source = PostgreSQL(SourceInfo("postgresql", endpoint="db", user="anna", database="d"))
    with pytest.raises(SourceError) as told, source._errors():
        raise error
    assert "anna" not in str(told.value)
