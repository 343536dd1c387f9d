"""What can be typed after a command, read from its real parser.

A parser needs its command's module, and that brings the whole client: 0.2 s, too slow for a key. Therefore the result is kept in
the user's cache directory, with the version and the newest source file as its key: an upgrade or an edited file is
noticed by the next TAB.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from coterie import __version__
from coterie.base.files import write_atomic
from coterie.base.lazy_import import lazy_import

if TYPE_CHECKING:
    import argparse

    from coterie.cli import main as command_line
    from coterie.cli.arguments import Parser
else:
    argparse = lazy_import("argparse")
    command_line = lazy_import("coterie.cli.main")

_PACKAGE = Path(__file__).parents[2]
_METAVARS = {
    "FILE": "files",
    "PATH": "files",
    "TAR": "files",
    "SOURCE": "files",
    "DIR": "directories",
    "DOMAIN": "domains",
    "NODE": "nodes",
    "NAMESPACE": "namespaces",
}
"""What an argument is by the word that stands for it in the help, unless the command says it with `Parser.complete`."""
_ALWAYS = {"context": "contexts", "domain": "local-domains"}


class WordSpec(TypedDict):
    """An argument, or the value of an option."""

    source: str
    choices: list[str]


class OptionSpec(TypedDict):
    names: list[str]
    takes: str
    """`value`, `optional` (only as --option=value) or empty."""
    word: WordSpec
    help: str


class CommandSpec(TypedDict):
    options: list[OptionSpec]
    words: list[WordSpec]
    repeats: bool
    """The last of the words may be repeated."""
    by_word: dict[str, list[str]]
    """After the first word: sources of the following ones; a last `*` repeats the one before."""


class TopSpec(TypedDict):
    options: list[OptionSpec]
    commands: list[tuple[str, str]]
    actions: dict[str, list[tuple[str, str]]]
    also: dict[str, str]
    """Other words for actions: `job list` -> `job ls`."""
    hands_on: list[str]


# From the parsers.


def top_specification() -> TopSpec:
    commands = command_line.COMMANDS
    actions = [(command, action) for command in commands for action in command.actions]
    return {
        "options": _options(command_line.root_parser()),
        "commands": [(command.name, command.summary) for command in commands],
        "actions": {
            command.name: [(action.action, action.summary) for action in command.actions]
            for command in commands
            if command.actions
        },
        "also": {f"{command.name} {word}": action.name for command, action in actions for word in action.also},
        "hands_on": [command.name for command in commands if command.hands_on],
    }


def command_specification(name: str) -> CommandSpec:
    """`name` is that of a command, or of an action such as `job run`."""
    head, _, rest = name.partition(" ")
    command = command_line.find(head)
    if rest:
        command, _ = command_line.into_action(command, [rest])
    return parser_specification(command_line.command_parser(command, command.load()))


def parser_specification(parser: Parser) -> CommandSpec:
    words: list[WordSpec] = []
    by_word: dict[str, list[str]] = {}
    repeats = False
    for action in parser._actions:
        if action.option_strings:
            continue
        declared = parser.completions.get(action.dest)
        if isinstance(declared, dict):
            by_word = {word: list(sources) for word, sources in declared.items()}
            if not words:  # the first word is one of these, and has no argument of its own
                words.append({"source": "", "choices": list(declared)})
        else:
            words.append(_word(action, declared))
        repeats = action.nargs in ("*", "+")
    return {"options": _options(parser), "words": words, "repeats": repeats, "by_word": by_word}


def _options(parser: Parser) -> list[OptionSpec]:
    return [
        {
            "names": list(action.option_strings),
            "takes": "" if action.nargs == 0 else "optional" if action.nargs == "?" else "value",
            "word": _word(action, parser.completions.get(action.dest)),
            "help": "" if action.help in (None, argparse.SUPPRESS) else str(action.help),
        }
        for action in parser._actions
        if action.option_strings
    ]


def _word(action: argparse.Action, declared: str | tuple[str, ...] | Mapping[str, Any] | None) -> WordSpec:
    if isinstance(declared, tuple):
        return {"source": "", "choices": list(declared)}
    if isinstance(declared, str):
        return {"source": declared, "choices": []}
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None:
        every = [str(choice) for choice in action.choices]
        shown = metavar.split("|")  # where the help names some of the words, the others mean the same
        return {"source": "", "choices": [each for each in every if each in shown] or every}
    return {"source": _ALWAYS.get(action.dest, "") or _METAVARS.get(metavar, ""), "choices": []}


# The cache.


class Specifications:
    """Specifications of this installation; `file`: where they are kept, None: nowhere."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: dict[str, Any] | None = None
        self._key = ""

    def top(self) -> TopSpec:
        return cast(TopSpec, self._find("", lambda: top_specification()))

    def command(self, name: str) -> CommandSpec:
        return cast(CommandSpec, self._find(name, lambda: command_specification(name)))

    def _find(self, name: str, make: Any) -> Any:
        known = self._load()
        if name not in known:
            known[name] = make()
            self._save(known)
        return known[name]

    def _load(self) -> dict[str, Any]:
        if self._known is None:
            self._key = _installation()
            self._known = {}
            with contextlib.suppress(OSError, ValueError):
                document = json.loads(self._file.read_bytes()) if self._file is not None else {}
                if isinstance(document, dict) and document.get("key") == self._key:
                    self._known = dict(document["commands"])
        return self._known

    def _save(self, known: dict[str, Any]) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # a read-only home: it is slower, but it works
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self._file, json.dumps({"key": self._key, "commands": known}), durable=False)


def cache_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return Path(named) / "coterie" / "completion.json"
    home = environ.get("HOME", "")
    return Path(home) / ".cache" / "coterie" / "completion.json" if home.startswith("/") else None


def _installation() -> str:
    """Changes with every change to the program: 1,300 files are looked at in 7 ms."""
    newest, count, folders = 0, 0, [str(_PACKAGE)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    newest, count = max(newest, entry.stat().st_mtime_ns), count + 1
    return f"{__version__} {_PACKAGE} {newest} {count}"
