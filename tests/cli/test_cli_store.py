"""`coterie store`: between SQLite files here; between all kinds in tests/kube/store/test_store_transfer.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import progress
from coterie.kube.store import PutOp, SqliteStore
from coterie.node import config

OBJECT = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"u","name":"%b","namespace":"d"}}'


def fill(path: Path, **content: bytes) -> None:
    async def write() -> None:
        store = SqliteStore(path)
        await store.open()
        for name, value in content.items():
            await store.commit([PutOp(f"/registry/core/configmaps/d/{name}", value)])
        await store.close()

    path.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(write())


def node(cli: Any) -> Path:
    """A node's configuration, with two objects in its store."""
    file = cli.folder / "alice.yaml"
    file.write_text(f"mode: master\ndomainID: alice\nroot: {cli.folder}/root\n")
    fill(config.load(file).paths.database, a=OBJECT % b"a", b=OBJECT % b"b")
    return file


def test_a_store_is_checked_backed_up_and_restored(cli: Any) -> None:
    file = node(cli)
    found = cli("store", "check", str(file))
    assert found.code == 0 and "2 objects, revision 2" in found.out and "2 core/configmaps" in found.out
    backup = cli.folder / "backup"
    found = cli("store", "backup", str(file), "--file", str(backup))
    assert found.code == 0 and "2 objects" in found.out
    assert cli("store", "backup", str(file), "--file", str(backup)).code == 1
    fill(config.load(file).paths.database, c=OBJECT % b"c")
    refused = cli("store", "restore", str(backup), str(file))
    assert refused.code == 1 and "is not empty" in refused.err
    found = cli("store", "restore", str(backup), str(file), "--replace")
    assert found.code == 0 and "2 objects, revision 1000000005" in found.out
    found = cli("store", "check", str(file), "-o", "json")
    assert found.code == 0 and '"core/configmaps": 2' in found.out


def test_a_store_is_moved(cli: Any) -> None:
    file, target = node(cli), f"sqlite://{cli.folder}/new.db"
    found = cli("store", "migrate", str(file), target)
    assert found.code == 0 and "2 objects of sqlite://" in found.out and "set `store`" in found.out
    assert "2 objects" in cli("store", "check", target).out
    assert "both old and new" in cli("store", "migrate", target, target).err


def test_what_is_wrong_is_said(cli: Any) -> None:
    fill(cli.folder / "bad.db", a=OBJECT % b"other", b=b"{")
    bad = f"sqlite://{cli.folder}/bad.db"
    found = cli("store", "check", bad)
    assert found.code == 1 and "d/a: is d/other" in found.err and "no object in JSON" in found.err
    assert "store check" in cli("store", "migrate", bad, f"sqlite://{cli.folder}/new.db").err
    assert cli("store", "check", "redis://u:S3CR3T@h").code == 2
    found = cli("store", "check", "postgresql://u:S3CR3T@127.0.0.1:1/d")
    assert found.code == 1 and "cannot be reached" in found.err and "S3CR3T" not in found.out + found.err
    assert cli("store", "check", f"sqlite://{cli.folder}/none.db").code == 1
    assert cli("store", "backup", bad).code == 2
    (cli.folder / "no.backup").write_text("x")
    assert "no backup of a store" in cli("store", "restore", str(cli.folder / "no.backup"), bad).err


def test_who_waits_for_a_large_store_sees_what_is_done(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log, what takes longer than a second: here everything does."""
    monkeypatch.setattr(progress, "_SLOW_SECONDS", 0.0)
    file, backup = node(cli), str(cli.folder / "backup")
    target = f"sqlite://{cli.folder}/new.db"
    for words, told in (
        (("check", str(file)), "reading its objects"),
        (("backup", str(file), "--file", backup), f"{backup}: writing ..."),
        (("restore", backup, target), "writing objects"),
        (("migrate", str(file), target, "--replace"), "writing objects"),
    ):
        found = cli("store", *words)
        assert found.code == 0 and told in found.err, words
    assert cli("store", "check", str(file), "-o", "json").err == ""
