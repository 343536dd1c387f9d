"""`coterie completion`: what the shells offer, and that a name of a partner is only ever text in them."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.cli import main as program
from coterie.cli.app import App
from coterie.cli.completion.answer import answer
from coterie.cli.completion.api_request import ApiReader
from coterie.cli.completion.names import FILE_SOURCES, LOCAL_SOURCES, SOURCES, names, offered
from coterie.cli.completion.question import CompletionQuestion
from coterie.cli.completion.shells import SCRIPTS, SHELLS, bash_candidates, fish_word, parse_line
from coterie.cli.completion.specification import (
    CommandSpec,
    Specifications,
    command_specification,
    parser_specification,
    top_specification,
)
from coterie.kube.client import kubeconfig

_TOP = Path(__file__).parents[2]
_TOOLS = _TOP / ".tools" / "servers"
_BREAKS = " \t\n\"'@><=;|&(:"
EVIL = (
    "$(touch pwned)",
    "`touch pwned`",
    "a b",
    "it's",
    'say "x"',
    "x;touch pwned",
    "a&b",
    "*",
    "!!",
    "\\n",
    "#x",
    "~",
)
ROLE = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {0}}}\nrules: []\n---\n"


def asked(app: App, line: str) -> list[str]:
    """Candidates of bash for a command line with the cursor at its end."""
    return answer(["bash", line, _BREAKS], app)[1:]


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(io.StringIO(), io.StringIO(), {"HOME": str(tmp_path)}, io.StringIO(), tmp_path)


@pytest.fixture
def objects(live, tmp_path) -> App:
    """A control plane with one object of each kind that has names to complete."""
    kuscia = "apiVersion: kuscia.secretflow/v1alpha1"
    party = "parties: [{domainID: alice}, {domainID: bob}]"
    made = live(
        "apply",
        "-f",
        "-",
        stdin=f"""
{{apiVersion: v1, kind: Namespace, metadata: {{name: cross-domain}}}}
---
{{apiVersion: v1, kind: Namespace, metadata: {{name: alice}}}}
---
{{{kuscia}, kind: Domain, metadata: {{name: alice}}, spec: {{}}}}
---
{{{kuscia}, kind: Domain, metadata: {{name: bob}}, spec: {{}}}}
---
{{{kuscia}, kind: ClusterDomainRoute, metadata: {{name: alice-bob}},
 spec: {{source: alice, destination: bob, authenticationType: Token}}}}
---
{{{kuscia}, kind: AppImage, metadata: {{name: psi-image}}, spec: {{image: {{name: a, tag: b}}, deployTemplates: []}}}}
---
{{{kuscia}, kind: DomainData, metadata: {{name: customers, namespace: alice}},
 spec: {{name: customers, relativeURI: c.csv, type: table, author: alice, dataSource: default-data-source}}}}
---
{{{kuscia}, kind: KusciaJob, metadata: {{name: common-customers, namespace: cross-domain}},
 spec: {{initiator: alice, tasks: [{{alias: match, taskID: t, appImage: psi-image, taskInputConfig: "", {party}}}]}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: web-0}}, spec: {{containers: [{{name: main, image: x}}]}}}}
