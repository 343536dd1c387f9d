"""Programs that enter the namespaces of another process, as an ordinary user."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordinary_user import USER, Child, holder, own_namespaces

from coterie.kube.network.rootless import enter
from root_kit import needs_root


def _allowed() -> bool:
    child = Child(lambda to_test: own_namespaces())
    child.socket.close()
    return child.exit_code() == 0


pytestmark = pytest.mark.skipif(not _allowed(), reason="user namespaces are forbidden here")


@pytest.fixture
def inside() -> Iterator[Child]:
    made = holder()
    yield made
    made.kill()


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that an ordinary user may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, USER, USER)
        yield Path(name)


def run(arguments: list[str], *, user: bool = True) -> tuple[int, bytes]:
    """The program's exit code and what it wrote; the interpreter of the tests may lie where the user cannot go."""

    def work(output: socket.socket) -> None:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.set_inheritable(1, True)
        os._exit(enter.main(arguments))

    child = Child(work)
    data = b""
    while more := child.socket.recv(65536):
        data += more
    child.socket.close()
    return child.exit_code(), data


def test_the_program_is_root_inside_and_the_user_outside(inside: Child, directory: Path) -> None:
    code, output = run(
        [
            "--target",
            str(inside.pid),
            "--",
            "/bin/sh",
            "-c",
            f"id -u; readlink /proc/self/ns/net; echo x > {directory}/f",
        ]
    )
    assert code == 0
    assert output.split() == [b"0", os.readlink(f"/proc/{inside.pid}/ns/net").encode()]
    assert (directory / "f").stat().st_uid == USER


def test_the_resolver_is_replaced_for_the_program_only(inside: Child) -> None:
    before = Path("/etc/resolv.conf").read_text()
    code, output = run(["--target", str(inside.pid), "--resolver", "100.96.0.1", "--", "cat", "/etc/resolv.conf"])
    assert (code, output) == (0, b"nameserver 100.96.0.1\noptions ndots:1\n")
    assert Path("/etc/resolv.conf").read_text() == before
    code, output = run(["--target", str(inside.pid), "--", "cat", "/etc/resolv.conf"])
    assert output.decode() == before, "nor for another program inside"


def test_signals_have_their_default_action(inside: Child) -> None:
    _, output = run(["--target", str(inside.pid), "--", "cat", "/proc/self/status"])
    fields = dict(line.split(":", 1) for line in output.decode().splitlines() if ":" in line)
    of_the_c_library = 3 << 31  # signals 32 and 33 cannot be set by programs
    assert {int(fields[name], 16) & ~of_the_c_library for name in ("SigBlk", "SigIgn", "SigCgt")} == {0}


def test_exit_code_and_environment_are_the_programs(inside: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "yes")
    code, output = run(["--target", str(inside.pid), "--", "sh", "-c", "echo $KEPT; exit 7"])
    assert (code, output) == (7, b"yes\n")


@pytest.mark.parametrize("keep", [True, False])
def test_descriptors_are_kept_when_asked_for(inside: Child, keep: bool) -> None:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    options = ["--keep-fds"] if keep else []
    code, _ = run(["--target", str(inside.pid), *options, "--", "test", "-e", f"/proc/self/fd/{read}"])
    assert (code == 0) == keep
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "4194304999", "--", "true"], b"enter: there is no process 4194304999\n"),
        (
            ["--target", "PID", "--", "/no/such/program"],
            b"enter: cannot run /no/such/program: No such file or directory\n",
        ),
        (["--target", "x", "--", "true"], b"enter: usage: "),
        (["--target", "PID"], b"enter: usage: "),
        (["--target", "PID", "--facts", "x", "--", "true"], b"enter: usage: "),
        (["--aim", "PID", "--", "true"], b'enter: "--aim" is not understood\n'),
    ],
)
def test_what_goes_wrong_is_one_line(inside: Child, arguments: list[str], message: bytes) -> None:
    code, output = run([str(inside.pid) if each == "PID" else each for each in arguments])
    assert code == 125 and output.startswith(message) and output.count(b"\n") == 1


def _write_facts(directory: Path, pid: int, inode: int | None = None) -> Path:
    inode = os.stat(f"/proc/{pid}/ns/net").st_ino if inode is None else inode
    aside, path = directory / "facts.tmp", directory / "facts.json"
    aside.write_text(json.dumps({"holder": pid, "inode": inode}))
    aside.chmod(0o644)
    aside.replace(path)
    return path


def test_the_holder_that_a_file_names_is_entered_also_after_it_was_replaced(inside: Child, directory: Path) -> None:
    """The first has ended and the second is another process with another number, in the same namespaces in real life."""
    gone = holder()
    facts = _write_facts(directory, gone.pid)
    gone.kill()
    later = threading.Timer(0.2, lambda: _write_facts(directory, inside.pid))
    later.start()
    code, output = run(["--facts", str(facts), "--", "readlink", "/proc/self/ns/net"])
    later.join()
    assert (code, output.decode().strip()) == (0, os.readlink(f"/proc/{inside.pid}/ns/net"))


@pytest.mark.parametrize("content", ["", '{"problem": ["unshare", 1]}', '{"holder": 1, "inode": 1}', None])
def test_no_other_process_is_taken_for_the_holder(
    inside: Child, directory: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enter, "_HOLDER_SECONDS", 0.1)
    facts = _write_facts(directory, inside.pid, inode=1)
    if content is not None:
        facts.write_text(content)
    code, output = run(["--facts", str(facts), "--", "true"])
    assert code == 125 and output.startswith(b"enter: ") and output.count(b"\n") == 1


@needs_root("needs a process of another user")
def test_the_namespaces_of_another_user_are_closed() -> None:
    code, output = run(["--target", str(os.getpid()), "--", "true"])
    assert code == 125 and b"cannot open the namespaces" in output


def test_the_command_runs_by_path_in_an_isolated_interpreter(inside: Child) -> None:
    """By the interpreter of the tests, so as their user: root joins the network only."""
    command = enter.command(inside.pid, resolver="")
    assert command[0] == sys.executable
    done = subprocess.run((*command, "readlink", "/proc/self/ns/net"), capture_output=True, env={"PATH": os.defpath})
    assert done.stdout.decode().strip() == os.readlink(f"/proc/{inside.pid}/ns/net"), done.stderr
    assert done.returncode == 0
