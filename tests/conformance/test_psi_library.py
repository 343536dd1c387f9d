"""What the PSI engine tells the library about its keys is what the library would have found out itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from coterie.cli import psi_environment
from coterie.cli.app import App
from coterie.engines.psi.store import Store

REPOSITORY = Path(__file__).parents[2]
KEYS = {"alice": ["zebra", "ähre", "a%b,c", "7", "x" * 40], "bob": ["7", "zebra", "y" * 40]}


def filled(folder: Path, keys: list[str]) -> Store:
    folder.mkdir()
    table = pa.table({"id": pa.array(keys)})
    store = Store(folder, table.schema)
    store.fill(table.to_batches(), ("id",), 0)
    return store


def ports() -> int:
    """The first of two in a row."""
    with ExitStack() as held:
        for _ in range(100):
            first, second = (held.enter_context(socket.socket()) for _ in range(2))
            first.bind(("127.0.0.1", 0))
            try:
                second.bind(("127.0.0.1", first.getsockname()[1] + 1))
            except OSError:
                continue
            return int(first.getsockname()[1])
    raise AssertionError("no two ports in a row are free")


def test_the_note_beside_the_keys_is_the_librarys_own(tmp_path: Path) -> None:
    python = psi_environment.install(App.standard()) / "bin" / "python"
    notes = {}
    commands = []
    port = ports()
    for rank, (party, keys) in enumerate(KEYS.items()):
        store = filled(tmp_path / party, keys)
        note = store.keys.with_name("keys.csv.meta")
        notes[party] = json.loads(note.read_text())
        note.unlink()
        words = [str(rank), str(port), "RR22", str(store.keys), "k", str(tmp_path / party / "out.csv"), "tuned"]
        commands.append([str(python), "-m", "benchmarks.psi_byhand", *words])
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    running = [
        subprocess.Popen(each, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for each in commands
    ]
    told = [each.communicate(timeout=120)[1] for each in running]
    assert [each.returncode for each in running] == [0, 0], told
    for party in KEYS:
        assert json.loads((tmp_path / party / "keys.csv.meta").read_text()) == notes[party]
    assert len((tmp_path / "alice" / "out.csv").read_text().splitlines()) == 3, "two keys and the heading"
