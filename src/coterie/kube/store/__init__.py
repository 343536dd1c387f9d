"""Layer 2: a revisioned key-value log with compare-and-swap, snapshots, watches, compaction and leases."""

from coterie.kube.store.memory import MemoryStore
from coterie.kube.store.protocol import (
    Compacted,
    CompareFailed,
    DeleteOp,
    FutureRevision,
    LeaseNotFound,
    Listener,
    Op,
    PutOp,
    RecordPage,
    Reset,
    SlowWatcher,
    Store,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreRecord,
    StoreUnavailable,
    Unsettled,
    ValueTooLarge,
)
from coterie.kube.store.sqlite import SqliteStore

__all__ = [
    "Compacted",
    "CompareFailed",
    "DeleteOp",
    "FutureRevision",
    "LeaseNotFound",
    "Listener",
    "MemoryStore",
    "Op",
    "PutOp",
    "RecordPage",
    "Reset",
    "SlowWatcher",
    "SqliteStore",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreEvent",
    "StoreRecord",
    "StoreUnavailable",
    "Unsettled",
    "ValueTooLarge",
]
