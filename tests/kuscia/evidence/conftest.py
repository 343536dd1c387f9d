"""A busy machine is no partner that does not answer."""

from __future__ import annotations

import pytest

from coterie.kuscia.evidence import witness_exchange, witnesses


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_exchange, "EXCHANGE_SECONDS", 60.0)
    monkeypatch.setattr(witnesses, "START_SECONDS", 60.0)
