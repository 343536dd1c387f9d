"""Which version of an action runs a call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def pick_version(request_uid: str, traffic: Mapping[str, int]) -> str:
    """By percent, the same for every repetition of a request. Empty when there is no version yet: any actor will do."""
    shares = [(version, percent) for version, percent in sorted(traffic.items()) if percent > 0]
    if not shares:
        return min(traffic, default="")
    if len(shares) == 1:
        return shares[0][0]
    total = sum(percent for _, percent in shares)
    point = int.from_bytes(hashlib.sha256(request_uid.encode()).digest()[:8], "big") % total
    for version, percent in shares:
        point -= percent
        if point < 0:
            return version
    return shares[-1][0]
