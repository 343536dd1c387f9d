"""What the last rounds asked for is made once; what nobody asks for any more is forgotten."""

from __future__ import annotations

import pytest

from coterie.kuscia.gateway import snapshot_cache


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_cache, "_MEMORIES", [])


def test_what_is_asked_for_in_each_round_is_made_once() -> None:
    made = []

    @snapshot_cache.remembered
    def service(name: str) -> list[str]:
        made.append(name)
        return [name]

    first = service("a")
    for _ in range(5):
        assert service("a") is first
        assert service("a") is first
        snapshot_cache.forget_unused()
    assert made == ["a"]


def test_what_no_round_asked_for_is_forgotten() -> None:
    made = []

    @snapshot_cache.remembered
    def service(name: str) -> list[str]:
        made.append(name)
        return [name]

    for number in range(100):
        service("stays")
        service(f"job-{number}")
        snapshot_cache.forget_unused()
    ((now, before),) = snapshot_cache._MEMORIES
    assert not now
    assert set(before) == {("stays",), ("job-99",)}
    service("job-50")
    assert made.count("stays") == 1
    assert made.count("job-50") == 2
