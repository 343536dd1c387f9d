"""`python -m coterie.engines.psi FILE`: the intersection that the task in the file asks for.

    own table ──Flight──> files in a directory of the task's own ──library, with the partners──> numbers ──Flight──> result

0  done      1  failed: data, partner, library      2  the configuration cannot be used
Where a partner does not come, or goes away, the task fails after a minute. Nothing is left in the directory at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from coterie.engines.launching.configuration import BadConfig
from coterie.engines.psi import config_map, intersect, keys, library, link
from coterie.engines.psi.intersect import Impossible
from coterie.engines.psi.library import NotUsable
from coterie.engines.psi.link import PartnerLost, PartnerWatch
from coterie.engines.psi.mesh import Mesh, MeshFailed
from coterie.engines.psi.progress import ProgressReporter
from coterie.engines.psi.store import Store, keep_memory, nullable, trim_memory
from coterie.engines.psi.task import Task, read

DEFAULT_FILE = "kuscia/task-config.conf"


def main(words: list[str]) -> int:
    try:
        task = read(words[0] if words else DEFAULT_FILE)
    except BadConfig as problem:
        return fail(str(problem), 2)
    directory = Path(tempfile.mkdtemp(prefix="psi-"))
    # The library puts its own files there too, and sorts with a program that is to order bytes.
    os.environ |= {"TMPDIR": str(directory), "LC_ALL": "C"}

    def end(status: int) -> NoReturn:
        shutil.rmtree(directory, ignore_errors=True)
        sys.stdout.flush()
        # The library's own threads may still wait for partners.
        os._exit(status)

    _when_asked_to_end(lambda: end(128 + signal.SIGTERM))

    def failed(sentence: str) -> NoReturn:
        # The library cannot be interrupted.
        end(fail(f"task {task.id} failed at {task.own.name}: {sentence}", 1))

    try:
        work(task, directory, failed)
    except (MeshFailed, PartnerLost, Impossible, NotUsable) as problem:
        # At once: when the connection to the partners is taken down first, the library has the last word.
        failed(str(problem))
    except OSError as problem:
        failed(f"{problem.filename}: {problem.strerror}")
    end(0)


def work(task: Task, directory: Path, lost: Callable[[str], None]) -> None:
    done = _Steps(task)
    if task.unused:
        done(f"{', '.join(task.unused)} of {config_map.KEY} has no effect here")
    linking, computing = library.load()
    mesh, progress, own = Mesh(), ProgressReporter(task.progress_url, directory), task.own
    wanted = _columns(task, mesh.schema(own.data))
    partners = link.connect(linking, task)
    done("all parties are there")
    with PartnerWatch(task, lost):
        rows = mesh.read(own.data, wanted)
        store = Store(directory, rows.schema)
        store.fill(rows, own.keys, task.rank)
        # What was needed for reading is not needed again, and the library needs much.
        trim_memory()
        keep_memory()
        progress.report(0.2)
        done(f"{store.rows} rows were read")
        families = [keys.family(rows.schema.field(name).type) for name in own.keys]
        facts = link.report_to_all(partners, {"keys": families, "rows": store.rows})
        intersect.check(task, facts)
        counts = [each["rows"] for each in facts]
        if all(counts):
            found = directory / "found.csv"
            numbers = intersect.run(computing, partners, task, store, found, lambda part: progress.part(0.2, 0.8, part))
        else:
            numbers = intersect.without_partner(task, counts)
        # Nobody leaves while another still computes: whoever is gone counts as lost.
        link.report_to_all(partners, "done")
    trim_memory()
    done("the keys were compared")
    progress.report(0.8)
    if own.receives:
        schema = rows.schema if task.join == "inner" else nullable(rows.schema)
        mesh.create(own.output, schema)
        count = mesh.write(own.output, schema, (each.cast(schema) for each in store.taken(numbers)))
        done(f"{own.name} has {count} rows in {own.output}, of {store.rows}")
    else:
        done(f"{own.name} took part with {store.rows} rows")
    progress.close()
    mesh.close()
    partners.stop_link()


class _Steps:
    """What is done goes to the log, with the time it took: seconds since the start, and of the processor."""

    def __init__(self, task: Task) -> None:
        self._task = task.id
        self._began = time.monotonic()

    def __call__(self, what: str) -> None:
        used = sum(os.times()[:4])
        passed = time.monotonic() - self._began
        print(f"task {self._task}: {what} ({passed:.1f} s, {used:.1f} s of processor time)", flush=True)


def _columns(task: Task, schema: pa.Schema) -> list[str]:
    """What is read: the keys, and what goes into the result."""
    own = task.own
    for name in (*own.keys, *own.columns):
        if name not in schema.names:
            known = ", ".join(schema.names)
            raise Impossible(f'the table {own.data} has no column "{name}"; it has {known}')
    for name in own.keys:
        kind = schema.field(name).type
        if not keys.family(kind):
            raise Impossible(f'column "{name}" of {own.data} is of type {kind}, which cannot be compared exactly')
    if not own.receives:
        return list(own.keys)
    return list(dict.fromkeys((*own.keys, *own.columns))) if own.columns else list(schema.names)


def _when_asked_to_end(action: Callable[[], NoReturn]) -> None:
    """A thread waits for SIGTERM: while the library works, no other Python code of the main thread runs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        action()

    threading.Thread(target=wait, name="end", daemon=True).start()


def fail(sentence: str, status: int) -> int:
    print(sentence, file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
