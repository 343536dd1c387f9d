"""Every command in the guide and in the help texts can be typed as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from coterie.cli import main as program
from coterie.cli.commands.kubectl import take_ours

_TOP = Path(__file__).parents[2]
GUIDE = _TOP / "docs" / "guide" / "command-line.md"
MORE = (
    *(
        _TOP / "docs" / "guide" / name
        for name in (
            "network.md",
            "joined-networks.md",
            "kuscia-partners.md",
            "jobs.md",
            "functions.md",
            "gpu-jobs.md",
            "policy.md",
            "diagnose.md",
        )
    ),
    _TOP / "README.md",
)
_SEPARATORS = re.compile(r"(?:&&|\|\||[|;])(?=(?:[^']*'[^']*')*[^']*$)")
"""Outside of quotes."""


def commands_in(text: str) -> list[str]:
    """The `coterie ...` in lines of shell; pipes, loops, redirections and comments are the shell's."""
    found = []
    for line in text.splitlines():
        for part in _SEPARATORS.split(line.partition(" #")[0]):
            words = part.split()
            while words and words[0] in ("until", "do", "while", "if"):
                words.pop(0)
            if words and words[0] == "coterie":
                found.append(" ".join(word for word in words if not re.match(r"\d?>", word)))
    return found


def in_guide() -> list[str]:
    texts = "\n".join(path.read_text() for path in (GUIDE, *MORE))
    blocks = re.findall(r"```sh\n(.*?)```", texts, re.DOTALL)
    return [command for block in blocks for command in commands_in(block)]


def in_help() -> list[str]:
    every = [each for command in program.COMMANDS for each in (command, *command.actions)]
    texts = [command.load().HELP.partition("Examples:\n")[2] for command in every]
    return [command for text in [*texts, program.top_help()] for command in commands_in(text)]


def test_there_are_examples_to_check():
    assert len(in_guide()) > 30
    assert len(in_help()) > 30


@pytest.mark.parametrize("line", sorted(set(in_guide() + in_help())))
def test_example_parses(line):
    if "COMMAND" in line:
        pytest.skip("a pattern, not a command")
    before, name, after = program.split(shlex.split(line)[1:])
    chosen = program._RootParser().parse_args(before)
    if not name:
        assert chosen.version
        return
    try:
        command, after = program.into_action(program.find(name), after)
    except program.HelpAsked:
        return
    module = command.load()
    if command.hands_on:
        assert take_ours(after, chosen)
        return
    program.command_parser(command, module).parse([word for word in after if word != "--help"], chosen)


def test_every_command_is_in_the_guide():
    text = GUIDE.read_text()
    missing = [command.name for command in program.COMMANDS if f"coterie {command.name}" not in text]
    assert missing == []
