"""The order of a list that a strategic merge patch changed.

Items that the patch names stand in the order the patch gives; items only the server has keep their order among
themselves and go as near to their old place as that allows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

Name = Callable[[Any], Hashable]
"""What tells two items of a list apart: the merge key's value, or a primitive itself."""


def in_order(merged: list[Any], patch_order: list[Any], server_order: list[Any], name: Name) -> list[Any]:
    wanted: dict[Hashable, int] = {}
    for item in patch_order:
        wanted.setdefault(name(item), len(wanted))
    ours = sorted((item for item in merged if name(item) in wanted), key=lambda item: wanted[name(item)])
    if len(ours) == len(merged):
        return ours
    place: dict[Hashable, int] = {}
    for index, item in enumerate(server_order):
        place.setdefault(name(item), index)
    last = len(place)
    theirs = sorted((i for i in merged if name(i) not in wanted), key=lambda item: place.get(name(item), last))
    return _interleave(theirs, ours, place, name)


def _interleave(theirs: list[Any], ours: list[Any], place: dict[Hashable, int], name: Name) -> list[Any]:
    """A server-only item goes before the next patched item that the server has behind it."""
    out: list[Any] = []
    left = right = 0
    while left < len(theirs) and right < len(ours):
        before, behind = place.get(name(theirs[left])), place.get(name(ours[right]))
        if before is not None and behind is not None and before < behind:
            out.append(theirs[left])
            left += 1
        else:
            out.append(ours[right])
            right += 1
    return out + ours[right:] + theirs[left:]
