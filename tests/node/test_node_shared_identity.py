"""The keys that control planes of one store share: sealed, agreed on once, and refused where they do not fit."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base.files import is_private
from coterie.base.paths import DomainPaths
from coterie.base.store_address import address_of_revealed, parse_store_address
from coterie.kube.store.memory import MemoryStore
from coterie.kube.store.protocol import PutOp
from coterie.node import shared_identity
from coterie.node.shared_identity import NEEDED, STORE_KEY, SharedIdentityError, open_sealed, seal, to_write
from coterie.node.shared_identity_process import agree, kept

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
FILES = {name: f"content of {name}".encode() for name in NEEDED}


def pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    ).decode()


def request(home: Path, key: str = "", domain: str = "alice") -> dict[str, Any]:
    now = datetime(2026, 1, 2, tzinfo=UTC).isoformat()
    return {"home": str(home), "domain": domain, "key": key, "now": now, "token": True}


def test_what_is_sealed_opens_with_the_same_key_only():
    record = seal(FILES, "alice", KEY)
    assert open_sealed(record, "alice", KEY) == FILES
    assert all(content not in record for content in FILES.values())
    with pytest.raises(SharedIdentityError, match="another domain key"):
        open_sealed(record, "alice", OTHER)
    with pytest.raises(SharedIdentityError, match="does not have its key"):
        open_sealed(record, "alice", None)
    with pytest.raises(SharedIdentityError, match='that of the domain "alice"'):
        open_sealed(record, "bob", KEY)


@pytest.mark.parametrize("part", ["domain", "sealed", "nonce", "salt"])
def test_a_record_that_somebody_changed_is_refused(part: str):
    """Whoever can write the database cannot make members trust other keys."""
    found = shared_identity.parse(seal(FILES, "alice", KEY))
    value = getattr(found, part)
    changed = "bob" if part == "domain" else bytes([value[0] ^ 1]) + value[1:]
    record = msgspec.json.encode(msgspec.structs.replace(found, **{part: changed}))
    with pytest.raises(SharedIdentityError, match="was changed"):
        open_sealed(record, "bob" if part == "domain" else "alice", KEY)
    # The fingerprint is bound as well: a record of another key does not open by being renamed.
    stolen = msgspec.structs.replace(found, public_key=shared_identity.fingerprint(OTHER.public_key()))
    with pytest.raises(SharedIdentityError, match="was changed"):
        open_sealed(msgspec.json.encode(stolen), "alice", OTHER)


def test_what_is_here_is_not_replaced():
    assert to_write(FILES, {}) == FILES
    assert to_write(FILES, FILES) == {}
    with pytest.raises(SharedIdentityError, match=r"pki/ca.crt"):
        to_write(FILES, {**FILES, "pki/ca.crt": b"another"})


async def test_the_second_member_has_the_first_ones_keys(tmp_path: Path):
    store = MemoryStore()
    await store.open()
    first, second = DomainPaths(tmp_path / "a"), DomainPaths(tmp_path / "b")
    await agree(request(first.home), store)
    key = first.domain_key.read_text()
    await agree(request(second.home, key), store)
    assert kept(first.certs) == kept(second.certs)
    assert set(NEEDED) <= set(kept(first.certs))
    assert all(is_private(second.certs / name) for name in NEEDED if name.endswith(".key"))
    # Again: nothing changes.
    before = await store.get(STORE_KEY)
    await agree(request(first.home), store)
    assert await store.get(STORE_KEY) == before
    assert not list(first.var.glob("identity-*"))


async def test_members_that_start_at_once_agree(tmp_path: Path):
    store = MemoryStore()
    await store.open()
    homes = [tmp_path / name for name in "abc"]
    await asyncio.gather(*(agree(request(home, pem(KEY)), store) for home in homes))
    found = [kept(DomainPaths(home).certs) for home in homes]
    assert found[0] == found[1] == found[2]


class FasterMember:
    """A store into which another member writes between our look and our write."""

    def __init__(self, store: MemoryStore, record: bytes) -> None:
        self._store = store
        self._record = record

    async def get(self, key: str) -> Any:
        return await self._store.get(key)

    async def commit(self, ops: Any) -> list[int]:
        if await self._store.get(STORE_KEY) is None:
            await self._store.commit([PutOp(STORE_KEY, self._record, 0)])
        return await self._store.commit(ops)


async def test_a_member_without_the_key_is_told_and_leaves_nothing_behind(tmp_path: Path):
    store = MemoryStore()
    await store.open()
    late = FasterMember(store, seal(FILES, "alice", KEY))
    with pytest.raises(SharedIdentityError, match="another domain key"):
        await agree(request(tmp_path), late)  # type: ignore[arg-type]
    assert not DomainPaths(tmp_path).domain_key.exists()
    with pytest.raises(SharedIdentityError, match="does not have its key"):
        await agree(request(tmp_path), store)
    with pytest.raises(SharedIdentityError, match="another domain key"):
        await agree(request(tmp_path, pem(OTHER)), store)


async def test_a_node_of_before_puts_its_keys_there(tmp_path: Path):
    """The way from one node on SQLite to several on PostgreSQL: clients keep trusting what they trust."""
    store, other = MemoryStore(), MemoryStore()
    await store.open()
    await other.open()
    await agree(request(tmp_path), other)
    before = kept(DomainPaths(tmp_path).certs)
    await agree(request(tmp_path), store)
    assert kept(DomainPaths(tmp_path).certs) == before
    record = await store.get(STORE_KEY)
    assert record is not None
    assert open_sealed(record.value, "alice", shared_key(tmp_path)) == before


def shared_key(home: Path) -> rsa.RSAPrivateKey:
    loaded = serialization.load_pem_private_key(DomainPaths(home).domain_key.read_bytes(), None)
    assert isinstance(loaded, rsa.RSAPrivateKey)
    return loaded


def test_addresses_reach_the_process_whole():
    for text in (
        "postgresql://u:p%40ss@h1:5432,h2:5433/db?sslmode=disable&schema=s1",
        "etcd://u:secret@h1:2379,h2:2379/prefix?ca=/ca.pem",
    ):
        address = parse_store_address(text)
        assert address.shared
        assert address_of_revealed(json.loads(json.dumps(address.revealed()))) == address
    assert not parse_store_address("sqlite:///x").shared
