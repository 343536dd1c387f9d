"""`coterie engine new`: what it writes works as it is, and nothing that is there is lost."""

from __future__ import annotations

import http.client
import io
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from coterie.cli import engine_template, engines
from coterie.cli import main as program
from coterie.cli.app import App


def new(folder: Path, *words: str) -> tuple[int, str]:
    out = io.StringIO()
    code = program.main(["engine", "new", *words], App(out, out, {}, cwd=folder))
    return code, out.getvalue()


def test_the_tests_that_it_writes_pass(tmp_path: Path) -> None:
    code, said = new(tmp_path, "my-engine")
    assert code == 0
    assert f"python3 -m pytest {tmp_path / 'my-engine'};" in said
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "COTERIE"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path / "my-engine")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environ,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed, 1 skipped" in done.stdout


def test_nobody_sends_under_another_name(tmp_path: Path) -> None:
    engine = ModuleType("made")
    sys.modules["made"] = engine  # dataclasses look there
    try:
        exec(engine_template.files("made")["engine.py"], engine.__dict__)
    finally:
        del sys.modules["made"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    task = engine.Task("t", "alice", ("alice", "bob", "carol"), {}, port, {})
    messages = engine.Messages(task)

    def post(sender: str, **headers: str) -> int:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        link.request(
            "POST", f"/number/{sender}", b"1", {key.replace("_", "-"): value for key, value in headers.items()}
        )
        try:
            return link.getresponse().status
        finally:
            link.close()

    try:
        assert post("bob", Kuscia_Origin_Source="carol") == post("dave") == post("alice") == 403
        assert post("bob", Kuscia_Origin_Source="bob") == 200
        assert messages.receive("bob", "number") == b"1"
    finally:
        messages._server.shutdown()
        messages._server.server_close()


def test_its_app_image_has_no_faults() -> None:
    made = yaml.safe_load(engine_template.files("my-engine")["appimage.yaml"])
    assert engines.faults(made) == []
    (container,) = made["spec"]["deployTemplates"][0]["spec"]["containers"]
    assert f'PORT = "{container["ports"][0]["name"]}"' in engine_template.files("my-engine")["engine.py"]


def test_everything_is_filled_in() -> None:
    files = engine_template.files("two-words")
    assert sorted(files) == ["README.md", "appimage.yaml", "engine.py", "test_two_words.py"]
    assert [name for name, text in files.items() if re.search(r"@[A-Z]+@", text)] == []
    assert "`test_two_words.py`" in files["README.md"]


def test_the_commands_of_its_readme_can_be_typed() -> None:
    readme = engine_template.files("mine")["README.md"]
    lines = [line.strip() for line in readme.splitlines() if line.strip().startswith("coterie ")]
    assert [line.split()[1] for line in lines] == ["image", "engine", "job"]
    for line in lines:
        words = re.findall(r"'[^']*'|\"[^\"]*\"|\S+", line)[1:]
        _, name, after = program.split([word.strip("'\"") for word in words])
        command, after = program.into_action(program.find(name), after)
        program.command_parser(command, command.load()).parse(after, program._RootParser().parse_args([]))


def test_what_is_there_stays(tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "engine.py").write_text("mine")
    code, said = new(tmp_path, "mine")
    assert code == 1
    assert "it is there already; nothing was written" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (place / "engine.py").read_text() == "mine"
    assert [path.name for path in place.iterdir()] == ["engine.py"]
    (tmp_path / "file").write_text("a file")
    assert "it is there already" in new(tmp_path, "mine", "file")[1]
    assert (tmp_path / "file").read_text() == "a file"


def test_an_empty_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "src" / "empty").mkdir(parents=True)
    assert new(tmp_path, "mine", "src/empty")[0] == 0
    assert (tmp_path / "src" / "empty" / "test_mine.py").is_file()
    assert new(tmp_path, "mine", "further/down")[0] == 0
    assert (tmp_path / "further" / "down" / "engine.py").is_file()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Mine", "is no name of an engine"),
        ("../mine", "is no name of an engine"),
        ("a--b", "is no name of an engine"),
        ("1st", "is no name of an engine"),
        ("mine-", "is no name of an engine"),
        ("mine\n", "is no name of an engine"),
        ("a" * 41, "is too long"),
        ("psi", "comes with Coterie"),
        ("sample", "comes with Coterie"),
    ],
)
def test_names_are_checked_before_anything_is_written(tmp_path: Path, name: str, fault: str) -> None:
    code, said = new(tmp_path, name)
    assert code == 1
    assert fault in said
    assert list(tmp_path.iterdir()) == []


def test_it_wants_one_name(tmp_path: Path) -> None:
    for words in ((), ("a", "b", "c")):
        code, said = new(tmp_path, *words)
        assert code == 2
        assert "coterie engine new NAME [DIRECTORY]" in said
