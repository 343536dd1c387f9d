"""The tree against RFC 6962: its published vectors, and its recursive definitions written down here."""

from __future__ import annotations

import hashlib

import pytest

from coterie.kuscia.evidence import merkle
from coterie.kuscia.evidence.merkle import ProofError

# The inputs and roots that Certificate Transparency's reference implementations publish for the hashes of RFC 6962.
INPUTS = [
    bytes.fromhex(each)
    for each in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LIMIT = 70


class Tree:
    def __init__(self, leaves: list[bytes]) -> None:
        self.rows: dict[tuple[int, int], bytes] = {}
        tree = merkle.RunningRoot()
        for index, data in enumerate(leaves):
            self.rows[0, index] = merkle.leaf_hash(data)
            completed: list[tuple[int, int, bytes]] = []
            tree.add(self.rows[0, index], completed)
            self.rows.update({(level, at): value for level, at, value in completed})
            assert merkle.RunningRoot.of(index + 1, self.at).root() == tree.root()

    def at(self, level: int, index: int) -> bytes:
        return self.rows[level, index]


LEAVES = [f"event {number}".encode() for number in range(LIMIT)]
TREE = Tree(LEAVES)


def recursive_root(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return hashlib.sha256(b"\x01" + recursive_root(leaves[:half]) + recursive_root(leaves[half:])).digest()


def recursive_path(index: int, leaves: list[bytes]) -> list[bytes]:
    """PATH of RFC 6962, section 2.1.1."""
    if len(leaves) == 1:
        return []
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    if index < half:
        return [*recursive_path(index, leaves[:half]), recursive_root(leaves[half:])]
    return [*recursive_path(index - half, leaves[half:]), recursive_root(leaves[:half])]


def recursive_consistency(old: int, leaves: list[bytes], whole: bool = True) -> list[bytes]:
    """SUBPROOF of RFC 6962, section 2.1.2."""
    if old == len(leaves):
        return [] if whole else [recursive_root(leaves)]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    if old <= half:
        return [*recursive_consistency(old, leaves[:half], whole), recursive_root(leaves[half:])]
    return [*recursive_consistency(old - half, leaves[half:], False), recursive_root(leaves[:half])]


@pytest.mark.parametrize("size", range(1, 9))
def test_published_roots(size: int) -> None:
    tree = Tree(INPUTS[:size])
    assert merkle.root_of(size, tree.at).hex() == ROOTS[size - 1]


def test_the_empty_tree() -> None:
    assert merkle.root_of(0, TREE.at).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("size", range(1, LIMIT + 1))
def test_every_leaf_and_every_older_tree(size: int) -> None:
    root = merkle.root_of(size, TREE.at)
    assert root == recursive_root(LEAVES[:size])
    running = merkle.RunningRoot()
    running.extend(merkle.leaf_hash(each) for each in LEAVES[:size])
    assert (running.size, running.root()) == (size, root)
    for index in range(size):
        proof = merkle.inclusion_proof(index, size, TREE.at)
        assert proof == recursive_path(index, LEAVES[:size])
        merkle.verify_inclusion(merkle.leaf_hash(LEAVES[index]), index, size, proof, root)
    for old in range(1, size + 1):
        proof = merkle.consistency_proof(old, size, TREE.at)
        assert proof == recursive_consistency(old, LEAVES[:size])
        merkle.verify_consistency(old, size, proof, merkle.root_of(old, TREE.at), root)


@pytest.mark.parametrize("size", (1, 2, 3, 7, 8, 13))
def test_what_was_changed_is_not_proven(size: int) -> None:
    root = merkle.root_of(size, TREE.at)
    for index in range(size):
        leaf, proof = merkle.leaf_hash(LEAVES[index]), merkle.inclusion_proof(index, size, TREE.at)
        wrong = [
            (merkle.leaf_hash(b"another"), index, size, proof, root),
            (leaf, index, size, proof, merkle.leaf_hash(b"root")),
            (leaf, index, size, [*proof, root], root),
            (leaf, size, size, proof, root),
            (leaf, -1, size, proof, root),
            *((leaf, index, size, [*proof[:at], b"\0" * 32, *proof[at + 1 :]], root) for at in range(len(proof))),
            *((leaf, index, size, [*proof[:at], *proof[at + 1 :]], root) for at in range(len(proof))),
        ]
        if proof:
            wrong.append((leaf, index ^ 1, size, proof, root))
        for arguments in wrong:
            with pytest.raises(ProofError):
                merkle.verify_inclusion(*arguments)
    for old in range(1, size):
        was, proof = merkle.root_of(old, TREE.at), merkle.consistency_proof(old, size, TREE.at)
        for changed in (
            [*proof, was],
            proof[1:],
            *([*proof[:at], b"\1" * 32, *proof[at + 1 :]] for at in range(len(proof))),
        ):
            with pytest.raises(ProofError):
                merkle.verify_consistency(old, size, changed, was, root)
        with pytest.raises(ProofError):
            merkle.verify_consistency(old, size, proof, merkle.leaf_hash(b"was"), root)
        with pytest.raises(ProofError):
            merkle.verify_consistency(old, size, proof, was, merkle.leaf_hash(b"now"))


def test_a_smaller_tree_never_follows_a_larger_one() -> None:
    with pytest.raises(ProofError, match="cannot follow"):
        merkle.verify_consistency(8, 7, [], merkle.root_of(8, TREE.at), merkle.root_of(7, TREE.at))
    with pytest.raises(ProofError, match="two different roots"):
        merkle.verify_consistency(7, 7, [], merkle.root_of(8, TREE.at), merkle.root_of(7, TREE.at))
