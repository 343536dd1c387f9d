"""PartnerLogService: asking, seeing, deciding; each domain for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kusciaapi_kit import World, domain_caller, here
from kusciaapi_stage import prepare

from coterie.kuscia.api.types.log_request import LOG_REQUESTS
from coterie.kuscia.kusciaapi.partner_logs import OPERATIONS
from coterie.kuscia.kusciaapi.table import OPERATIONS as ALL

REQUEST = LOG_REQUESTS.as_dynamic
ASKED = {"domain_id": "alice", "owner_id": "bob", "job_id": "job", "reason": "it failed"}


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    async with here(tmp_path, namespaces=("bob", "carol")) as made:
        await prepare(made, ALL)
        yield made


async def incoming(world: World, **status: Any) -> None:
    spec = {"requester": "bob", "owner": "alice", "job": "job", "reason": "tell us"}
    await world.client.create(REQUEST, {"metadata": {"name": "in", "namespace": "alice"}, "spec": spec})
    await world.client.patch_status(REQUEST, "in", "alice", {"status": status})


async def test_a_request_is_made_seen_and_deleted(world: World) -> None:
    made = await world.call(OPERATIONS, "AskPartnerLog", **ASKED, sources=["engine"], since="1h", max_lines=20)
    assert made.status.code == 0, made.status.message
    name = made.data.request_id
    spec = (await world.client.get(REQUEST, name, "alice"))["spec"]
    assert (spec["requester"], spec["owner"], spec["maxLines"]) == ("alice", "bob", 20) and spec["since"].endswith("Z")
    listed = await world.call(OPERATIONS, "ListPartnerLog", domain_id="alice")
    assert [each.request_id for each in listed.data.requests] == [name]
    shown = await world.call(OPERATIONS, "QueryPartnerLog", domain_id="alice", request_id=name)
    assert (shown.data.owner_id, shown.data.reason) == ("bob", "it failed")
    assert (await world.call(OPERATIONS, "DeletePartnerLog", domain_id="alice", request_id=name)).status.code == 0
    gone = await world.call(OPERATIONS, "QueryPartnerLog", domain_id="alice", request_id=name)
    assert (gone.status.code, gone.status.message) == (13910, f"alice has no log request {name}")


async def test_a_preview_is_approved_by_its_digest(world: World) -> None:
    await incoming(world, phase="AwaitingApproval", preview={"text": "line\n", "lines": 1, "digest": "ab" * 32})
    seen = (await world.call(OPERATIONS, "QueryPartnerLog", domain_id="alice", request_id="in")).data
    assert (seen.text, seen.lines, seen.digest) == ("line\n", 1, "ab" * 32)
    listed = await world.call(OPERATIONS, "ListPartnerLog", domain_id="alice")
    assert [each.text for each in listed.data.requests] == [""], "lists have no lines"
    review = {"domain_id": "alice", "request_id": "in", "decision": "Approve"}
    assert (await world.call(OPERATIONS, "ReviewPartnerLog", **review)).status.code == 11100
    done = await world.call(OPERATIONS, "ReviewPartnerLog", **review, digest=seen.digest)
    assert done.status.code == 0, done.status.message
    written = (await world.client.get(REQUEST, "in", "alice"))["spec"]["review"]
    assert (written["decision"], written["digest"]) == ("Approve", "ab" * 32) and written["by"]


REFUSED = [
    ({**ASKED, "reason": " "}, 11100, "reason"),
    ({**ASKED, "since": "soon"}, 11100, "since"),
    ({**ASKED, "job_id": "other"}, 13911, "took part in no job other"),
    ({**ASKED, "owner_id": "alice"}, 13911, "needs no request for its own logs"),
    ({**ASKED, "max_lines": 9999}, 13911, "maxLines"),
    ({**ASKED, "domain_id": "nobody"}, 13911, "there is no domain nobody"),
]


async def test_what_cannot_be_asked(world: World) -> None:
    for request, code, words in REFUSED:
        answer = await world.call(OPERATIONS, "AskPartnerLog", **request)
        assert answer.status.code == code and words in answer.status.message, answer.status
    assert not (await world.client.list(REQUEST)).items


async def test_each_domain_speaks_for_itself_and_decides_about_its_own_logs(world: World) -> None:
    for method, request in (("AskPartnerLog", ASKED), ("ListPartnerLog", {"domain_id": "alice"})):
        answer = await world.call(OPERATIONS, method, caller=domain_caller("bob"), **request)
        assert answer.status.code == 11102
    name = (await world.call(OPERATIONS, "AskPartnerLog", **ASKED)).data.request_id
    review = {"domain_id": "alice", "request_id": name, "decision": "Reject"}
    answer = await world.call(OPERATIONS, "ReviewPartnerLog", **review)
    assert (answer.status.code, answer.status.message) == (13912, "bob decides about it, not alice")
