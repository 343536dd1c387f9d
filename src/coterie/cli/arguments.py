"""The pieces of the command line that commands share: the parser itself and groups of options.

Options may stand before, between and after the words, as with kubectl: `coterie get pods -n alice web-0`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from coterie.cli.app import UsageError

OUTPUTS = ("table", "wide", "json", "yaml", "name")
CONNECTION = ("kubeconfig", "context", "root", "domain", "namespace")
"""Options that say which server is meant; they are allowed before and after the command's name."""
VALUED = frozenset(("--kubeconfig", "--context", "--root", "--domain", "--namespace", "-n"))


class HelpAsked(Exception):
    """The user asked for help; the text is the exception's only argument."""


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        raise HelpAsked(parser.format_help())


class _Layout(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=120)


class Parser(argparse.ArgumentParser):
    """Help keeps its line breaks, abbreviations are off (they break when options are added), errors are one line."""

    def __init__(self, prog: str, description: str = "", epilog: str = "", usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=_Layout,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help")
        self.takes_command = False
        self.completions: dict[str, str | tuple[str, ...] | dict[str, tuple[str, ...]]] = {}

    def complete(self, **values: str | Sequence[str] | Mapping[str, Sequence[str]]) -> None:
        """What the values of arguments are, by the `dest` of the argument, for `coterie completion`.

        name="jobs"                                          names of jobs (`completion/names.py` lists the sources)
        parties="domains,"                                   several, separated by commas
        phase=("Running", "Failed")                          one of these words
        words={"show": ("tables",), "rm": ("grants", "*")}   by the word before: the next ones, `*` repeats the last
        """
        for dest, value in values.items():
            if isinstance(value, Mapping):
                self.completions[dest] = {word: tuple(sources) for word, sources in value.items()}
            else:
                self.completions[dest] = value if isinstance(value, str) else tuple(value)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def parse(self, words: Sequence[str], namespace: argparse.Namespace) -> argparse.Namespace:
        if self.takes_command:
            at = words.index("--") if "--" in words else len(words)
            namespace.command = list(words[at + 1 :])
            words = words[:at]
        return self.parse_intermixed_args(self._plain_switches(words), namespace)

    def _plain_switches(self, words: Sequence[str]) -> list[str]:
        """`--wait=false` as kubectl's users type it: a switch that is given a truth value."""
        out: list[str] = []
        for i, word in enumerate(words):
            if word == "--":
                return out + list(words[i:])
            name, equals, value = word.partition("=")
            action = self._option_string_actions.get(name) if equals and name.startswith("--") else None
            if action is None or action.nargs != 0 or value.lower() not in ("true", "false"):
                out.append(word)
            elif value.lower() == "true":
                out.append(name)
            elif f"--no-{name[2:]}" in self._option_string_actions:
                out.append(f"--no-{name[2:]}")
        return out


def command_argument(parser: Parser) -> None:
    """What stands after `--` is a command for somewhere else, whatever it looks like: `args.command`."""
    parser.takes_command = True


def words_argument(parser: argparse.ArgumentParser) -> None:
    """TYPE [NAME...] or TYPE/NAME...; the usage line explains it better than a list of arguments could."""
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def connection_options(parser: argparse.ArgumentParser) -> None:
    """Which server. Nothing given has no value at all, so that an option before the command's name is not undone."""
    group = parser.add_argument_group("control plane")
    none = argparse.SUPPRESS
    group.add_argument("--kubeconfig", metavar="FILE", default=none, help="use this kubeconfig")
    group.add_argument("--context", metavar="NAME", default=none, help="use this context of the kubeconfig")
    group.add_argument(
        "--root", metavar="DIR", default=none, help="directory of the domains ($COTERIE_ROOT, ~/.coterie)"
    )
    group.add_argument("--domain", metavar="ID", default=none, help="domain under the root, if there are several")


def root_option(parser: argparse.ArgumentParser) -> None:
    """For commands that work on this machine's files and ask no server by themselves."""
    parser.add_argument(
        "--root", metavar="DIR", default=argparse.SUPPRESS, help="directory of the domains ($COTERIE_ROOT, ~/.coterie)"
    )


def namespace_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAMESPACE",
        default=argparse.SUPPRESS,
        help="namespace of the objects (default: the context's)",
    )


def selector_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-l", "--selector", metavar="SELECTOR", default="", help="only objects with these labels, e.g. app=web,tier!=db"
    )
    parser.add_argument(
        "--field-selector",
        metavar="SELECTOR",
        default="",
        help="only objects with these fields, e.g. status.phase=Running",
    )


def output_option(parser: argparse.ArgumentParser, choices: Sequence[str] = OUTPUTS) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=choices,
        default="table",
        metavar="FORMAT",
        help=f"{', '.join(choices)} (default: table)",
    )


def file_options(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        action="append",
        default=[],
        help=f"{what}: a YAML or JSON file, a directory, or or - for standard input; may be repeated",
    )
    parser.add_argument("-R", "--recursive", action="store_true", help="also read subdirectories")


def seconds(text: str) -> float:
    """`30`, `30s`, `2m`, `1h`: as kubectl writes durations."""
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30s or 2m") from error
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30s or 2m")
    return value
