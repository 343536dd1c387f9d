"""A configuration that changes while the node runs: the log level follows, the rest is said to need a restart."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.base import child_logging
from coterie.base.clock import VirtualClock
from coterie.base.log import ROOT
from coterie.kuscia.gateway.envoy import LOG_LEVELS, Envoy, EnvoySettings
from coterie.node import config, modes
from coterie.node.reloading import PERIOD, ConfigWatch

MASTER: dict[str, Any] = {"mode": "master", "domainID": "alice"}


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.getMessage(), record.__dict__["coterie_fields"]))


class World:
    def __init__(self, file: Path, clock: VirtualClock, records: Records) -> None:
        self.file = file
        self.clock = clock
        self.lines = records.lines
        self.levels: list[str] = []

    def write(self, document: dict[str, Any] | str) -> None:
        """As editors do: another file in its place."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        os.replace(fresh, self.file)


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncIterator[tuple[World, ConfigWatch]]:
    records, target = Records(), logging.getLogger(f"{ROOT}.node.config")
    target.addHandler(records)
    target.setLevel(logging.DEBUG)
    world = World(tmp_path / "coterie.yaml", VirtualClock(), records)
    world.write(MASTER)
    watch = ConfigWatch(world.file, tmp_path, config.load(world.file, tmp_path), world.levels.append, world.clock)
    task = asyncio.create_task(watch.run())
    try:
        yield world, watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        target.removeHandler(records)
        target.setLevel(logging.NOTSET)


async def test_the_level_follows_the_file(tmp_path: Path) -> None:
    async with watched(tmp_path) as (world, _):
        await world.clock.advance(3 * PERIOD)
        assert (world.levels, world.lines) == ([], [])
        world.write({**MASTER, "logLevel": "debug"})
        await world.clock.advance(2 * PERIOD)
        world.write({**MASTER, "logLevel": "WARN"})
        await world.clock.advance(2 * PERIOD)
        world.write(MASTER)
        await world.clock.advance(2 * PERIOD)
        assert world.levels == ["DEBUG", "WARN", "INFO"]
        assert {line for line, _ in world.lines} == {"The log level changes"}


async def test_other_keys_are_named_in_one_line_and_no_values(tmp_path: Path) -> None:
    async with watched(tmp_path) as (world, _):
        world.write({**MASTER, "logLevel": "DEBUG", "apiServer": {"port": 7}, "liteDeployToken": "S3CR3T", "root": ""})
        await world.clock.advance(2 * PERIOD)
        (line,) = [fields for sentence, fields in world.lines if "next start" in sentence]
        assert line["keys"] == ["apiServer.port", "liteDeployToken"]
        assert "S3CR3T" not in repr(world.lines)
        world.write(MASTER)
        await world.clock.advance(2 * PERIOD)
        assert [sentence for sentence, _ in world.lines].count(world.lines[-1][0]) == 2


@pytest.mark.parametrize("text", ["{", "logLevel: LOUD\nmode: master\ndomainID: alice\n", "mode: master\n"])
async def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path, text: str) -> None:
    async with watched(tmp_path) as (world, _):
        world.write(text)
        await world.clock.advance(3 * PERIOD)
        assert world.levels == []
        assert [sentence for sentence, _ in world.lines] == [
            "The changed configuration cannot be used; the node goes on with the old one"
        ]
        world.file.unlink()
        await world.clock.advance(3 * PERIOD)
        world.write({**MASTER, "logLevel": "ERROR"})
        await world.clock.advance(2 * PERIOD)
        assert world.levels == ["ERROR"]


async def test_asked_for_it_looks_at_once(tmp_path: Path) -> None:
    async with watched(tmp_path) as (world, watch):
        await world.clock.advance(0)
        world.write({**MASTER, "logLevel": "DEBUG"})
        watch.reload()
        await world.clock.advance(0.001)
        assert world.levels == ["DEBUG"]


async def test_a_new_level_reaches_the_node_its_children_and_envoy(tmp_path: Path) -> None:
    settings = config.parse(MASTER, tmp_path, lowest_port=0)
    settings.paths.prepare()
    envoy = Envoy(EnvoySettings("alice", tmp_path, tmp_path, tmp_path))
    before = logging.getLogger(ROOT).level
    try:
        modes._log_at(settings, [[], [envoy]], "DEBUG")
        assert logging.getLogger(ROOT).level == logging.DEBUG
        environ = child_logging.environment(tmp_path / "x.log", settings.paths.logging)
        told = child_logging._read(environ)
        assert told is not None and told.level == "DEBUG"
        assert envoy._wanted_level == LOG_LEVELS["DEBUG"]
    finally:
        logging.getLogger(ROOT).setLevel(before)


def test_envoy_never_prints_headers() -> None:
    """They hold tokens; Envoy prints them at debug and trace."""
    assert set(LOG_LEVELS) == set(config.LOG_LEVELS)
    assert not {"debug", "trace"} & set(LOG_LEVELS.values())


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1}}, {"a": None}, ["a.b"]),
        ({"a": {"b": ""}}, {}, []),
        ({}, {"a": {"b": False}}, ["a.b"]),
        ({"a": False}, {}, ["a"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a"]),
        ({"a": "none"}, {"a": {"b": 1}}, ["a"]),
        ({"b": 1, "a": 1}, {"c": 1}, ["a", "b", "c"]),
    ],
)
def test_which_keys_changed(before: dict[str, Any], after: dict[str, Any], keys: list[str]) -> None:
    assert config.changed_keys(before, after) == keys
