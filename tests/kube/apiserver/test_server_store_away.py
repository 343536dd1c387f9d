"""What clients are told when the store is away, does not answer, or was replaced by an older one."""

from __future__ import annotations

import asyncio

import pytest
from server_kit import CMS, Api, config_map

from coterie.kube.store import StoreRecord, StoreUnavailable, Unsettled, ValueTooLarge
from coterie.kube.store.protocol import Op


@pytest.fixture
def shared(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """As if others wrote to the store too."""
    monkeypatch.setattr(api.store, "shared", True, raising=False)
    return api


@pytest.mark.parametrize(
    ("problem", "code", "reason"),
    [
        (Unsettled("db:5432 did not answer"), 504, "Timeout"),
        (StoreUnavailable("db:5432 cannot be reached"), 503, "ServiceUnavailable"),
        (ValueTooLarge("larger than etcd takes"), 413, "RequestEntityTooLarge"),
    ],
)
async def test_a_write_that_failed(
    shared: Api, monkeypatch: pytest.MonkeyPatch, problem: Exception, code: int, reason: str
) -> None:
    def submit(ops: list[Op]) -> asyncio.Future[list[int]]:
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        future.set_exception(problem)
        return future

    with monkeypatch.context() as patched:
        patched.setattr(shared.store, "submit", submit)
        answer = await shared.refused(code, "POST", CMS, config_map("a"))
    assert answer.reason == reason and str(problem) in answer.message
    await shared.config_map("a")  # and nothing of it is left behind


async def test_reads_need_the_store_unless_any_state_will_do(shared: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await shared.config_map("a")

    async def current() -> int:
        raise StoreUnavailable("db:5432 cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr(shared.store, "current", current)
        patched.setattr(shared.store, "away", "db:5432 cannot be reached", raising=False)
        for path in (CMS, f"{CMS}/a"):
            answer = await shared.refused(503, "GET", path)
            assert "db:5432 cannot be reached" in answer.message
            assert (await shared.call("GET", path, query={"resourceVersion": "0"})).status == 200
        ready = await shared.call("GET", "/readyz")
        assert ready.status == 503 and b"db:5432" in ready.body
        assert (await shared.call("GET", "/livez")).status == 200
    assert (await shared.call("GET", CMS)).status == 200
    assert (await shared.call("GET", "/readyz")).status == 200


async def test_an_older_backup_takes_the_place_of_what_was_there(shared: Api) -> None:
    await shared.config_map("stays", n="1")
    changed = await shared.config_map("changed", n="old")
    await shared.config_map("later")
    state = shared.server.state
    before = (await shared.store.scan("/registry/")).records
    watch = await shared.watch(CMS + f"?resourceVersion={shared.revision}")
    above = shared.revision + 1_000_000_000
    records = []
    for n, record in enumerate(before):
        if record.key.endswith("/later"):
            continue
        value = record.value.replace(b'"old"', b'"older"')
        records.append(StoreRecord(record.key, value, above + n, above + n))
    reached = above + len(before)
    state._reset(records, reached)
    assert state.revision == reached
    found = (await shared.call("GET", CMS, query={"resourceVersion": "0"})).json
    content = {each["metadata"]["name"]: each["data"] for each in found["items"]}
    assert content == {"stays": {"n": "1"}, "changed": {"n": "older"}}
    assert int(found["items"][0]["metadata"]["resourceVersion"]) >= above
    assert changed["metadata"]["resourceVersion"] != found["items"][0]["metadata"]["resourceVersion"]
    kinds = [(event["type"], event["object"].get("code")) for event in watch.all]
    assert ("DELETED", None) in kinds and kinds[-1] == ("ERROR", 410)
    assert watch.ended
