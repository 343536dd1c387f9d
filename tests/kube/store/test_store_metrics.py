from __future__ import annotations

from pathlib import Path

from coterie.kube.store import SqliteStore
from coterie.kube.store.metrics import StoreSource
from coterie.kube.store.protocol import PutOp


async def test_what_a_store_counts(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db", blob_threshold=100)
    await store.open()
    try:
        for number in range(3):
            await store.commit([PutOp("a", b"x"), PutOp(f"b{number}", b"y" * 200)])
        await store.compact(store.revision)
        found = {family.name: dict(family.rows) for family in await StoreSource(store).families()}
    finally:
        await store.close()
    assert found["coterie_store_transactions_total"] == {"": 3}
    assert found["coterie_store_writes_total"] == {"": 6}
    assert found["coterie_store_commit_seconds"]["_count"] == 3
    assert found["coterie_store_compactions_total"] == {"": 1}
    assert found["coterie_store_failures_total"] == {"": 0}
    sizes = found["coterie_store_size_bytes"]
    assert sizes['part="database"'] > 0
    assert sizes['part="blobs"'] == 200, "the three values are the same"