""",
    )
    assert made.code == 0, made.err + made.out
    environ = {**live.environ, "COTERIE_COMPLETION_SECONDS": "20"}
    return App(io.StringIO(), io.StringIO(), environ, io.StringIO(), tmp_path)


# What is offered.


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("coterie jo", ["job"]),
        ("coterie --root /x jo", ["job"]),
        ("coterie job sh", ["show"]),
        ("coterie help jo", ["job"]),
        ("coterie job ls --ou", ["--output"]),
        ("coterie job ls --output ", ["table", "wide", "json", "yaml", "name"]),
        ("coterie job ls --output y", ["yaml"]),
        ("coterie job ls -o y", ["yaml"]),
        ("coterie job ls --output=y", ["yaml"]),
        ("coterie job list --phase Susp", ["Suspended"]),
        ("coterie data gr", ["grant"]),
        ("coterie up --topology c", ["center"]),
        ("coterie completion f", ["fish"]),
        ("coterie top p", ["pod"]),
        ("coterie nosuch ", []),
        ("coterie job nosuch ", []),
        ("coterie demo psi extra ", []),
    ],
)
def test_words_come_from_the_parser(app, line, expected):
    assert asked(app, line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("coterie job show ", ["common-customers"]),
        ("coterie job show co", ["common-customers"]),
        ("coterie job show xx", []),
        ("coterie job rm first ", ["common-customers"]),
        ("coterie job logs common-customers --task ", ["match"]),
        ("coterie job logs common-customers --party ", ["alice", "bob"]),
        ("coterie logrequest create common-customers --party b", ["bob"]),
        ("coterie job run --engine ", ["psi-image"]),
        ("coterie job run --parties alice,", ["alice,alice", "alice,bob"]),
        ("coterie job run --parties=alice,b", ["alice,bob"]),
        ("coterie data show ", ["customers"]),
        ("coterie data grant customers b", ["bob"]),
        ("coterie data --domain bob show ", []),
        ("coterie domain rm a", ["alice"]),
        ("coterie route check ", ["alice"]),
        ("coterie route check alice ", ["bob"]),
        ("coterie route check bob ", []),
        ("coterie engine rm ", ["psi-image"]),
        ("coterie logs ", ["web-0"]),
        ("coterie logs web-0 -c ", ["main"]),
        ("coterie exec w", ["web-0"]),
        ("coterie top pod ", ["web-0"]),
        ("coterie get appim", ["appimages"]),
        ("coterie get po ", ["web-0"]),
        ("coterie get pod/", ["pod/web-0"]),
        ("coterie get kj -n cross-domain ", ["common-customers"]),
        ("coterie get kj -ncross-domain ", ["common-customers"]),
        ("coterie get pods -n cross", ["cross-domain"]),
        ("coterie diagnose network alice ", ["alice", "bob"]),
    ],
)
def test_names_come_from_the_control_plane(objects, line, expected):
    assert asked(objects, line) == expected


def test_every_list_is_one_of_the_server(objects):
    reader = _Recording(kubeconfig.load([Path(objects.environ["KUBECONFIG"])]).resolve(), 10)
    for source in sorted(SOURCES - FILE_SOURCES - LOCAL_SOURCES):
        names(CompletionQuestion(command="job logs"), source, reader)
    reader.close()
    assert reader.wrong == ()


class _Recording(ApiReader):
    """Remembers what could not be read."""

    wrong: tuple[str, ...] = ()

    def get(self, path, **how):
        found = super().get(path, **how)
        if not found:
            self.wrong += (path,)
        return found


FREE_TEXT = {
    "node add name",  # a new one
    "gpujob run name",
    "action publish topic",
    "action result id",
    "job limit amount",
    "bandwidth amount",
    "metrics names",  # dashboards
    "audit show index",  # numbers of events
    "audit prove index",
    "audit erase person",
    "audit retain days",
}


def test_every_argument_says_what_it_is():
    """A new argument is completed, or it stands on the list of free text."""
    found: set[str] = set()
    for command in program.COMMANDS:
        for each in command.actions or (command,):
            if each.hands_on:
                continue
            parser = program.command_parser(each, each.load())
            spec = parser_specification(parser)
            assert _sources(spec) <= SOURCES, each.name
            arguments = [action.dest for action in parser._actions if not action.option_strings]
            for name, word in zip(arguments, spec["words"], strict=False):
                if not word["source"] and not word["choices"]:
                    found.add(f"{each.name} {name}")
    assert found == FREE_TEXT


def _sources(spec: CommandSpec) -> set[str]:
    words = [*spec["words"], *(option["word"] for option in spec["options"])]
    named = [word["source"] for word in words] + [s for each in spec["by_word"].values() for s in each if s != "*"]
    return {part for source in named for part in source.removesuffix(",").split("|") if part}


def test_files_are_left_to_the_shell(app):
    assert answer(["bash", "coterie job run ", _BREAKS], app) == ["files"]
    assert answer(["bash", "coterie up --root ", _BREAKS], app) == ["directories"]
    assert answer(["bash", "coterie exec web-0 -- ca", _BREAKS], app) == ["files"]


def test_domains_of_this_machine(app, tmp_path):
    for name in ("alice", "bob"):
        (tmp_path / ".coterie" / name).mkdir(parents=True)
        (tmp_path / ".coterie" / name / "kubeconfig").write_text("{}")
    assert asked(app, "coterie get pods --domain ") == ["alice", "bob"]
    assert asked(app, "coterie --domain a") == ["alice"]


def test_zsh_and_fish_get_descriptions(app):
    assert "job\trun, watch and control jobs" in answer(["zsh", "jo"], app)
    assert "--phase\tonly jobs in this phase, e.g. Running" in answer(["fish", "job", "ls", "--ph"], app)


def test_a_control_plane_that_is_away_is_no_error(app, tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text("not a kubeconfig: [")
    assert asked(app, f"coterie --kubeconfig {file} job show ") == []
    assert asked(app, f"coterie --kubeconfig {tmp_path}/none job show ") == []


def test_names_that_could_write_on_the_terminal_are_left_out():
    bad = ["a\nb", "a\x1b[2Jb", "a\tb", "a\x00", "a\u202eb", "a\u200bb", ""]
    assert offered([*bad, "fine", "fine", "a b"], "") == ["fine", "a b"]


# The cache of what the parsers say.


def test_the_cache_is_what_the_parsers_say_and_ends_with_a_change(tmp_path, monkeypatch):
    file = tmp_path / "cache" / "completion.json"
    first = Specifications(file)
    assert first.command("job ls") == command_specification("job ls")
    assert first.top()["commands"] == top_specification()["commands"]
    again = Specifications(file)
    monkeypatch.setattr("coterie.cli.completion.specification.command_specification", _not_asked)
    assert again.command("job ls") == first.command("job ls")
    monkeypatch.setattr("coterie.cli.completion.specification._installation", lambda: "another version")
    with pytest.raises(LookupError):
        Specifications(file).command("job ls")


def _not_asked(name: str) -> CommandSpec:
    raise LookupError(name)


def test_a_home_that_cannot_be_written_and_a_spoilt_cache(tmp_path):
    spoilt = tmp_path / "completion.json"
    spoilt.write_text('{"key": ')
    assert Specifications(spoilt).command("version")["words"] == []
    assert Specifications(Path("/proc/none/completion.json")).command("version")["words"] == []


# The command line of the shells.


def test_a_line_is_read_as_bash_does():
    line = parse_line("coterie get 'a b' c\\ d --output=js", _BREAKS)
    assert (line.words, line.current, line.kept) == (("coterie", "get", "a b", "c d"), "--output=js", 9)
    assert parse_line('coterie get "al').quote == '"'
    assert parse_line("coterie get ").current == ""
    assert fish_word('"a b') == fish_word("a\\ b") == "a b"


@pytest.mark.parametrize("before", ["", "'", '"'])
def test_a_candidate_of_bash_is_inert_wherever_it_is_inserted(tmp_path, before):
    """What bash would insert, run by bash: every name arrives as one word, and nothing else happens."""
    line = parse_line(f"coterie get clusterroles {before}", _BREAKS)
    inserted = bash_candidates([(name, "") for name in EVIL], line)
    script = "".join(f"printf '%s\\0' {before}{each}{before}\n" for each in inserted)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, timeout=30, check=True)
    arrived = done.stdout.decode().split("\0")[:-1]
    expected = [name.replace("!", "\\!") if before == '"' else name for name in EVIL]  # bash keeps this backslash
    assert arrived == expected
    assert list(tmp_path.iterdir()) == []


# Real shells on a terminal.


def shell_program(name: str) -> tuple[list[str], dict[str, str]]:
    """How to start the shell without anybody's configuration; skips where there is none."""
    if name == "bash":
        return ["bash", "--norc", "--noprofile", "-i"], {}
    unpacked = _TOOLS / name
    found = shutil.which(name)
    if found is None and not unpacked.is_dir():
        pytest.skip(f"{name} is not installed; scripts/get-servers gets it")
    environ = {}
    if found is None:
        place = next(path for path in (unpacked / "bin" / name, unpacked / "usr" / "bin" / name) if path.exists())
        found = str(place)
        environ["LD_LIBRARY_PATH"] = str(next((unpacked / "usr" / "lib").glob("*-linux-gnu")))
    return [found, "-f", "-i"] if name == "zsh" else [found, "--no-config", "-i"], environ


