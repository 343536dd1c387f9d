"""`python -m coterie.engines.mpyc [--program FILE] CONFIG`: one party of a program for MPyC.

    own table ──data mesh──> rows.csv ──> python PROGRAM rows.csv ARGUMENTS -P ... -I n -T t <──tunnel──> the other parties

0  done      1  failed: data, partner, program      2  the configuration cannot be used
`--program` is for images that bring their own: which code runs at a party is for that party to say, never for a task.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

from coterie.engines.launching import own_table
from coterie.engines.launching.configuration import BadConfig
from coterie.engines.launching.own_table import TableUnreadable
from coterie.engines.mpyc import tunnel
from coterie.engines.mpyc.task import Task, parse
from coterie.engines.mpyc.tunnel import Line

PROGRAMS = Path(__file__).parent / "programs"
COMES_ALONG = ("column_sums",)


def main(words: list[str]) -> int:
    own_program = ""
    if words[:1] == ["--program"] and len(words) == 3:
        own_program, words = words[1], words[2:]
    if len(words) != 1:
        return fail("usage: python -m coterie.engines.mpyc [--program FILE] CONFIG", 2)
    try:
        task = parse(Path(words[0]).read_text(encoding="utf-8"))
        program = chosen_program(task, own_program)
    except (BadConfig, OSError, UnicodeDecodeError) as problem:
        return fail(str(problem), 2)
    folder = Path(tempfile.mkdtemp(prefix="mpyc-"))
    try:
        return run(task, program, folder)
    except (TableUnreadable, OSError) as problem:
        return fail(f"task {task.id} failed at {task.own}: {problem}", 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def chosen_program(task: Task, own: str) -> Path:
    if own:
        if task.program:
            raise BadConfig("task_input_config: program is not for images that bring their own")
        if not Path(own).is_file():
            raise BadConfig(f"the program {own} is not there")
        return Path(own).absolute()
    if task.program not in COMES_ALONG:
        raise BadConfig(f"task_input_config: program is one of {', '.join(COMES_ALONG)}, or the image brings its own")
    return PROGRAMS / f"{task.program}.py"


def run(task: Task, program: Path, folder: Path) -> int:
    given = []
    if task.table:
        table = folder / "rows.csv"
        own_table.write(table, own_table.fetch(task.table, task.columns), task.columns)
        given = [str(table)]
    lost: list[str] = []
    running: list[subprocess.Popen[bytes]] = []
    partner_lost = threading.Event()

    def give_up(sentence: str) -> None:
        lost.append(sentence)
        partner_lost.set()
        for each in running:
            each.kill()

    lines = {
        name: Line(task.own, name, endpoint, task.local_port if name < task.own else 0, give_up)
        for name, endpoint in task.endpoints.items()
    }
    tunnel.serve(task.port, lines)
    for line in lines.values():
        line.start()
    addresses = [lines[name].address if name in lines else f"127.0.0.1:{task.local_port}" for name in task.parties]
    options = [word for address in addresses for word in ("-P", address)]
    options += ["-I", str(task.rank), "-T", str(task.threshold)]
    process = subprocess.Popen([sys.executable, str(program), *given, *task.arguments, *options], cwd=folder)
    running.append(process)
    if partner_lost.is_set():
        process.kill()

    def end(*_: int | FrameType | None) -> None:
        process.kill()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(128 + signal.SIGTERM)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)
    status = process.wait()
    if lost:
        return fail(f"task {task.id} failed at {task.own}: {lost[0]}", 1)
    if status:
        return fail(f"task {task.id} failed at {task.own}: the program ended with status {status}", 1)
    return _leave(task, lines, lost)


def _leave(task: Task, lines: dict[str, Line], lost: list[str]) -> int:
    """Nobody goes before all others have what they need of him."""
    for line in lines.values():
        line.close()
    deadline = time.monotonic() + tunnel.LOST_SECONDS
    for name, line in lines.items():
        for event in (line.ended_here, line.ended_there):
            while not event.wait(0.1):
                if lost or time.monotonic() > deadline:
                    sentence = lost[0] if lost else f"{name} did not say that it has ended"
                    return fail(f"task {task.id} failed at {task.own}: {sentence}", 1)
    return 0


def fail(sentence: str, status: int) -> int:
    print(sentence, file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
