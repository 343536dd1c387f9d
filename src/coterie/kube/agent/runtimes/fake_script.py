"""The few words of shell that the fake runtime's containers understand.

Tests of the agent describe containers as people do (`sh -c "echo ready; sleep 5; exit 3"`), and the shared suite runs the
same commands on real processes. `parse` turns such a command into steps; the fake machine plays them on its clock.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrintStep:
    text: str
    stream: str = "stdout"


@dataclass(frozen=True, slots=True)
class SleepStep:
    seconds: float


@dataclass(frozen=True, slots=True)
class ExitStep:
    code: int


@dataclass(frozen=True, slots=True)
class KillStep:
    """The process kills itself."""

    number: int


@dataclass(frozen=True, slots=True)
class TrapStep:
    """What SIGTERM does from here on: nothing (None), or an exit with a code."""

    code: int | None


@dataclass(frozen=True, slots=True)
class EchoStep:
    """`cat`: copy the input to the output until the input ends."""


@dataclass(frozen=True, slots=True)
class OomStep:
    """Take more memory than there is."""


@dataclass(frozen=True, slots=True)
class WriteStep:
    """Write a line into a file below one of the container's mounts."""

    path: str
    text: str


Step = PrintStep | SleepStep | ExitStep | KillStep | TrapStep | EchoStep | OomStep | WriteStep

FOR_EVER = 1e9
_SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL, "INT": signal.SIGINT, "SEGV": signal.SIGSEGV}


def parse(words: Sequence[str]) -> tuple[Step, ...]:
    """The steps of a command. What is not understood runs until it is killed, as a server does."""
    if not words:
        return (SleepStep(FOR_EVER),)
    if words[0].rpartition("/")[2] in ("sh", "bash") and len(words) >= 3 and words[1] == "-c":
        return parse_script(words[2])
    return (_step(list(words)),)


def parse_script(script: str) -> tuple[Step, ...]:
    steps: list[Step] = []
    for line in re.split(r"[;\n]\s*(?=(?:[^'\"]|'[^']*'|\"[^\"]*\")*$)", script):
        if words := shlex.split(line):
            steps.append(_step(words))
    return tuple(steps)


def _step(words: list[str]) -> Step:
    if words[0] == "exec":
        words = words[1:]
    word, rest = words[0].rpartition("/")[2], words[1:]
    if word == "echo":
        if rest and rest[-1] == ">&2":
            return PrintStep(" ".join(rest[:-1]), "stderr")
        if len(rest) >= 2 and rest[-2] == ">":
            return WriteStep(rest[-1], " ".join(rest[:-2]))
        return PrintStep(" ".join(rest))
    if word == "sleep":
        return SleepStep(FOR_EVER if rest[0] in ("inf", "infinity") else float(rest[0]))
    if word == "exit":
        return ExitStep(int(rest[0]) if rest else 0)
    if word == "true":
        return SleepStep(0)
    if word == "false":
        return ExitStep(1)
    if word == "kill" and rest[-1] == "$$":
        name = rest[0].lstrip("-")
        return KillStep(int(name) if name.isdigit() else int(_SIGNALS[name]))
    if word == "trap":
        found = re.fullmatch(r"exit (\d+)", rest[0].strip())
        return TrapStep(int(found[1]) if found else None)
    if word == "cat":
        return EchoStep()
    if word == "oom":
        return OomStep()
    return SleepStep(FOR_EVER)
