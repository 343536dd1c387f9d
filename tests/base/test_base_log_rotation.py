"""Logs that are rotated: nothing is lost, nothing grows without end."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from coterie.base.log_rotation import OwnOutput, Rotation, copy_and_truncate, is_full, move_aside, open_log, tidy

RULES = Rotation(max_bytes=10, max_files=4, max_age_days=2)


def kept(path: Path) -> dict[str, str]:
    return {
        file.name: (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()).decode()
        for file in sorted(path.parent.iterdir())
    }


def test_files_move_on_and_the_oldest_goes(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for number in range(6):
        log.write_text(str(number))
        move_aside(log, RULES)
        tidy(log, RULES, log.parent.stat().st_mtime)
    assert kept(log) == {"a.log.1": "5", "a.log.2.gz": "4", "a.log.3.gz": "3"}
    assert [each.suffix for each in sorted(tmp_path.iterdir())] == [".1", ".gz", ".gz"]


def test_a_single_file_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x")
    move_aside(log, Rotation(max_files=1))
    assert kept(log) == {}


def test_fewer_files_by_configuration_and_old_ones_go(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    names = ("a.log", "a.log.1", "a.log.2.gz", "a.log.7", "b.log.1", "a.log.old")
    for name in names:
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith(".gz") else b"x")
    os.utime(tmp_path / "a.log.2.gz", (1000, 1000))
    tidy(log, RULES, (tmp_path / "a.log.1").stat().st_mtime + 10)
    assert list(kept(log)) == ["a.log", "a.log.1", "a.log.old", "b.log.1"]
    tidy(log, RULES, (tmp_path / "a.log.1").stat().st_mtime + 3 * 86400)
    assert list(kept(log)) == ["a.log", "a.log.old", "b.log.1"]


def test_when_a_file_is_full(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert not is_full(log, RULES)
    log.write_bytes(bytes(10))
    assert not is_full(log, RULES)
    log.write_bytes(bytes(11))
    assert is_full(log, RULES)


def test_compressed_files_keep_their_age_and_are_private(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    (tmp_path / "a.log.2").write_text("x")
    (tmp_path / "a.log.2.gz.part").write_text("of an interrupted attempt")
    os.utime(tmp_path / "a.log.2", (1e9, 1e9))
    tidy(log, Rotation(), 1e9 + 10)
    packed = (tmp_path / "a.log.2.gz").stat()
    assert (packed.st_mtime, packed.st_mode & 0o777) == (1e9, 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["a.log.2.gz"]


def test_copy_and_truncate_leaves_the_writer_its_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    handle = open_log(log)
    os.write(handle, b"before\n")
    copy_and_truncate(log, RULES)
    os.write(handle, b"after\n")
    os.close(handle)
    assert kept(log) == {"a.log": "after\n", "a.log.1": "before\n"}


_WRITER = """
    import os, sys, threading
    from pathlib import Path
    from coterie.base.log_rotation import OwnOutput, Rotation, is_full, move_aside

    log, rules = Path(sys.argv[1]), Rotation(max_bytes=1000, max_files=100)
    output, stop = OwnOutput(log), threading.Event()
    assert output.is_ours
    def write(name):
        number = 0
        while not stop.is_set():
            os.write(2, f"{name} {number}\\n".encode())
            number += 1
        os.write(2, f"{name} end\\n".encode())
    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for each in threads: each.start()
    done = 0
    while done < 20:
        if is_full(log, rules):
            move_aside(log, rules)
            output.follow()
            done += 1
    stop.set()
    for each in threads: each.join()
    print("end", flush=True)
"""


def test_a_process_rotates_its_own_output_and_loses_no_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    handle = open_log(log)
    program = [sys.executable, "-c", textwrap.dedent(_WRITER), str(log)]
    subprocess.run(program, stdout=handle, stderr=handle, check=True, timeout=60)
    os.close(handle)
    older = [tmp_path / f"a.log.{number}" for number in range(20, 0, -1)]
    lines = [line for file in (*older, log) for line in file.read_text().splitlines()]
    for name in "ab":
        *found, last = [line for line in lines if line[0] == name]
        assert found == [f"{name} {number}" for number in range(len(found))]
        assert last == f"{name} end"
    assert lines[-1] == "end"


def test_output_that_goes_elsewhere_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("of somebody else")
    output = OwnOutput(log)
    assert not output.is_ours
    before = os.fstat(2)
    output.follow()
    assert os.path.samestat(os.fstat(2), before)


def test_a_rotation_may_overtake_a_compression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the file that is compressed is another file's when it is done."""
    log = tmp_path / "a.log"
    for name, text in (("a.log", "new"), ("a.log.1", "middle"), ("a.log.2", "old")):
        (tmp_path / name).write_text(text)
    write = gzip.GzipFile.write

    def slowly(file: gzip.GzipFile, data: bytes) -> int:
        move_aside(log, RULES)
        return write(file, data)

    monkeypatch.setattr(gzip.GzipFile, "write", slowly)
    tidy(log, RULES, log.stat().st_mtime)
    assert kept(log) == {"a.log.1": "new", "a.log.2": "middle", "a.log.3": "old"}