def set_up(shell: str, folder: Path) -> str:
    """The commands that make completion work in a bare shell."""
    (folder / "script").write_text(SCRIPTS[shell])
    source = f"source {shlex.quote(str(folder / 'script'))}"
    if shell == "bash":
        return f"bind 'set bell-style none'; {source}"
    if shell == "zsh":
        functions = _TOOLS / "zsh" / "usr" / "share" / "zsh" / "functions"
        modules = next((_TOOLS / "zsh" / "usr" / "lib").glob("*/zsh/*"), None)
        own = f"fpath=({functions} {functions}/**/*(/)); module_path=({modules}); " if modules is not None else ""
        return f"{own}autoload -U compinit; compinit -u -D; {source}"
    functions = _TOOLS / "fish" / "usr" / "share" / "fish" / "functions"
    return f"set -g fish_function_path {functions} $fish_function_path; {source}"


class _Terminal:
    """A shell on a pseudo terminal."""

    def __init__(self, argv: list[str], environ: dict[str, str], folder: Path) -> None:
        self.seen = b""
        master, slave = pty.openpty()
        self._master = master
        self._process = subprocess.Popen(argv, cwd=folder, env=environ, preexec_fn=lambda: os.login_tty(slave))
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait(self, done, seconds: float = 20.0) -> bool:
        """Until `done()`; what the shell writes is read meanwhile, and questions about the terminal are answered."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                return False
            if select.select([self._master], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    data = os.read(self._master, 65536)
                    self.seen += data
                    if b"\x1b[c" in data or b"\x1b[0c" in data:
                        os.write(self._master, b"\x1b[?62c")
                    if b"\x1b[6n" in data:
                        os.write(self._master, b"\x1b[1;1R")
        return True

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.fixture(params=SHELLS)
def terminal(request, tmp_path, live) -> Iterator[tuple[_Terminal, Path]]:
    """A shell with completion. Its `coterie` is the real one for completion; otherwise it writes down its arguments."""
    shell = request.param
    argv, extra = shell_program(shell)
    wrapper = tmp_path / "bin" / "coterie"
    wrapper.parent.mkdir()
    wrapper.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = __complete ]; then unset LD_LIBRARY_PATH; exec {sys.executable} -m coterie "$@"; fi\n'
        f'for each in "$@"; do printf "%s\\n" "$each"; done > {tmp_path}/arguments.new\n'
        f"mv {tmp_path}/arguments.new {tmp_path}/arguments\n"
    )
    wrapper.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    environ = {"HOME": str(tmp_path), "PATH": f"{wrapper.parent}:{os.environ['PATH']}", "TERM": "xterm", "PS1": "> "}
    environ["COTERIE_COMPLETION_SECONDS"] = "20"
    opened = _Terminal(argv, {**environ, "KUBECONFIG": live.environ["KUBECONFIG"], **extra}, work)
    try:
        opened.type(f" {set_up(shell, tmp_path)}\n echo rea''dy\n")
        assert opened.wait(lambda: b"ready" in opened.seen), opened.seen
        yield opened, tmp_path
    finally:
        opened.end()


def test_a_name_of_a_partner_is_text_in_every_shell(terminal, live):
    """TAB on a real terminal, names of a real control plane: the only one that fits is inserted, and Enter runs it."""
    opened, folder = terminal
    planted = {"a": "zza$(touch pwned)", "b": "zzb" + "".join(EVIL)}
    rows = "".join(ROLE.format("'" + name.replace("'", "''") + "'") for name in planted.values())
    made = live("apply", "-f", "-", stdin=rows)
    assert made.code == 0, made.err
    (folder / "work" / "job file.yaml").touch()
    expected = {
        "get clusterroles zza": ["get", "clusterroles", planted["a"]],
        "get clusterroles zzb": ["get", "clusterroles", planted["b"]],
        "job ls --output=y": ["job", "ls", "--output=yaml"],
        "job run jo": ["job", "run", "job file.yaml"],
    }
    for typed, arguments in expected.items():
        (folder / "arguments").unlink(missing_ok=True)
        opened.type(f"coterie {typed}\t\n")
        assert opened.wait((folder / "arguments").exists), opened.seen
        assert (folder / "arguments").read_text().splitlines() == arguments
    assert [path.name for path in (folder / "work").iterdir()] == ["job file.yaml"]


def test_the_scripts_never_expand_what_they_get():
    for script in SCRIPTS.values():
        assert not re.search(r"\beval\b|compgen|\bsource\b(?! <\()", script)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script(cli, shell):
    assert cli("completion", shell).out == SCRIPTS[shell]
    assert cli("completion", "tcsh").code == 2


def test_help_says_how_to_install_it(cli):
    text = cli("completion", "--help").out
    assert "source <(coterie completion bash)" in text
    assert "~/.config/fish/completions/coterie.fish" in text


# The hidden call.


def test_the_hidden_call_does_without_the_client_and_ends_when_nobody_answers(tmp_path):
    """A control plane that accepts connections and is silent; the caller does not wait for it, and nothing is printed."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = tmp_path / "kubeconfig"
        file.write_text(
            f'{{"clusters": [{{"name": "a", "cluster": {{"server": "http://127.0.0.1:{silent.getsockname()[1]}"}}}}],'
            '"contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"}'
        )
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "KUBECONFIG": str(file)}
        call = [sys.executable, "-m", "coterie", "__complete", "bash", "coterie job show ", _BREAKS]
        done = subprocess.run(call, env=environ, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_hidden_call_imports_little(tmp_path):
    code = (
        "import sys; sys.argv[1:] = ['__complete', 'zsh', 'job', 'ls', '--output', '']\n"
        "from coterie.cli.entry import main; main()\n"
        "print(sorted({'asyncio', 'argparse', 'aiohttp', 'msgspec', 'yaml', 'ssl'} & set(sys.modules)))"
    )
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "COTERIE_COMPLETION_SECONDS": "60"}
    for _ in range(2):  # the second time from the cache
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().splitlines() == ["names", "table", "wide", "json", "yaml", "name", "[]"]
