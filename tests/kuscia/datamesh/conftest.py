from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from datamesh_kit import World, world


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    """The domain alice with its data mesh."""
    async with world(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)
