"""docs/guide/engines.md: its engine runs, its AppImage is sound, its commands can be typed, its templates give what it says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from engine_kit import ended, scene

from coterie.cli import engines
from coterie.cli import main as program
from coterie.kuscia.api.engine_versions import annotation_faults
from coterie.kuscia.engine import certificates
from coterie.kuscia.engine.templates import template

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "engines.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)


async def test_the_engine_of_the_guide_runs(tmp_path: Path) -> None:
    (code,) = blocks("python")
    (tmp_path / "hello.py").write_text(code)
    async with scene(tmp_path, "alice", "bob") as world:
        running = []
        for party in ("alice", "bob"):
            path = world.configuration(party, "{}")
            path.write_text(path.read_text().replace("talk", "chat"))
            world.gateway.ports = {name.replace("talk", "chat"): port for name, port in world.gateway.ports.items()}
            env = {**os.environ, "http_proxy": f"http://127.0.0.1:{world.gateway.port}"}
            env.pop("no_proxy", None)
            running.append(
                await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-S",
                    str(tmp_path / "hello.py"),
                    str(path),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=env,
                )
            )
        try:
            assert [await ended(each) for each in running] == [(0, "bob is well\n", ""), (0, "alice is well\n", "")]
        finally:
            for each in running:
                if each.returncode is None:
                    each.kill()
                    await each.communicate()


def test_the_app_image_of_the_guide_is_sound() -> None:
    whole, versions = (yaml.safe_load(text) for text in blocks("yaml"))
    assert engines.faults(whole) == []
    assert annotation_faults(versions["metadata"]["annotations"]) == []


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.splitlines()])
def test_the_commands_of_the_guide_can_be_typed(line: str) -> None:
    before, name, after = program.split(shlex.split(line)[1:])
    command = program.find(name)
    if command.actions:
        command = next(each for each in command.actions if each.action == after[0])
        after = after[1:]
    chosen = program._RootParser().parse_args(before)
    program.command_parser(command, command.load()).parse(after, chosen)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{.TASK_ID}}", "t"),
        ("{{- .TASK_ID -}}", "t"),
        ("{{/* a remark */}}", ""),
        ("{{{.TASK_CLUSTER_DEFINE.selfPartyIdx}}}", "0"),
        ("{{{.TASK_CLUSTER_DEFINE.parties[0].name}}}", "alice"),
        ("{{{.TASK_CLUSTER_DEFINE.parties[name=bob].role}}}", "host"),
        ("{{{.TASK_CLUSTER_DEFINE.parties[.TASK_CLUSTER_DEFINE.selfPartyIdx].name}}}", "alice"),
    ],
)
def test_the_templates_of_the_guide(text: str, expected: str) -> None:
    assert f"`{text}`" in GUIDE
    cluster = {"selfPartyIdx": 0, "parties": [{"name": "alice"}, {"name": "bob", "role": "host"}]}
    values = {"TASK_ID": "t", "TASK_CLUSTER_DEFINE": json.dumps(cluster)}
    assert template.render(template.parse(text), values) == expected


def test_the_names_in_the_guide_are_those_of_the_code() -> None:
    for variable, file in (*certificates.SERVER, *certificates.CLIENT, certificates.TRUSTED):
        assert f"`{variable}`" in GUIDE
        assert f"`{file}`" in GUIDE
