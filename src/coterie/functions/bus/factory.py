"""Which bus: the embedded one or Kafka."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.functions.bus.embedded import EmbeddedBus
from coterie.functions.bus.kafka_settings import SCHEME, parse_kafka_url
from coterie.functions.bus.protocol import Bus, BusError

if TYPE_CHECKING:
    from coterie.functions.bus import kafka
else:
    kafka = lazy_import("coterie.functions.bus.kafka")

EMBEDDED = "embedded"


def check_bus_url(url: str) -> None:
    """Raises BusError for what `open_bus` would refuse; opens nothing."""
    if url not in ("", EMBEDDED):
        if not url.startswith(f"{SCHEME}://"):
            scheme = url.partition(":")[0][:40]
            raise BusError(f"functions.bus must be `{EMBEDDED}` or `{SCHEME}://host:port,...`, not {scheme!r}")
        parse_kafka_url(url)
        if find_spec("aiokafka") is None:
            raise BusError("functions.bus: Kafka needs the package aiokafka; install coterie[kafka]")


async def open_bus(url: str, path: Path, prefix: str = "") -> Bus:
    """`embedded` (or nothing): the file at `path`. `kafka://...`: see `kafka_settings.py`; `prefix` is that of topics and groups when
    the URL has none. Raises BusError, in one sentence, for anything that cannot be opened."""
    check_bus_url(url)
    if url in ("", EMBEDDED):
        return await EmbeddedBus.open(path)
    return await kafka.KafkaBus.open(parse_kafka_url(url, prefix))
