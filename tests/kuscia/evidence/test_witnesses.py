"""When exchanges happen, what a policy demands, and who is told of a log that contradicts itself: a control plane with an API in memory."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from witness_kit import CALLER, NetTransport, WitnessingDomain, WitnessNet

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.http.plain_client import Pool
from coterie.kube.api.types.core import EVENTS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api import evidence, labels
from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.api.evidence_exchange import ADD_CHECKPOINT_PATH, HEADS_PATH
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES
from coterie.kuscia.control.task_witnesses import END, START
from coterie.kuscia.evidence import witness, witnesses
from coterie.kuscia.evidence.witness_exchange import WitnessAnswer
from coterie.kuscia.evidence.witness_inbox import PartnerLogs, WitnessInbox
from coterie.kuscia.evidence.witnesses import WITNESS_PATH, WitnessCall, Witnesses
from coterie.kuscia.extensions.apiserver import KUSCIA

ADMIN = UserInfo("admin", ("system:masters",))


@dataclass
class Plane:
    net: WitnessNet
    alice: WitnessingDomain
    bob: WitnessingDomain
    client: Client
    witnesses: Witnesses

    async def require(self, witness_policy: str) -> None:
        spec = {"witness": witness_policy}
        await self.client.create(PARTNER_POLICIES.as_dynamic, {"metadata": {"name": "bob"}, "spec": spec})
        await until(lambda: self.witnesses._required("bob", "bob") == (witness_policy == "Require"))

    async def call(self, **asked: Any) -> Any:
        return await self.witnesses._call(msgspec.json.encode(WitnessCall(**asked)))

    def sent(self, path: str = ADD_CHECKPOINT_PATH) -> int:
        return len([each for each in self.net.sent if each[0] == "alice" and each[2] == path])


async def until(look: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not look():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def plane(root: Path) -> AsyncIterator[Plane]:
    """alice's control plane with partners bob, carol (whose control plane is bob's) and dave (a Kuscia)."""
    net = WitnessNet(root)
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]))
    await server.start()
    client = Client(InProcessTransport(server.handle, ADMIN))
    async with net.running("alice", "bob") as (alice, bob):
        for name, spec in (
            ("alice", {}),
            ("bob", {"role": "partner"}),
            ("carol", {"role": "partner", "master": "bob"}),
            ("dave", {"role": "partner"}),
        ):
            if name in net.domains:
                certificate = net.domains[name].service.paths.domain_certificate.read_bytes()
                spec = {**spec, "cert": base64.b64encode(certificate).decode()}
            await client.create(DOMAINS.as_dynamic, {"metadata": {"name": name}, "spec": spec})
        informers = Informers(client)
        transport = NetTransport(net, "alice")
        made = Witnesses(alice.service, client, informers, transport, root / "w.sock", CALLER, SYSTEM_CLOCK)
        tasks = [asyncio.ensure_future(each.run()) for each in (informers, made)]
        await asyncio.wait_for(made.ready.wait(), 30)
        await until(lambda: made._domains.cache.get("dave") is not None)
        # The inbox of Witnesses takes the place of the kit's.
        alice.store.close()
        assert made._store is not None
        alice.store = made._store
        logs = PartnerLogs(alice.service, made._store, made._domain_key, SYSTEM_CLOCK, on_finding=made._tell)
        alice.inbox = WitnessInbox(logs, alice.service, CALLER, SYSTEM_CLOCK)
        try:
            yield Plane(net, alice, bob, client, made)
        finally:
            made.stop()
            await asyncio.wait_for(tasks[1], 30)
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()
    await store.close()


async def test_record_returns_at_once_and_the_exchange_follows(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        gate = asyncio.Event()

        async def slow(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            await gate.wait()
            return None

        it.net.intercept = slow
        # It would wait for ever if it waited.
        assert await it.witnesses.at_task("t", ("alice", "bob"), START) is None
        gate.set()
        await until(lambda: "checkpoint.cosigned" in it.alice.kinds())


async def test_start_and_end_of_a_short_task_share_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "GATHER_SECONDS", 600.0)
    async with plane(tmp_path) as it:
        for when in (START, END):
            assert await it.witnesses.at_task("t", ("alice", "bob"), when) is None
        assert it.sent() == 0, "nobody waits for it"
        assert len(it.witnesses._lanes["bob"].waiting) == 2
        # Whoever waits takes the others along.
        await it.call(partner="bob", now=True)
        assert it.sent() == 1
        assert it.witnesses._lanes["bob"].waiting == []


async def test_require_waits_for_the_cosignature_and_covers_what_was_recorded(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        await it.require("Require")
        await it.alice.add(3)
        size = it.alice.log.file.size
        assert await it.witnesses.at_task("t", ("alice", "bob"), START) is None
        assert it.alice.store.exchange("bob").size >= size
        # A domain that bob's control plane hosts is bob's to cosign.
        it.net.away.add("bob")
        why = await it.witnesses.at_task("t", ("alice", "carol"), START)
        assert why is not None
        assert "bob did not cosign" in why
        assert await it.witnesses.at_task("t", ("alice", "carol"), END) is None, "an end never waits"
        assert await it.witnesses.at_task("t", ("alice",), START) is None


async def test_require_gives_up_after_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "START_SECONDS", 0.05)
    async with plane(tmp_path) as it:
        await it.require("Require")
        gate = asyncio.Event()

        async def silent(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            await gate.wait()
            return None

        it.net.intercept = silent
        why = await it.witnesses.at_task("t", ("alice", "bob"), START)
        assert why is not None
        assert "no answer within" in why
        gate.set()


async def test_a_partner_without_a_witness_is_unanswered_once_for_each_task(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        for task in ("one", "one", "two"):
            assert await it.witnesses.at_task(task, ("alice", "dave"), START) is None
        await until(lambda: it.alice.kinds().count("checkpoint.unanswered") == 2)
        (state,) = await it.call(partner="dave", now=True)
        assert state["ours"]["problem"]
        assert state["ours"]["size"] == 0
        events = [evidence.decode(each.body or b"") for each in it.alice.log.file.events()]
        found = {each.task for each in events if each.kind == evidence.CHECKPOINT_UNANSWERED}
        assert found >= {"one", "two"}


async def test_many_tasks_share_exchanges(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        await it.require("Require")
        await it.witnesses.at_task("first", ("bob",), START)
        before, gate = it.sent(), asyncio.Event()

        async def slow(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            await gate.wait()
            return None

        it.net.intercept = slow
        asked = [asyncio.ensure_future(it.witnesses.at_task(f"t{n}", ("alice", "bob"), START)) for n in range(200)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.wait(asked)
        assert it.sent() - before <= 3
        assert it.witnesses._lanes["bob"].waiting == []


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        gate = asyncio.Event()

        async def silent(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            await gate.wait()
            return None

        it.net.intercept = silent
        for number in range(3000):
            assert await it.witnesses.at_task(f"t{number}", ("bob",), START) is None
        assert len(it.witnesses._lanes["bob"].waiting) <= 1000
        gate.set()
        await until(lambda: not it.witnesses._lanes["bob"].waiting)


async def test_an_alarm_is_told_cuts_off_by_policy_and_is_accepted_by_a_person(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        assert await it.call(now=True, partner="bob")
        assert await it.witnesses.at_task("t", ("alice", "bob"), START) is None
        finding = witness.LogFinding("bob", it.bob.log.origin, witness.SPLIT_VIEW, "bob shows two logs", "a", "b")
        await it.witnesses._exchange._logs.found(finding)  # type: ignore[union-attr]
        assert await it.witnesses.at_task("t", ("alice", "bob"), START) is None, "Record goes on"
        await it.require("Require")
        why = await it.witnesses.at_task("t", ("alice", "bob"), START)
        assert why is not None
        assert "bob shows two logs" in why

        async def annotation() -> str | None:
            found = await it.client.get(DOMAINS, "bob")
            return (found.metadata.annotations or {}).get(labels.COTERIE_EVIDENCE_ALARM)

        async with asyncio.timeout(30):
            while await annotation() != "bob shows two logs":
                await asyncio.sleep(0.01)
            while not [
                each for each in (await it.client.list(EVENTS, "")).items if each.reason == "EvidenceContradicts"
            ]:
                await asyncio.sleep(0.01)
        (state,) = await it.call(partner="bob")
        assert state["findings"][0]["notes"] == ["a", "b"]
        with pytest.raises(ValueError, match="nothing was found"):
            await it.call(partner="dave", accept=True)
        (state,) = await it.call(partner="bob", accept=True, now=True)
        assert (state["findings"][0]["accepted"], state["findings"][0]["closedBy"]) == (True, "person")
        assert await it.witnesses.at_task("t", ("alice", "bob"), START) is None
        async with asyncio.timeout(30):
            while await annotation() is not None:
                await asyncio.sleep(0.01)
        assert "checkpoint.accepted" in it.alice.kinds()


async def test_rounds_go_to_partners_with_a_ready_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "_FIRST_ROUND", 0.05)
    monkeypatch.setattr(witnesses, "HOURLY", 0.1)
    async with plane(tmp_path) as it:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alice"}}
        await it.client.create(Kind.dynamic(builtin("namespaces")), namespace)
        endpoint = {"host": "127.0.0.1", "ports": [{"name": "http", "protocol": "HTTP", "port": 1}]}
        for destination in ("bob", "carol", "dave"):
            spec = {
                "source": "alice",
                "destination": destination,
                "authenticationType": "MTLS" if destination != "dave" else "Token",
                "endpoint": endpoint,
                **({"tokenConfig": {"tokenGenMethod": "RSA-GEN"}} if destination == "dave" else {}),
                **({"mTLSConfig": {"tlsCA": ""}} if destination != "dave" else {}),
            }
            body = {"metadata": {"name": f"alice-{destination}", "namespace": "alice"}, "spec": spec}
            await it.client.create(DOMAIN_ROUTES.as_dynamic, body)
        await until(lambda: "checkpoint.cosigned" in it.alice.kinds())
        assert it.witnesses._ready_partners() == ["bob"], "dave's route has no token, carol has no control plane"


async def test_both_directions(tmp_path: Path) -> None:
    """Who asks us for heads gets our checkpoint too, and that ends there."""
    async with plane(tmp_path) as it:
        assert await it.bob.exchange.exchange("alice") == ""
        socket = Pool(tmp_path / "w.sock")
        nonce = b'{"nonce": "00000000000000000000000000000000", "logs": []}'
        answer = await socket.request("POST", HEADS_PATH, {"host": "x", CALLER: "bob"}, nonce)
        assert answer.status == 200
        await answer.read()
        await until(lambda: "checkpoint.cosigned" in it.alice.kinds())
        begun = it.witnesses._lanes["bob"].begun
        answer = await socket.request("POST", HEADS_PATH, {"host": "x", CALLER: "bob"}, nonce)
        await answer.read()
        await socket.close()
        assert it.witnesses._lanes["bob"].begun == begun
        assert ((tmp_path / "w.sock").stat().st_mode & 0o77) == 0


async def test_the_call_of_the_command(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        pool = Pool(it.alice.service.socket)
        answer = await pool.request("POST", WITNESS_PATH, {"host": "x"}, b'{"partner": "bob", "now": true}')
        (state,) = msgspec.json.decode(await answer.read())
        assert (state["partner"], state["policy"]) == ("bob", "record")
        assert state["ours"]["size"] > 0
        assert state["theirs"]["origin"] == it.bob.log.origin
        answer = await pool.request("POST", WITNESS_PATH, {"host": "x"}, b"[]")
        assert answer.status == 400
        await answer.read()
        await pool.close()
    with pytest.raises(EvidenceError):
        await it.witnesses._call(b"{}")


async def test_requests_that_a_partner_does_not_finish_hold_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.kuscia.evidence.witnesses._REQUESTS_OF_ONE", 3)
    async with plane(tmp_path):
        path = str(tmp_path / "w.sock")
        unfinished = [await asyncio.open_unix_connection(path) for _ in range(3)]
        for _, writer in unfinished:
            head = f"POST {HEADS_PATH} HTTP/1.1\r\nhost: x\r\n{CALLER}: bob\r\ncontent-length: 100\r\n\r\n{{"
            writer.write(head.encode())
            await writer.drain()
        pool = Pool(tmp_path / "w.sock")

        async def status(partner: str) -> int:
            body = b'{"nonce": "00000000000000000000000000000000", "logs": []}'
            answer = await pool.request("POST", HEADS_PATH, {"host": "x", CALLER: partner}, body)
            await answer.read()
            return answer.status

        assert await status("bob") == 429
        assert await status("carol") != 429
        for _, writer in unfinished:
            writer.close()
        await pool.close()
