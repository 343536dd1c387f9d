"""The child process and its keys: when it is started, what it is told and how, and what nobody else can see."""

from __future__ import annotations

import asyncio
import re
import stat
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from crypt_kit import ENCRYPTED
from gateway_kit import token

from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.crypt.keys import KeyRing, KeyTable, RouteKeys, keys_of, read_keys, write_keys
from coterie.kuscia.gateway.crypt.process import BodyEncryptionProcess, CryptSettings
from coterie.kuscia.gateway.crypt.routing import refused
from coterie.kuscia.gateway.model import DomainService, Route, RoutePort, SnapshotInputs
from coterie.kuscia.gateway.snapshot import snapshot

HERE = SnapshotInputs(
    domain="alice",
    internal=SocketAddress("127.0.1.1", 80),
    external=None,
    handshake=SocketAddress("/run/gateway/handshake.sock", 0),
    node_socket=SocketAddress("/run/gateway/gw.sock", 0),
    directory=Path("/xds"),
    logs=Path("/logs"),
    protocol=Protocol.NOTLS,
    crypt=Path("/run/crypt.sock"),
)
AWAY = Route(
    "alice", "bob", host="10.0.0.2", ports=(RoutePort("http", 1080),), tokens=(token("alice", "bob"),), **ENCRYPTED
)
BACK = Route("bob", "alice", tokens=(SecretValue("t-6"), SecretValue("t-7")), revisions=(6, 7), body_encryption="AES")
TABLE = KeyTable((RouteKeys("alice", "bob", ((1, SecretValue("one")), (2, SecretValue("two")))),))


# ---- keys ----


def test_only_routes_that_ask_for_it_have_keys() -> None:
    plain = replace(AWAY, destination="carol", body_encryption="")
    foreign = replace(AWAY, source="carol", destination="dave")
    assert keys_of(replace(HERE, routes=(plain, foreign))) == KeyTable()
    assert keys_of(replace(HERE, routes=(BACK, plain, AWAY))) == KeyTable(
        (
            RouteKeys("alice", "bob", ((1, token("alice", "bob")),)),
            RouteKeys("bob", "alice", ((6, SecretValue("t-6")), (7, SecretValue("t-7")))),
        )
    )


def test_the_file_is_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write_keys(path, TABLE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == TABLE
    assert "one" not in repr(TABLE)


def test_another_file_is_read_when_the_next_request_comes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    ring = KeyRing(path)
    assert ring.keys("alice", "bob") is None
    write_keys(path, TABLE)
    found = ring.keys("alice", "bob")
    assert found is not None
    assert found.newest == (2, SecretValue("two"))
    assert found.of_revision(1) == SecretValue("one")
    assert found.of_revision(3) is None
    assert ring.keys("bob", "alice") is None
    write_keys(path, KeyTable())
    assert ring.keys("alice", "bob") is None
    path.unlink()
    assert ring.keys("alice", "bob") is None


# ---- configuration ----

REFUSED = {
    "SM4": (replace(AWAY, body_encryption="SM4"), HERE, "only with AES"),
    "no child": (AWAY, replace(HERE, crypt=None), "not available here"),
    "no revisions": (replace(AWAY, revisions=()), HERE, "revisions"),
    "all there": (AWAY, HERE, ""),
    "not asked for": (replace(AWAY, body_encryption="", revisions=()), HERE, ""),
}


@pytest.mark.parametrize(("route", "inputs", "why"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_encrypted_is_refused(route: Route, inputs: SnapshotInputs, why: str) -> None:
    assert bool(refused(inputs, route)) == bool(why)
    assert why in refused(inputs, route)
    problems = snapshot(replace(inputs, routes=(route,))).problems
    assert [why in each.message for each in problems] == ([True] if why else [])


def test_a_route_to_us_that_cannot_be_decrypted_lets_nothing_in() -> None:
    service = DomainService("s", (SocketAddress("10.0.0.9", 80),))
    inputs = replace(HERE, crypt=None, routes=(BACK,), services=(service,))
    resources = snapshot(inputs)
    (table,) = resources.files["rds-external.json"]
    (host,) = (each for each in table["virtual_hosts"] if each["name"] == "service-s-external")
    first = host["routes"][0]
    assert first["direct_response"]["status"] == 503
    assert first["match"]["headers"][-1]["string_match"]["exact"] == "bob"
    assert [each.about for each in resources.problems] == ["route bob-alice"]


def test_before_the_handshake_nothing_is_sent() -> None:
    resources = snapshot(replace(HERE, routes=(replace(AWAY, tokens=(), revisions=()),)))
    (table,) = resources.files["rds-internal.json"]
    (host,) = (each for each in table["virtual_hosts"] if each["name"] == "alice-to-bob")
    assert [each["direct_response"]["status"] for each in host["routes"] if "direct_response" in each] == [503]
    handshake = [each for each in host["routes"] if "route" in each]
    assert all("typed_per_filter_config" not in each for each in handshake)


def test_routes_that_do_not_ask_are_the_same_with_and_without_the_child() -> None:
    routes = (replace(AWAY, body_encryption="", revisions=()), replace(BACK, body_encryption=""))
    services = (DomainService("s", (SocketAddress("10.0.0.9", 80),)),)
    one = snapshot(replace(HERE, routes=routes, services=services))
    other = snapshot(replace(HERE, routes=routes, services=services, crypt=None))
    for side in ("internal", "external"):
        assert one.files[f"rds-{side}.json"] == other.files[f"rds-{side}.json"]


# ---- the process ----


async def test_it_starts_when_needed_and_is_told_by_a_private_file(tmp_path: Path) -> None:
    settings = CryptSettings("alice", tmp_path / "run", tmp_path / "logs")
    child = BodyEncryptionProcess(settings)
    running = asyncio.create_task(child.run())
    await asyncio.wait_for(child.ready.wait(), 5)
    await child.update(KeyTable())
    assert child.pid is None
    assert not settings.keys.exists()
    await child.update(TABLE)
    assert child.pid is not None
    process = psutil.Process(child.pid)
    assert not re.search(r"\btwo\b", f"{process.cmdline()} {process.environ()}")
    assert stat.S_IMODE(settings.keys.stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.run.stat().st_mode) == 0o700
    await child.update(KeyTable())
    assert read_keys(settings.keys) == KeyTable()
    child.stop()
    await asyncio.wait_for(running, 10)
    assert child.pid is None
    assert not settings.keys.exists()
    assert not settings.socket.exists()
    assert "two" not in settings.log.read_text()


async def test_it_may_be_stopped_before_it_was_needed(tmp_path: Path) -> None:
    child = BodyEncryptionProcess(CryptSettings("alice", tmp_path / "run", tmp_path / "logs"))
    running = asyncio.create_task(child.run())
    await asyncio.wait_for(child.ready.wait(), 5)
    child.stop()
    await asyncio.wait_for(running, 5)


def test_a_path_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too long"):
        BodyEncryptionProcess(CryptSettings("alice", tmp_path / ("x" * 100), tmp_path))
