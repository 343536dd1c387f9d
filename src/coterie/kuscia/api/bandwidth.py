"""Amounts of bandwidth: how people write them, and how they are compared. Pure.

    100           Mbit/s, as Kuscia's `capacity.bandwidth` and `kuscia.io/bandwidth`
    100Mbps       decimal: bps, Kbps, Mbps, Gbps, Tbps; `bit/s` and `bit` mean the same as `bps`; also 100M, 1G
    10Gi          binary: Ki, Mi, Gi, Ti bits per second (`10Gibps` means the same)

Everything is computed in bits per second. The Node resource `kuscia.io/bandwidth` counts whole Mbit/s, as in Kuscia: a
capacity is rounded down, a request up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

MBIT: Final = 1_000_000
MOST_BITS: Final = 10**15
"""A petabit per second: more is a typing error."""
KIB_BITS: Final = 8 * 1024
"""Bits of one KiB, the unit of `bandwidthLimits`."""
INSUFFICIENT: Final = "BandwidthInsufficient"
"""Reason of pods, TaskResources, tasks and events that wait for bandwidth."""
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_FORM = re.compile(
    r"(?P<number>\d{1,18}(?:\.\d{1,9})?) ?(?P<prefix>[kmgt]i?|)(?P<unit>bps|bit/s|bits/s|bit|)", re.ASCII
)
_BYTES = re.compile(r"\d ?[KkMGT]?i?B(/s|ps|PS)?$|[Bb]ytes?(/s)?$")
_EXAMPLES = "write e.g. 100Mbps, 1Gbps or 10Gi; a plain number means Mbit/s"


class BandwidthError(ValueError):
    """The text is no amount of bandwidth; the message says what to write."""


def parse_bits(amount: str | int) -> int:
    """Bits per second, rounded up to a whole bit."""
    text = str(amount).strip() if not isinstance(amount, bool) else repr(amount)
    found = _FORM.fullmatch(text.lower())
    shown = text if len(text) <= 64 else text[:61] + "..."
    if _BYTES.search(text):
        raise BandwidthError(f'"{shown}" is in bytes, and bandwidth is in bits; {_EXAMPLES}')
    if found is None:
        raise BandwidthError(f'"{shown}" is no bandwidth; {_EXAMPLES}')
    prefix, unit = found["prefix"], found["unit"]
    if not prefix and not unit:
        factor = MBIT
    else:
        factor = _BINARY[prefix] if prefix.endswith("i") else _DECIMAL[prefix]
    bits = int((Decimal(found["number"]) * factor).to_integral_value(rounding="ROUND_CEILING"))
    if bits > MOST_BITS:
        raise BandwidthError(f'"{shown}" is more than a petabit per second; {_EXAMPLES}')
    return bits


def bandwidth_problem(amount: str | int) -> str:
    """What is wrong with a request or capacity; empty when nothing is."""
    try:
        return "" if parse_bits(amount) > 0 else "must be more than 0"
    except BandwidthError as problem:
        return str(problem)


def mbit_up(bits: int) -> int:
    """Of a request: whole Mbit/s."""
    return -(-bits // MBIT)


def mbit_down(bits: int) -> int:
    """Of a capacity: whole Mbit/s."""
    return bits // MBIT


def annotated_mbit(text: str) -> int | None:
    """Of a capacity that stands on an object: whole Mbit/s; None when it cannot be read or is less than one."""
    try:
        return mbit_down(parse_bits(text)) or None
    except BandwidthError:
        return None


def bits_text(bits: int) -> str:
    """For people: `950 bit/s`, `80 Mbit/s`, `1.5 Gbit/s`."""
    for factor, unit in ((10**12, "Tbit/s"), (10**9, "Gbit/s"), (10**6, "Mbit/s"), (10**3, "kbit/s")):
        if bits >= factor:
            return f"{bits / factor:.4g} {unit}"
    return f"{bits} bit/s"


def limited_party(party: Mapping[str, Any], domain: str, destination: str, kib: int) -> dict[str, Any]:
    """The party of a KusciaTask with another limit to the destination, 0 for none; other domains' parties stay as they are."""
    if party.get("domainID") != domain:
        return dict(party)
    others = [each for each in party.get("bandwidthLimits") or () if each.get("destinationID") != destination]
    new = [{"destinationID": destination, "limitKBps": kib}] if kib else []
    return {**party, "bandwidthLimits": [*others, *new]}


def larger(reserved: int, used: int, tolerance: float = 0.05) -> int:
    """What a task takes of a node or link: its reservation, or what it really uses where that is more. A measurement that is
    above the reservation by no more than its own error does not count as over-use."""
    return used if used > reserved * (1 + tolerance) else reserved
