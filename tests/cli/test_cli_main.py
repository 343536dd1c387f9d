"""Finding commands, their help, exit statuses, and that the way there is short."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from coterie import __version__
from coterie.cli import main as program
from coterie.cli.app import App
from coterie.cli.arguments import Parser, seconds

NAMES = [command.name for command in program.COMMANDS]


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)], ids=lambda words: " ".join(words) or "nothing")
def test_top_help_lists_every_command(cli, words):
    shown = cli(*words)
    assert shown.code == 0
    for command in program.COMMANDS:
        assert f"  {command.name} " in shown.out
        assert command.summary in shown.out


@pytest.mark.parametrize("command", [each for each in program.COMMANDS if each.actions], ids=lambda each: each.name)
def test_actions_stand_apart_from_their_text(command):
    shown = program.actions_help(command)
    for action in command.actions:
        assert f"  {action.action} " in shown
    assert (
        len(
            {
                line.index(action.summary)
                for action in command.actions
                for line in shown.splitlines()
                if line.startswith(f"  {action.action} ") and line.endswith(action.summary)
            }
        )
        == 1
    )


@pytest.mark.parametrize("form", ["{} --help", "help {}", "{} -h"])
@pytest.mark.parametrize("name", NAMES)
def test_help_of_each_command_teaches_with_examples(cli, name, form):
    shown = cli(*form.format(name).split())
    assert shown.code == 0
    assert shown.out.startswith(f"usage: coterie {name} ")
    _, _, examples = shown.out.partition("Examples:\n")
    assert f"coterie {name}" in examples or f"coterie --domain alice {name}" in examples
    assert max(map(len, shown.lines)) <= 120


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gte", "pods"), 'no command "gte"; did you mean `coterie get`?'),
        (("frobnicate",), "`coterie --help` lists the commands"),
        (("get", "pods", "--colour"), "unrecognized arguments: --colour; see `coterie get --help`"),
        (("get", "pods", "-o", "xml"), "invalid choice: 'xml'"),
        (("--frob", "get"), "unrecognized arguments: --frob; see `coterie --help`"),
        (("apply",), "say what to apply with -f FILE"),
        (("start",), "say which configuration to run with -c FILE"),
        (("init", "--mode", "master"), "both --mode and --domain are needed"),
        (("kubectl",), "say what kubectl is to do"),
        (("delete", "pods"), "name the objects, or choose them with -l SELECTOR or --all"),
        (("delete", "pod", "a", "-l", "x=y"), "not both"),
        (("delete", "pod", "a", "-f", "x.yaml"), "not both at once"),
        (("delete", "pod", "a", "--now", "--grace-period", "3"), "leave one of them out"),
        (("get", "pods", "--sort-by", ".a["), "--sort-by"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_typed_wrongly_is_one_sentence_and_status_2(cli, words, said):
    told = cli(*words)
    assert told.code == 2
    assert told.err.startswith("Error: ")
    assert said in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_version_of_the_program(cli):
    assert cli("--version").out == f"coterie {__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("get pods -n x", ([], "get", ["pods", "-n", "x"])),
        ("-n x get pods", (["-n", "x"], "get", ["pods"])),
        ("--root=/r --domain a get pods", (["--root=/r", "--domain", "a"], "get", ["pods"])),
        ("--version", (["--version"], "", [])),
        ("--domain", (["--domain"], "", [])),
    ],
)
def test_the_command_is_the_first_word_that_is_no_option(words, expected):
    assert program.split(words.split()) == expected


def test_options_before_and_between_the_words():
    command = program.find("get")
    parser = program.command_parser(command, command.load())
    before = program._RootParser().parse_args(["-n", "alice", "--domain", "d"])
    args = parser.parse(["pods", "-l", "app=web", "web-0", "-owide"], before)
    assert (args.namespace, args.domain, args.words) == ("alice", "d", ["pods", "web-0"])
    assert (args.selector, args.output) == ("app=web", "wide")


@pytest.mark.parametrize(
    ("word", "wait", "ignore"),
    [
        ("--wait=false", False, False),
        ("--wait=true", True, False),
        ("--no-wait", False, False),
        ("--ignore-not-found=true", True, True),
        ("--ignore-not-found=false", True, False),
    ],
)
def test_switches_take_truth_values_as_with_kubectl(word, wait, ignore):
    command = program.find("delete")
    args = program.command_parser(command, command.load()).parse(["pod", "x", word], None)
    assert (args.wait, args.ignore_not_found) == (wait, ignore)


def test_words_after_two_dashes_are_left_alone():
    parser = Parser("x")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("words", nargs="*")
    assert parser._plain_switches(["--all=true", "--", "--all=true"]) == ["--all", "--", "--all=true"]


@pytest.mark.parametrize(("text", "value"), [("30", 30.0), ("30s", 30.0), ("2m", 120.0), ("1h", 3600.0), ("0", 0.0)])
def test_durations(text, value):
    assert seconds(text) == value


def test_bad_duration_is_told(cli):
    told = cli("delete", "pod", "x", "--timeout", "soon")
    assert told.code == 2
    assert "'soon' is not a duration such as 30s or 2m" in told.err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (_Terminal(), {}, True),
        (_Terminal(), {"NO_COLOR": "1"}, False),
        (_Terminal(), {"NO_COLOR": ""}, True),
        (_Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
    ids=["terminal", "no-color", "empty-no-color", "dumb", "pipe"],
)
def test_colour_on_a_terminal_only(stream, environ, expected):
    app = App(stream, io.StringIO(), environ)
    assert app.colour is expected
    assert (app.paint("x", "red") != "x") is expected


def test_help_loads_nothing_heavy():
    """Start-up time is a promise; what would break it is an import, and that can be checked without a clock."""
    code = (
        "import sys, coterie.cli.main as m; assert m.main(['--help']) == 0;"
        "heavy = {'asyncio', 'aiohttp', 'yaml', 'orjson', 'msgspec', 'uvloop', 'cryptography'} & set(sys.modules);"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_runs_as_a_module_and_ends_quietly_when_the_reader_leaves():
    done = subprocess.run(
        f"{sys.executable} -m coterie --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.startswith("Coterie runs multi-party computation")
    assert done.stderr == ""


def test_interrupt_has_its_own_status(cli, monkeypatch):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "_run", interrupted)
    assert cli("get", "pods").code == 130
