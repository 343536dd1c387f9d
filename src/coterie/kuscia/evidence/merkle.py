"""The Merkle tree of RFC 6962: hashes, roots, proofs of inclusion and consistency. Pure.

The tree over n leaves is stored as its *complete* subtrees: `hash_at(level, index)` is the root of the 2^level leaves that begin at
index * 2^level. A complete subtree never changes, so an append writes new rows only. Everything else is computed from them.

    level 2            h(2,0)
                   ┌──────┴──────┐
    level 1      h(1,0)        h(1,1)       size 7: root = node(h(2,0), node(h(1,2), h(0,6)))
               ┌───┴───┐     ┌───┴───┐
    level 0    0       1     2       3      4  5  6
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

HASH_SIZE = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()

HashAt = Callable[[int, int], bytes]
"""(level, index) of a complete subtree: its root."""


class ProofError(ValueError):
    """A proof does not prove what it should; the message says which step."""


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def subtrees(begin: int, end: int) -> list[tuple[int, int]]:
    """(level, index) of the complete subtrees that together are the leaves from `begin` to `end`, from left to right.
    `begin` is 0 or the begin of a subtree that RFC 6962 splits off; then the parts get smaller to the right."""
    found = []
    while begin < end:
        level = (end - begin).bit_length() - 1
        if begin:
            level = min(level, (begin & -begin).bit_length() - 1)
        found.append((level, begin >> level))
        begin += 1 << level
    return found


def root_of(size: int, hash_at: HashAt) -> bytes:
    return _range_root(0, size, hash_at) if size else EMPTY_ROOT


def _range_root(begin: int, end: int, hash_at: HashAt) -> bytes:
    parts = [hash_at(level, index) for level, index in subtrees(begin, end)]
    root = parts.pop()
    while parts:
        root = node_hash(parts.pop(), root)
    return root


def inclusion_proof(index: int, size: int, hash_at: HashAt) -> list[bytes]:
    """From the leaf up. ValueError when the tree of this size does not have the leaf."""
    if not 0 <= index < size:
        raise ValueError(f"a tree of size {size} has no leaf {index}")
    path = []
    begin, end = 0, size
    while end - begin > 1:
        middle = begin + _split(end - begin)
        if index < middle:
            path.append(_range_root(middle, end, hash_at))
            end = middle
        else:
            path.append(_range_root(begin, middle, hash_at))
            begin = middle
    return path[::-1]


def consistency_proof(old: int, size: int, hash_at: HashAt) -> list[bytes]:
    """That the tree of `size` begins with the tree of `old`. Empty for 0 and for `size` itself."""
    if not 0 <= old <= size:
        raise ValueError(f"a tree of size {size} has no older state of size {old}")
    if old in (0, size):
        return []
    path: list[bytes] = []
    begin, end, whole = 0, size, True
    while old != end:
        middle = begin + _split(end - begin)
        if old <= middle:
            path.append(_range_root(middle, end, hash_at))
            end = middle
        else:
            path.append(_range_root(begin, middle, hash_at))
            begin, whole = middle, False
    if not whole:
        path.append(_range_root(begin, end, hash_at))
    return path[::-1]


def _split(count: int) -> int:
    """The largest power of two below `count`."""
    return 1 << ((count - 1).bit_length() - 1)


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raises ProofError."""
    if not 0 <= index < size:
        raise ProofError(f"a tree of size {size} has no leaf {index}")
    _check_hashes(proof)
    inner = (index ^ (size - 1)).bit_length()
    border = (index >> inner).bit_count()
    if len(proof) != inner + border:
        raise ProofError(f"the proof has {len(proof)} hashes, leaf {index} of {size} needs {inner + border}")
    found = leaf
    for level, each in enumerate(proof[:inner]):
        found = node_hash(found, each) if not index >> level & 1 else node_hash(each, found)
    for each in proof[inner:]:
        found = node_hash(each, found)
    if found != root:
        raise ProofError(f"leaf {index} is not in the tree of size {size} with this root")


def verify_consistency(old: int, size: int, proof: Sequence[bytes], old_root: bytes, root: bytes) -> None:
    """Raises ProofError unless the tree of `size` begins with the tree of `old`."""
    if not 0 <= old <= size:
        raise ProofError(f"a tree of size {size} cannot follow one of size {old}")
    _check_hashes(proof)
    if old == size:
        if proof:
            raise ProofError("trees of the same size need no proof")
        if old_root != root:
            raise ProofError(f"two different roots for the same size {size}")
        return
    if old == 0:
        if proof:
            raise ProofError("a proof from the empty tree is empty")
        if old_root != EMPTY_ROOT:
            raise ProofError("the root of the empty tree is wrong")
        return
    shift = (old & -old).bit_length() - 1
    inner = ((old - 1) ^ (size - 1)).bit_length() - shift
    border = ((old - 1) >> (inner + shift)).bit_count()
    seeded = old != 1 << shift
    if len(proof) != seeded + inner + border:
        raise ProofError(f"the proof has {len(proof)} hashes, {old} to {size} needs {seeded + inner + border}")
    seed, rest = (proof[0], proof[1:]) if seeded else (old_root, proof)
    index = (old - 1) >> shift
    was = now = seed
    for level, each in enumerate(rest[:inner]):
        if index >> level & 1:
            was, now = node_hash(each, was), node_hash(each, now)
        else:
            now = node_hash(now, each)
    for each in rest[inner:]:
        was, now = node_hash(each, was), node_hash(each, now)
    if was != old_root:
        raise ProofError(f"the proof does not lead to the root of size {old}")
    if now != root:
        raise ProofError(f"the tree of size {size} does not begin with the one of size {old}")


def _check_hashes(proof: Sequence[bytes]) -> None:
    if any(len(each) != HASH_SIZE for each in proof):
        raise ProofError("a proof consists of hashes of 32 bytes")


class RunningRoot:
    """The root of leaves that come one after the other, in memory of the tree's height: for whoever reads a whole log."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []
        """Roots of the complete subtrees, from left to right."""

    def copy(self) -> RunningRoot:
        made = RunningRoot()
        made.size, made._peaks = self.size, list(self._peaks)
        return made

    @classmethod
    def of(cls, size: int, hash_at: HashAt) -> RunningRoot:
        """To go on from a tree whose complete subtrees are stored."""
        made = cls()
        made.size, made._peaks = size, [hash_at(level, index) for level, index in subtrees(0, size)]
        return made

    def add(self, leaf: bytes, completed: list[tuple[int, int, bytes]] | None = None) -> None:
        """`completed` gets (level, index, hash) of all subtrees above the leaf that it completes."""
        current, index, level = leaf, self.size, 0
        while index & 1:
            current = node_hash(self._peaks.pop(), current)
            index >>= 1
            level += 1
            if completed is not None:
                completed.append((level, index, current))
        self._peaks.append(current)
        self.size += 1

    def extend(self, leaves: Iterable[bytes]) -> None:
        for each in leaves:
            self.add(each)

    def root(self) -> bytes:
        if not self._peaks:
            return EMPTY_ROOT
        parts = list(self._peaks)
        root = parts.pop()
        while parts:
            root = node_hash(parts.pop(), root)
        return root
