"""Two control planes make statements about the tasks of a job: who signs what, and what nobody gets signed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from evidence_world import LoggingDomain, two_domains

from coterie.base.clock import VirtualClock
from coterie.kube.api.meta import ObjectKey
from coterie.kuscia.api import evidence, labels
from coterie.kuscia.api.evidence_exchange import StatementsAnswer, StatementsRequest
from coterie.kuscia.api.types.data import DOMAIN_DATA_RECORDS, DomainDataRecord
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, KusciaJob, KusciaTask
from coterie.kuscia.evidence import task_statements
from coterie.kuscia.evidence.signed_notes import NoteError
from coterie.kuscia.evidence.statement_exchange import PartnerSilent, StatementExchange
from coterie.kuscia.evidence.witness_exchange import WitnessAnswer

AGREED = "ab" * 32
KEY = ObjectKey(CROSS_DOMAIN, "j")


class Objects:
    """What an informer has."""

    def __init__(self, *found: Any) -> None:
        self.cache = self
        self._found = {each.metadata.name: each for each in found}

    def get(self, name: str, namespace: str = "") -> Any:
        return self._found.get(name)

    def by_key(self, key: ObjectKey) -> Any:
        return self._found.get(key.name)

    def add_index(self, name: str, index: Callable[[Any], tuple[str, ...]]) -> None:
        self._index = index

    def by_index(self, name: str, value: str) -> list[Any]:
        return [each for each in self._found.values() if value in self._index(each)]


def an_exchange(
    at: LoggingDomain,
    keys: dict[str, str],
    transport: Any,
    *,
    agreed: str = AGREED,
    taking_part: tuple[str, ...] = ("alice", "bob"),
) -> StatementExchange:
    """`taking_part`: in the task; both are parties of the job."""
    other = "bob" if at.name == "alice" else "alice"
    annotations = {} if at.name == "alice" else {labels.KUSCIA_INITIATOR_MASTER_DOMAIN: "alice"}
    parties = [{"domainID": each, "appImageRef": "engine"} for each in ("alice", "bob")]
    template = {"alias": "a", "taskID": "t", "appImage": "engine", "taskInputConfig": "", "parties": parties}
    job = {
        "metadata": {"name": "j", "uid": "u", "annotations": annotations},
        "spec": {"initiator": "alice", "tasks": [template]},
        "status": {"phase": "Succeeded", "partyStatements": {name: {"verifierKey": key} for name, key in keys.items()}},
    }
    task = {
        "metadata": {"name": "t", "annotations": {labels.COTERIE_AGREEMENT: agreed}},
        "spec": {
            "initiator": "alice",
            "taskInputConfig": "",
            "parties": [each for each in parties if each["domainID"] in taking_part],
        },
        "status": {"phase": "Succeeded"},
    }
    result = {"domainDataID": f"result-of-{at.name}", "location": [], "initiator": "alice", "task": "t"}
    record = {"metadata": {"name": "r", "namespace": at.name}, "spec": result}
    found = {
        KUSCIA_JOBS: Objects(msgspec.convert(job, KusciaJob)),
        KUSCIA_TASKS: Objects(msgspec.convert(task, KusciaTask)),
        DOMAIN_DATA_RECORDS: Objects(msgspec.convert(record, DomainDataRecord)),
        DOMAINS: Objects(
            msgspec.convert({"metadata": {"name": at.name}, "spec": {}}, Domain),
            msgspec.convert({"metadata": {"name": other}, "spec": {"role": "partner"}}, Domain),
        ),
    }
    informers: Any = SimpleNamespace(get=lambda kind, namespace="": found[kind])
    service: Any = SimpleNamespace(log=at.log, problem="")

    def commitments(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(at.log.file.commit(each, evidence.TABLE).commitment for each in values)

    events: Any = SimpleNamespace(commitments=commitments)
    return StatementExchange(service, events, informers, transport, VirtualClock())


class Direct:
    """A transport that leads to a partner in this process."""

    def __init__(self) -> None:
        self.partner: StatementExchange | None = None
        self.sent: list[StatementsRequest] = []

    async def post(self, partner: str, path: str, body: bytes) -> WitnessAnswer:
        self.sent.append(msgspec.json.decode(body, type=StatementsRequest))
        if self.partner is None:
            return WitnessAnswer(0, problem="away")
        answer = await self.partner.answer("alice", body)
        return WitnessAnswer(
            answer.status, bytes(answer.body), "", answer.body.decode() if answer.status != 200 else ""
        )

    async def close(self) -> None: ...


async def test_both_sign_and_keep_the_same_statement(tmp_path: Path) -> None:
    alice, bob = await two_domains(tmp_path)
    keys = {each.name: str(each.log.key) for each in (alice, bob)}
    way = Direct()
    host = an_exchange(alice, keys, way)
    assert (await host.reconcile(KEY)).after == 1.0
    away = await host.reconcile(KEY)
    assert away.after == 2.0, "a partner that is away is asked again"
    way.partner = an_exchange(bob, keys, Direct())
    way.sent.clear()
    assert (await host.reconcile(KEY)).after is None
    assert len(way.sent) == 2
    (kept,), (theirs,) = alice.log.file.statements(), bob.log.file.statements()
    assert kept == theirs
    found = task_statements.check_statement(kept)
    assert found.missing == ()
    assert {name: len(part.results) for name, part in found.predicate.parties.items()} == {"alice": 1, "bob": 1}
    await host.reconcile(KEY)
    assert len(way.sent) == 2, "it is done"
    for each in (alice, bob):
        await each.log.file.close()


@pytest.mark.parametrize("party", ["alice", "bob"])
async def test_only_parties_of_a_task_sign_its_statement(tmp_path: Path, party: str) -> None:
    """Who began the job, or takes part in another task of it, is none."""
    alice, bob = await two_domains(tmp_path)
    keys = {each.name: str(each.log.key) for each in (alice, bob)}
    way = Direct()
    way.partner = an_exchange(bob, keys, Direct(), taking_part=(party,))
    host = an_exchange(alice, keys, way, taking_part=(party,))
    for _ in range(3):
        await host.reconcile(KEY)
    (kept,), theirs = alice.log.file.statements(), bob.log.file.statements()
    found = task_statements.check_statement(kept)
    assert (found.signed, found.missing) == ((keys[party].partition("+")[0],), ())
    for each in theirs:
        task_statements.check_statement(each)
    for each in (alice, bob):
        await each.log.file.close()


async def test_nothing_is_signed_that_we_did_not_say(tmp_path: Path) -> None:
    alice, bob = await two_domains(tmp_path)
    keys = {each.name: str(each.log.key) for each in (alice, bob)}
    partner = an_exchange(bob, keys, Direct())

    async def ask(caller: str = "alice", **fields: Any) -> tuple[int, bytes]:
        request = StatementsRequest(**{"job": "j", "tasks": {"t": AGREED}, **fields})
        answer = await partner.answer(caller, msgspec.json.encode(request))
        return answer.status, bytes(answer.body)

    assert (await ask("carol"))[0] == 404
    assert (await ask(job="other"))[0] == 404
    assert (await ask(tasks={"x": AGREED}))[0] == 409
    assert (await ask(tasks={"t": "00" * 32}))[0] == 409
    assert (await ask(tasks={str(number): AGREED for number in range(200)}))[0] == 404
    status, body = await ask()
    assert status == 200
    own = msgspec.convert(
        msgspec.json.decode(body, type=StatementsAnswer).parts["t"], dict[str, task_statements.StatementPart]
    )
    hosts = msgspec.structs.replace(own["bob"], key=keys["alice"], checkpoint=str(await alice.log.checkpoint()))

    async def offered(agreed: str = AGREED, task: str = "t", **parts: Any) -> tuple[int, str]:
        made = task_statements.unsigned("j", task, agreed, {"alice": hosts, **own, **parts})
        signed = task_statements.signed_by(made, alice.log.signer)
        status, body = await ask(envelopes={"t": signed.encode().decode()})
        return status, body.decode()

    lie = msgspec.structs.replace
    for answer in (
        await offered(bob=lie(own["bob"], outcome="Failed")),
        await offered(bob=lie(own["bob"], results=("cd" * 32,))),
        await offered(agreed="00" * 32),
        await offered(task="other"),
        await offered(carol=lie(hosts)),
    ):
        assert answer[0] == 422, answer
    assert bob.log.file.statements() == []
    assert (await offered())[0] == 200
    for each in (alice, bob):
        await each.log.file.close()


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (1, "something else"),
        ({"key": 1}, "something else"),
        ({"key": "x"}, "a key has the form"),
        ({"key": "ALICE"}, "not its own"),
        ({"key": "STRANGER"}, "another key of its log"),
        ({"checkpoint": "x"}, "note"),
    ],
)
async def test_what_a_partner_says_of_itself_is_checked_before_we_sign_it(tmp_path: Path, part: Any, why: str) -> None:
    alice, bob = await two_domains(tmp_path)
    stranger = await LoggingDomain.make(tmp_path / "other", "bob")
    keys = {each.name: str(each.log.key) for each in (alice, bob)}
    own = {"key": keys["bob"], "checkpoint": str(await bob.log.checkpoint()), "outcome": "Succeeded"}
    shown = part
    if isinstance(part, dict):
        names = {"ALICE": keys["alice"], "STRANGER": str(stranger.log.key)}
        shown = {**own, **{name: names.get(str(value), value) for name, value in part.items()}}

    class Lying(Direct):
        async def post(self, partner: str, path: str, body: bytes) -> WitnessAnswer:
            parts = {"t": {"bob": shown, "alice": own}, "unknown": {"bob": own}}
            return WitnessAnswer(200, msgspec.json.encode(StatementsAnswer(parts=parts, envelopes={})))

    host = an_exchange(alice, keys, Lying())
    await host.reconcile(KEY)
    assert (await host.reconcile(KEY)).after == 2.0, "it is asked again, as one that is away"
    with pytest.raises((PartnerSilent, NoteError), match=why):
        await host._make(host.jobs.cache.by_key(KEY))
    assert alice.log.file.statements() == []
    for each in (alice, bob, stranger):
        await each.log.file.close()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"job": 1}', b"\xff"])
async def test_garbage_is_an_error_of_the_caller(body: bytes, tmp_path: Path) -> None:
    alice, bob = await two_domains(tmp_path)
    partner = an_exchange(bob, {}, Direct())
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        await partner.answer("alice", body)
    for each in (alice, bob):
        await each.log.file.close()
