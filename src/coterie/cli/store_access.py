"""What the actions of `coterie store` share: which store, and how failures are told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from coterie.base.store_address import StoreAddress, StoreAddressError, parse_store_address
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.progress import working
from coterie.kube.store.protocol import StoreError
from coterie.kuscia.api.definitions import crds
from coterie.node import config
from coterie.node.config import ConfigError

T = TypeVar("T")
_WHERE = "the address of a store, or a node's configuration file"


def store_argument(parser: options.Parser, name: str = "store", shown: str = "STORE") -> None:
    parser.add_argument(name, metavar=shown, help=_WHERE)
    parser.complete(**{name: "files"})


def address_of(text: str, root: Path | None) -> StoreAddress:
    """`text`: an address, or a configuration file, whose node keeps its objects where it says."""
    try:
        if "://" in text:
            return parse_store_address(text)
        settings = config.load(Path(text), root)
    except StoreAddressError as problem:
        raise UsageError(str(problem)) from problem
    except ConfigError as problem:
        raise CliError(str(problem)) from problem
    if settings.mode == "lite":
        raise CliError(f"{text}: a lite has no store; its objects are at its master")
    return settings.store or parse_store_address(f"sqlite://{settings.paths.database.absolute()}")


def taken_from_kine() -> frozenset[str]:
    """What is copied from the database of a Kuscia: its own kinds, and what its users have written beside them."""
    own = (name.partition(".") for name in crds.hashes())
    core = ("core/namespaces", "core/configmaps", "core/secrets")
    return frozenset(f"{group}/{plural}" for plural, _, group in own if group == crds.GROUP).union(core)


def run_store(app: App, address: StoreAddress, state: str, work: Coroutine[Any, Any, T], *, quiet: bool = False) -> T:
    """`state`: what is done to the store, for who waits."""
    try:
        with working(app, address.label, state, quiet=quiet):
            return asyncio.run(work)
    except StoreError as problem:
        raise CliError(str(problem)) from problem
