"""Sums of columns over the rows of all parties, and how many rows there are; nobody learns the sums of another party.

    python column_sums.py rows.csv COLUMN...      and MPyC's own options

Numbers may have six decimals and, multiplied by a million and summed, 62 bits.
"""

from __future__ import annotations

import csv
import json
import sys
from decimal import Decimal, InvalidOperation

from mpyc.runtime import mpc

SCALE = 10**6
_LARGEST = 2**62
_BITS = 80
"""Room for the sums of many parties."""


def own_sums(path: str, columns: list[str]) -> list[int]:
    """Rows, and the sum of each column, in millionths."""
    rows, sums = 0, [0] * len(columns)
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows += 1
            for at, name in enumerate(columns):
                if name not in row:
                    sys.exit(f'the table has no column "{name}"')
                sums[at] += _scaled(row[name], name)
    if any(abs(each) > _LARGEST for each in sums):
        sys.exit("the numbers are too large to be added here")
    return [rows, *sums]


def _scaled(text: str, column: str) -> int:
    try:
        value = Decimal(text) * SCALE if text else Decimal(0)
        if value == value.to_integral_value():
            return int(value)
    except (InvalidOperation, ValueError, OverflowError):
        pass
    sys.exit(f'column "{column}" has values that are no numbers with at most six decimals')


async def main(path: str, columns: list[str]) -> None:
    own = own_sums(path, columns)
    secure = mpc.SecInt(_BITS)
    await mpc.start()
    shared = mpc.input([secure(each) for each in own])
    total = [mpc.sum(list(each)) for each in zip(*shared, strict=True)]
    rows, *sums = await mpc.output(total)
    await mpc.shutdown()
    named = {name: int(value) / SCALE for name, value in zip(columns, sums, strict=True)}
    print(json.dumps({"rows": int(rows), "sums": named}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: column_sums.py FILE COLUMN...")
    mpc.run(main(sys.argv[1], sys.argv[2:]))
