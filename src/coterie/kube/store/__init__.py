"""Layer 2: a revisioned key-value log with compare-and-swap, snapshots, watches, compaction and leases."""

from coterie.kube.store.memory import MemoryStore
from coterie.kube.store.protocol import (
    Compacted,
    CompareFailed,
    Delete,
    Event,
    FutureRevision,
    LeaseNotFound,
    Listener,
    Op,
    Page,
    Put,
    Record,
    SlowWatcher,
    Store,
    StoreClosed,
    StoreError,
)
from coterie.kube.store.sqlite import SqliteStore

__all__ = [
    "Compacted",
    "CompareFailed",
    "Delete",
    "Event",
    "FutureRevision",
    "LeaseNotFound",
    "Listener",
    "MemoryStore",
    "Op",
    "Page",
    "Put",
    "Record",
    "SlowWatcher",
    "SqliteStore",
    "Store",
    "StoreClosed",
    "StoreError",
]
