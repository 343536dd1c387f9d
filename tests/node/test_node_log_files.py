"""All logs of a node stay within `logrotate`, whoever writes them."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from coterie.base import child_logging
from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.base.log import ROOT, LogSettings
from coterie.base.log_rotation import Rotation, open_log
from coterie.base.paths import DomainPaths
from coterie.kube.apiserver.audit import FileSink
from coterie.kuscia.gateway.envoy import EnvoySettings
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node import config
from coterie.node.log_files import PERIOD, TIDY, LogFiles, log_files, logs_of
from coterie.node.parts.apiserver import ApiPlane
from coterie.node.trace_file import TRACE_FILE

SMALL = Rotation(max_bytes=100, max_files=3, max_age_days=1)


class Output:
    """Our standard error, for a test that has a better use for its own."""

    def __init__(self, ours: bool) -> None:
        self.is_ours = ours
        self.followed = 0

    def follow(self) -> None:
        self.followed += 1


def parse(tmp_path: Path, **more: Any) -> config.NodeSettings:
    return config.parse({"mode": "autonomy", "domainID": "alice", **more}, tmp_path, lowest_port=0)


def test_the_rules_reach_every_writer(tmp_path: Path) -> None:
    block = {"maxFiles": 2, "maxFileSizeMB": 3, "maxAgeDays": 4}
    settings = parse(tmp_path, logrotate=block, apiServer={"auditLog": "audit.jsonl", "port": 0})
    wanted = Rotation(3 << 20, 2, 4)
    assert settings.logrotate.of_node == wanted == settings.gateway.log_rotation
    assert log_files(settings, VirtualClock())._rotation == wanted
    settings.paths.prepare()
    sink = ApiPlane(settings, SYSTEM_CLOCK)._audit_file
    assert isinstance(sink, FileSink) and sink._rotation == wanted
    assert parse(tmp_path).api.audit_log == "audit.jsonl", "on by default"
    assert settings.paths.logs / "audit.jsonl" in logs_of(settings.paths, "audit.jsonl").every
    assert parse(tmp_path).logrotate.of_node == Rotation(64 << 20, 5, 30)


def test_every_log_of_the_gateway_is_known(tmp_path: Path) -> None:
    paths = DomainPaths.of(tmp_path, "alice")
    places = GatewayPaths.of(paths)
    envoy = EnvoySettings("alice", places.directory, places.run, places.logs)
    known = logs_of(paths)
    assert {*envoy.rotated} | {paths.logs / TRACE_FILE, paths.log("usage")} == {*known.tidied}
    assert envoy.early_log in known.copied


async def one_pass(paths: DomainPaths, output: Output, clock: VirtualClock) -> None:
    files = LogFiles(logs_of(paths), SMALL, clock, output=output)  # type: ignore[arg-type]
    task = asyncio.create_task(files.run())
    await clock.advance(PERIOD)
    for _ in range(200):
        await asyncio.sleep(0.005)  # its work is done in a thread
        if not files._full():
            break
    await clock.advance(TIDY)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("ours", [True, False], ids=["up", "foreground"])
async def test_full_logs_are_moved_aside_and_others_left(tmp_path: Path, ours: bool) -> None:
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    logs = logs_of(paths)
    for path in logs.every:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 101)
    handles = [open_log(path) for path in logs.copied]
    small = logs.followed[0]
    small.write_bytes(b"x" * 100)
    output = Output(ours)
    await one_pass(paths, output, VirtualClock())
    for handle in handles:
        os.write(handle, b"after")
        os.close(handle)
    for path in (*logs.followed[1:], *logs.copied, *((logs.own,) if ours else ())):
        assert path.with_name(path.name + ".1").read_bytes() == b"x" * 101, path
    assert [path.read_bytes() for path in logs.copied] == [b"after"] * 2
    for path in (small, *logs.tidied, *(() if ours else (logs.own,))):
        assert path.exists() and not path.with_name(path.name + ".1").exists(), path
    assert output.followed == int(ours)


async def test_what_was_moved_aside_is_compressed_and_ends(tmp_path: Path) -> None:
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    clock = VirtualClock()
    log = paths.log("datamesh")
    for number, age in ((1, 0), (2, 0), (3, 0)):
        old = log.with_name(f"{log.name}.{number}")
        old.write_text("x")
        os.utime(old, (clock.now().timestamp() - age,) * 2)
    internal = paths.logs / "envoy" / "internal.log.1"
    internal.parent.mkdir()
    internal.write_text("x")
    os.utime(internal, (clock.now().timestamp() - 2 * 86400,) * 2)
    await one_pass(paths, Output(False), clock)
    assert sorted(each.name for each in paths.logs.rglob("*.log*")) == ["datamesh.log.1", "datamesh.log.2.gz"]


_CHILD = """
    import asyncio, sys
    from coterie.base import child_logging
    from coterie.base.log import logger
    child_logging.PERIOD = 0.01
    child_logging.configure()
    async def main():
        async with child_logging.following():
            for number in range(100000):
                logger("x").info("line", number=number)
                logger("x").debug("detail", number=number)
                await asyncio.sleep(0.001)
    asyncio.run(main())
"""


async def test_a_child_opens_its_log_anew_and_follows_the_level(tmp_path: Path) -> None:
    log, shared = tmp_path / "child.log", tmp_path / "logging.json"
    child_logging.write(shared, LogSettings(level="INFO", format="json"))
    handle = open_log(log)
    environ = {**os.environ, **child_logging.environment(log, shared)}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(_CHILD), stdout=handle, stderr=handle, env=environ
    )
    os.close(handle)
    try:
        async with asyncio.timeout(30):
            while not log.stat().st_size:
                await asyncio.sleep(0.01)
            child_logging.write(shared, LogSettings(level="DEBUG", format="json"))
            while b"detail" not in log.read_bytes():
                await asyncio.sleep(0.01)
            os.rename(log, tmp_path / "child.log.1")
            while not log.exists() or not log.stat().st_size:
                await asyncio.sleep(0.01)
    finally:
        child.kill()
        await child.wait()
    lines = [*(tmp_path / "child.log.1").read_text().splitlines(), *log.read_text().splitlines()]
    numbers = [entry["number"] for line in lines if (entry := json.loads(line))["message"] == "line"]
    assert numbers == list(range(len(numbers)))


def test_a_child_whose_settings_are_spoilt_logs_as_usual(tmp_path: Path) -> None:
    spoilt = tmp_path / "logging.json"
    before = logging.getLogger(ROOT).level
    try:
        for text in ("", "{", '{"level": "LOUD", "format": "plain"}', "[]"):
            spoilt.write_text(text)
            child_logging.configure({child_logging.SETTINGS_FILE: str(spoilt)})
            assert logging.getLogger(ROOT).level == logging.INFO
    finally:
        logging.getLogger(ROOT).setLevel(before)


def test_a_disk_that_is_full_is_told_once_and_does_not_end_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    full = [paths.log("datamesh"), paths.log("kusciaapi")]

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("coterie.node.log_files.move_aside", fails)
    files = LogFiles(logs_of(paths), SMALL, VirtualClock(), output=Output(False))  # type: ignore[arg-type]
    for _ in range(3):
        files._work(full)
    assert [record.getMessage() for record in caplog.records] == ["A log cannot be rotated; it grows"]
