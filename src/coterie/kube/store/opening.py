"""The store that an address names. Drivers of databases are loaded only where one is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.store_address import StoreAddress
from coterie.kube.store.core import LoggedStore
from coterie.kube.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from coterie.kube.store import etcd, mysql, postgresql
    from coterie.kube.store.shared import SharedStore
else:
    etcd = lazy_import("coterie.kube.store.etcd")
    mysql = lazy_import("coterie.kube.store.mysql")
    postgresql = lazy_import("coterie.kube.store.postgresql")


def store_of(address: StoreAddress | None, file: Path, clock: Clock = SYSTEM_CLOCK) -> LoggedStore | SharedStore:
    """Not opened yet. `file`: of SQLite, where no address is given."""
    if address is None:
        return SqliteStore(file, clock=clock)
    if address.kind == "sqlite":
        return SqliteStore(address.path, clock=clock)
    if address.kind == "postgresql":
        return postgresql.PostgresqlStore(address, clock=clock)
    if address.kind == "mysql":
        return mysql.MysqlStore(address, clock=clock)
    return etcd.EtcdStore(address, clock=clock)
