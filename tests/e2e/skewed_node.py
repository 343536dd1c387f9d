"""`coterie` with a clock that is wrong by so many seconds: `python skewed_node.py SECONDS start -c FILE`."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

from coterie.base import clock
from coterie.cli.main import main

_true = time.time


def shift(seconds: float) -> None:
    time.time = lambda: _true() + seconds
    clock.SystemClock.now = lambda self: datetime.now(UTC) + timedelta(seconds=seconds)  # type: ignore[method-assign]


if __name__ == "__main__":
    shift(float(sys.argv.pop(1)))
    sys.exit(main())
