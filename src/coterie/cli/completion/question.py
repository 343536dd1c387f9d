"""What could stand at the cursor (pure): the words before it, read as the parser would read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.cli.completion.specification import CommandSpec, OptionSpec, TopSpec, WordSpec

_NOTHING: WordSpec = {"source": "", "choices": []}


@dataclass(frozen=True)
class CompletionQuestion:
    fixed: str = ""
    """The part of the word that stays: `--output=`, `alice,`."""
    typed: str = ""
    """What follows it; every candidate begins with this."""
    source: str = ""
    """Where names come from, see `names.py`."""
    candidates: tuple[tuple[str, str], ...] = ()
    """Words known without asking anyone, with descriptions."""
    command: str = ""
    words: tuple[str, ...] = ()
    """Arguments before the cursor, without options."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of options, by their long name without dashes."""


class _Reader:
    """Reads words, tells options with their values from arguments."""

    def __init__(self) -> None:
        self.known: dict[str, OptionSpec] = {}
        self.values: dict[str, str] = {}
        self.awaits: OptionSpec | None = None
        self.ended = False
        """After `--`: what follows is somebody else's command."""

    def learn(self, options: Sequence[OptionSpec]) -> None:
        for option in options:
            for name in option["names"]:
                self.known[name] = option

    def takes(self, word: str) -> bool:
        """Whether the word is an option or its value. False: it is an argument."""
        if self.awaits is not None:
            self._keep(self.awaits, word)
            self.awaits = None
            return True
        if word == "--":
            self.ended = True
            return True
        if not word.startswith("-") or word == "-":
            return False
        name, equals, value = word.partition("=")
        option = self.known.get(name)
        if option is None and not word.startswith("--") and len(word) > 2:  # -nalice
            option, equals, value = self.known.get(word[:2]), "=", word[2:]
        if option is not None and equals:
            self._keep(option, value)
        elif option is not None and option["takes"] == "value":
            self.awaits = option
        return True

    def _keep(self, option: OptionSpec, value: str) -> None:
        self.values[option["names"][-1].lstrip("-")] = value


def question(
    before: Sequence[str], current: str, top: TopSpec, command_spec: Callable[[str], CommandSpec]
) -> CompletionQuestion:
    """`before`: the words after `coterie` up to the one at the cursor, `current`: that one up to the cursor."""
    reader = _Reader()
    reader.learn(top["options"])
    words = list(before)
    name = _next_argument(words, reader)
    if name == "help":
        name, reader.known = _next_argument(words, reader), {}
        if not name:
            return _of_words(top["commands"], current, reader)
    if not name:
        return _option_or(current, reader, top["options"], lambda: _of_words(top["commands"], current, reader))
    if name in top["hands_on"]:
        return CompletionQuestion(source="files", typed=current)
    if name in top["actions"]:
        action = _next_argument(words, reader)
        if not action:
            actions = top["actions"][name]
            return _option_or(current, reader, top["options"], lambda: _of_words(actions, current, reader))
        name = top["also"].get(f"{name} {action}", f"{name} {action}")
    known = {command for command, _ in top["commands"]}
    known |= {f"{command} {action}" for command, actions in top["actions"].items() for action, _ in actions}
    return _in_command(name, words, current, command_spec(name), reader) if name in known else CompletionQuestion()


def _next_argument(words: list[str], reader: _Reader) -> str:
    """Takes words away up to the first that is no option."""
    while words:
        word = words.pop(0)
        if not reader.takes(word):
            return word
    return ""


def _in_command(name: str, words: list[str], current: str, spec: CommandSpec, reader: _Reader) -> CompletionQuestion:
    reader.learn(spec["options"])
    arguments: list[str] = []
    while words and not reader.ended:
        if word := _next_argument_or_end(words, reader):
            arguments.append(word)
    if reader.ended:
        return CompletionQuestion(source="files", typed=current)

    def argument() -> CompletionQuestion:
        return _of_value(_word_at(arguments, spec), current, "", reader, name, arguments)

    return _option_or(current, reader, spec["options"], argument, name, arguments)


def _next_argument_or_end(words: list[str], reader: _Reader) -> str:
    word = words.pop(0)
    return "" if reader.takes(word) else word


def _word_at(arguments: Sequence[str], spec: CommandSpec) -> WordSpec:
    at, words = len(arguments), spec["words"]
    if spec["by_word"] and arguments:
        sources = spec["by_word"].get(arguments[0], [])
        if sources and sources[-1] == "*":
            sources = sources[:-1] + [sources[-2]] * at
        return {"source": sources[at - 1], "choices": []} if at - 1 < len(sources) else _NOTHING
    if at < len(words):
        return words[at]
    return words[-1] if words and spec["repeats"] and not spec["by_word"] else _NOTHING


def _option_or(
    current: str,
    reader: _Reader,
    options: Sequence[OptionSpec],
    argument: Callable[[], CompletionQuestion],
    name: str = "",
    arguments: Sequence[str] = (),
) -> CompletionQuestion:
    if reader.awaits is not None:
        return _of_value(reader.awaits["word"], current, "", reader, name, arguments)
    if not current.startswith("-"):
        return argument()
    head, equals, value = current.partition("=")
    option = reader.known.get(head)
    if equals:
        word = option["word"] if option is not None and option["takes"] else _NOTHING
        return _of_value(word, value, head + equals, reader, name, arguments)
    # A long name says more than a letter; the letter is offered when it was typed.
    found = [
        (each, option["help"])
        for option in options
        for each in option["names"]
        if option["help"] and (each.startswith("--") or each == current)
    ]
    return CompletionQuestion("", current, "", _beginning(found, current), name, tuple(arguments), reader.values)


def _of_words(listed: Sequence[tuple[str, str]], current: str, reader: _Reader) -> CompletionQuestion:
    found = _beginning([(word, summary) for word, summary in listed], current)
    return CompletionQuestion("", current, "", found, options=reader.values)


def _of_value(
    word: WordSpec, current: str, fixed: str, reader: _Reader, name: str, arguments: Sequence[str]
) -> CompletionQuestion:
    source, typed = word["source"], current
    if source.endswith(","):
        head, comma, typed = current.rpartition(",")
        source, fixed = source[:-1], fixed + head + comma
    found = _beginning([(choice, "") for choice in word["choices"]], typed)
    return CompletionQuestion(fixed, typed, source, found, name, tuple(arguments), reader.values)


def _beginning(listed: Sequence[tuple[str, str]], typed: str) -> tuple[tuple[str, str], ...]:
    return tuple(each for each in listed if each[0].startswith(typed))
