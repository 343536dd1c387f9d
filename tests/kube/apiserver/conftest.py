"""A server of its own for every test: it starts in a few milliseconds."""

from collections.abc import AsyncIterator

import pytest
from server_kit import Api, serving


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        yield api
