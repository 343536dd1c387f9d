"""Commands that the page shows are commands: the command line reads each of them."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.cli import main as cli
from coterie.cli.app import UsageError

WEB = Path(__file__).parents[2] / "web"
_CALL = re.compile(r"coterie\(\s*(?:\w+ \? )?\[((?:\"[^\"]*\"|`[^`]*`|[^\]`\"])*)\](?: : \[((?:[^\]])*)\])?")
_WORD = re.compile(r"\"([^\"]*)\"|`[^`]*`|\.\.\.|[\w.?]+(?: \?\? \"[^\"]*\")?")
_PROGRAM = """
globalThis.localStorage = { getItem: () => null, setItem: () => undefined };
globalThis.navigator ??= { language: "en" };
const { execCommand, grantCommand, invokeCommand, listCommand, logsCommand, runCommand, stopCommand, verifyCommand, versionsCommand } = await import("./src/commands");
const party = (domain, role, cpu, memory) => ({ domain, role, cpu, memory });
const logs = { job: "j", party: "", task: "", source: "engine", since: "", grep: "", follow: false };
console.log(JSON.stringify([
  runCommand({ engine: "psi", name: "it's mine", input: '{\\n  "keys": {"alice": ["a b"]}\\n}', initiator: "alice", parties: [party("alice", "guest", "2", ""), party("bob", "", "1", "4Gi")] }, "alice"),
  runCommand({ engine: "", name: "", input: "{}", initiator: "", parties: [] }, ""),
  grantCommand("customers", "bob", ["id", "first name"], "3", 3600, "alice"),
  grantCommand("customers", "bob", [], "", 0, "alice"),
  listCommand("phase:Failed party:bob", "alice"),
  listCommand("words", "alice"),
  logsCommand({ ...logs, party: "alice", task: "psi", source: "gateway", since: "10m", grep: "a|b c", follow: true }, "alice"),
  logsCommand(logs, "alice"),
  invokeCommand("score", "it's [1, 2]", "alice"),
  invokeCommand("score", "", "alice"),
  ...[[], [["v2", 100]], [["v2", 100], ["v1", 0]], [["v2", 0], ["v1", 100]], [["v2", 10], ["v1", 90]]].map((shares) => versionsCommand("score", "v2", shares.map(([name, percent]) => ({ name, percent })), "alice")),
  verifyCommand("alice"),
  execCommand("alice", "psi-0", "engine", "sh -l", "alice"),
  stopCommand(["one"], "alice"),
  stopCommand(["one", "it's two"], "alice"),
]));
"""


def read(words: list[str]) -> None:
    """UsageError: the command line would refuse it."""
    before, name, after = cli.split(words)
    command, after = cli.into_action(cli.find(name), after)
    cli.command_parser(command, command.load()).parse([*before, *after], argparse.Namespace())


def written() -> list[tuple[str, list[str]]]:
    """Calls of `coterie([...])` in the screens, with `x` for what is known only there."""
    found: list[tuple[str, list[str]]] = []
    for path in sorted((WEB / "src").rglob("*.tsx")):
        for one, other in _CALL.findall(path.read_text()):
            for inside in filter(None, (one, other)):
                inside = re.sub(r"\.\.\.\([^\]]*$|\.\.\.\(.*\)", "", inside)
                found.append((path.name, [literal or "x" for literal in _WORD.findall(inside)]))
    return found


def test_commands_of_the_screens_can_be_read() -> None:
    calls = written()
    assert len(calls) >= 20
    for path, words in calls:
        try:
            read([*words, "--domain", "alice"])
        except UsageError as problem:
            pytest.fail(f"{path}: coterie {shlex.join(words)}: {problem}")


def test_commands_made_of_choices_can_be_read_as_a_shell_does(tmp_path: Path) -> None:
    node = shutil.which("node")
    esbuild = WEB / "node_modules" / ".bin" / "esbuild"
    if node is None or not esbuild.exists():
        pytest.skip("no Node, or no `npm ci` in web/")
    bundle = tmp_path / "commands.mjs"
    options = ["--bundle", "--format=esm", "--platform=node", f"--outfile={bundle}", "--log-level=error"]
    subprocess.run([esbuild, *options], input=_PROGRAM, text=True, check=True, timeout=60, cwd=WEB)
    shown: list[str] = json.loads(subprocess.run([node, bundle], capture_output=True, check=True, timeout=60).stdout)
    for command in " && ".join(shown[:-1]).split(" && "):
        words = shlex.split(command)
        assert words[0] == "coterie"
        read(words[1:])
    assert [command.removesuffix(" --domain alice") for command in shown if " score " in command][2:] == [
        "coterie action versions score",
        "coterie action versions score",
        "coterie action rollback score --to v1",
        "coterie action traffic score latest",
        "coterie action traffic score v2=10,v1=90",
    ]
    run = shlex.split(shown[0])
    assert run[run.index("--input") + 1] == '{"keys":{"alice":["a b"]}}' and run[run.index("--name") + 1] == "it's mine"
    assert run[run.index("--cpu") + 1] == "alice=2,bob=1" and run[run.index("--role") + 1] == "alice=guest"
    several = shlex.split(shown[-1])
    assert several[:5] == ["for", "job", "in", "one", "it's two;"] and several[-2:] == ["$job;", "done"]
