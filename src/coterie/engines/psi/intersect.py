"""The intersection itself: from the store's keys to the numbers of the rows that are in the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.engines.psi import keyfile, store
from coterie.engines.psi.store import Store
from coterie.engines.psi.task import Task

_CHUNK = 1 << 17
_BUCKET = 1 << 17
"""Keys that RR22 and KKRT compare at once: a million, as the library would, take twice the memory and overrun the
caches."""


class Impossible(Exception):
    """The parties' tables do not go together; the sentence goes to the log."""


def check(task: Task, facts: list[Any]) -> None:
    """`facts`: of each party by rank, with the families of its keys. All parties come to the same verdict."""
    first, first_facts = task.parties[0], facts[0]
    for party, other in zip(task.parties[1:], facts[1:], strict=True):
        for at, name in enumerate(party.keys):
            ours, theirs = first_facts["keys"][at], other["keys"][at]
            if ours != theirs:
                raise Impossible(
                    f'column "{first.keys[at]}" of {first.name} is of type {ours}, but column "{name}" of {party.name} '
                    f"is of type {theirs}, so no value can be equal; register one of the tables with the other's type"
                )


def run(
    library: Any, link: Any, task: Task, rows: Store, found: Path, progress: Callable[[float], None]
) -> Iterator[pa.Array]:
    """Numbers of rows, aligned between the parties; nothing at a party that receives nothing."""
    kind, joins = library.PsiProtocol, library.ResultJoinType
    protocol = kind.PROTOCOL_ECDH_3PC if len(task.parties) == 3 else getattr(kind, f"PROTOCOL_{task.protocol}")
    join = "DIFFERENCE" if task.join == "difference" else f"{task.join.upper()}_JOIN"
    receivers = [rank for rank, party in enumerate(task.parties) if party.receives]
    config = library.PsiExecuteConfig(
        protocol_conf=library.PsiProtocolConfig(
            protocol=protocol,
            receiver_rank=receivers[0],
            broadcast_result=len(receivers) > 1,
            bucket_size=_BUCKET,
            ecdh_params=library.EcdhParams(curve=library.EllipticCurveType.CURVE_25519),
        ),
        input_params=library.InputParams(path=str(rows.keys), selected_keys=[keyfile.KEY], keys_unique=rows.unique),
        # What goes in in order comes out in order, also where only one party's keys are so.
        output_params=library.OutputParams(path=str(found), disable_alignment=rows.unique and _plain(task)),
        join_conf=library.ResultJoinConfig(type=getattr(joins, f"JOIN_TYPE_{join}"), left_side_rank=0),
    )
    hook = library.ProgressParams(hook=lambda data: progress(data.percentage / 100), interval_ms=500)
    try:
        library.psi_execute(config, link, hook)
    except RuntimeError as problem:
        raise _library_error(task, str(problem)) from problem
    if not task.own.receives:
        return iter(())
    numbers = store.found_numbers(found, second=task.rank == 1)
    return numbers if task.sort else store.in_table_order(numbers)


def _plain(task: Task) -> bool:
    return task.join == "inner" and len(task.parties) == 2


def without_partner(task: Task, rows: list[int]) -> Iterator[pa.Array]:
    """The result when a table is empty: the library takes none without rows. The left party's rows come first."""
    left, right = task.join in ("left", "full", "difference"), task.join in ("right", "full", "difference")
    if not task.own.receives:
        return
    for rank, wanted in enumerate((left, right)):
        for start in range(0, rows[rank] if wanted else 0, _CHUNK):
            numbers = range(start, min(start + _CHUNK, rows[rank]))
            yield pa.array(numbers, pa.int64()) if rank == task.rank else pa.nulls(len(numbers), pa.int64())


def _library_error(task: Task, text: str) -> Impossible:
    if "duplicated keys" in text:
        names = ", ".join(task.own.keys)
        return Impossible(
            f"the table {task.own.data} has rows with equal {names}, which three parties cannot have; make them unique"
        )
    reason = next((line.strip() for line in text.splitlines() if "] " in line), text.strip().splitlines()[0])
    return Impossible(f"the library failed: {reason.rpartition('] ')[2]}")
