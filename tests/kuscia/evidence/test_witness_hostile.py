"""Partners that lie: two faces, logs put back, keys changed, answers forged; and a crash at the worst moment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from witness_kit import CALLER, WitnessingDomain, WitnessNet, copy_files

from coterie.base.clock import VirtualClock
from coterie.http.messages import Request
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.api.evidence_exchange import (
    ADD_CHECKPOINT_PATH,
    CONSISTENCY_PATH,
    HEADS_PATH,
    Consistency,
    Heads,
    HeadsRequest,
)
from coterie.kuscia.evidence import witness, witness_store
from coterie.kuscia.evidence.signed_notes import Checkpoint, LogSigner, WitnessSigner, open_checkpoint
from coterie.kuscia.evidence.witness_exchange import WitnessAnswer
from coterie.kuscia.evidence.witness_store import WitnessStore


def pinned(domain: WitnessingDomain, partner: str) -> witness.PinnedLog:
    found = domain.store.current(partner)
    assert found is not None
    return found


async def two_faces(net: WitnessNet, *, carol_more: int) -> None:
    """alice's disk is copied; bob sees one branch, carol the other."""
    async with net.running("alice") as (alice,):
        await alice.add(3)
    copy_files(net.root, "alice", net.root / "copy")
    async with net.running("alice", "bob") as (alice, _bob):
        await alice.add(2)
        assert await alice.exchange.exchange("bob") == ""
    shutil.rmtree(net.root / "alice")
    copy_files(net.root, "copy", net.root / "alice")
    async with net.running("alice", "carol") as (alice, _carol):
        await alice.service.record(EventRequest(event=EvidenceEvent(kind=evidence.JOB_ENDED, job="other")))
        await alice.add(carol_more)
        assert await alice.exchange.exchange("carol") == ""


@pytest.mark.parametrize("carol_more", [0, 1, 9])
async def test_two_faces_are_found_by_gossip(tmp_path: Path, carol_more: int) -> None:
    """With the same size, and with a smaller and a larger one."""
    net = WitnessNet(tmp_path)
    await two_faces(net, carol_more=carol_more)
    async with net.running("alice", "bob", "carol") as (_alice, bob, carol):
        assert await bob.exchange.exchange("carol") == ""
        await bob.exchange.gossip("carol")
        (found,) = bob.found
        assert (found.domain, found.reason) == ("alice", witness.SPLIT_VIEW)
        # Both notes are alice's own: whoever has them can show them to anybody.
        key = pinned(bob, "alice").key
        first, second = (open_checkpoint(note, key)[0] for note in (found.first, found.second))
        assert (first.size, first.root) != (second.size, second.root)
        assert first == pinned(bob, "alice").head
        assert second == pinned(carol, "alice").head
        events = [evidence.decode(each.body or b"") for each in bob.log.file.events()]
        (refused,) = [each for each in events if each.kind == evidence.CHECKPOINT_REFUSED]
        assert (refused.partner, refused.reason) == ("alice", "split-view")
        # Found once, told once.
        await bob.exchange.gossip("carol")
        assert len(bob.store.findings("alice")) == len(bob.found) == 1
        await carol.exchange.exchange("bob")
        await carol.exchange.gossip("bob")
        assert [each.reason for each in carol.found] == [witness.SPLIT_VIEW]


async def test_honest_logs_of_different_size_are_connected(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob", "carol") as (alice, bob, carol):
        for count, partner in ((3, "bob"), (4, "carol"), (9, "carol"), (2, "bob")):
            await alice.add(count)
            assert await alice.exchange.exchange(partner) == ""
            assert await bob.exchange.exchange("carol") == ""
            await bob.exchange.gossip("carol")
            await carol.exchange.gossip("bob")
        assert [each for each in net.sent if each[2] == CONSISTENCY_PATH]
        assert bob.found == carol.found == alice.found == []


@pytest.mark.parametrize("answer", [WitnessAnswer(404), WitnessAnswer(200, b'{"proof": []}'), WitnessAnswer(200, b"{")])
async def test_a_log_that_does_not_connect_its_heads_is_named(tmp_path: Path, answer: WitnessAnswer) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob", "carol") as (alice, bob, _carol):
        assert await alice.exchange.exchange("bob") == ""
        await alice.add(3)
        assert await alice.exchange.exchange("carol") == ""
        assert await bob.exchange.exchange("alice") == ""

        async def refuse(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            return answer if (receiver, path) == ("alice", CONSISTENCY_PATH) else None

        net.intercept = refuse
        assert await bob.exchange.exchange("carol") == ""
        await bob.exchange.gossip("carol")
        assert [each.domain for each in bob.found] == ["alice"]


@pytest.mark.parametrize(
    "answer", [WitnessAnswer(0, problem="away"), WitnessAnswer(503), WitnessAnswer(429), WitnessAnswer(404)]
)
async def test_a_partner_that_is_away_is_not_accused(tmp_path: Path, answer: WitnessAnswer) -> None:
    """404 comes from our own gateway too, where there is no route."""
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob", "carol") as (alice, bob, _carol):
        assert await alice.exchange.exchange("bob") == ""
        await alice.add(3)
        assert await alice.exchange.exchange("carol") == ""
        assert await bob.exchange.exchange("carol") == ""

        async def away(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            return answer if receiver == "alice" else None

        net.intercept = away
        await bob.exchange.gossip("carol")
        assert bob.found == []


async def test_gossip_shows_nothing_to_who_does_not_witness_the_log(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob", "carol") as (alice, bob, carol):
        assert await alice.exchange.exchange("bob") == ""
        assert await bob.exchange.exchange("carol") == ""
        nonce = "0" * 32
        guesses = [alice.log.origin.encode(), str(alice.log.key).encode(), b"alice"]
        asked = HeadsRequest(nonce=nonce, logs=tuple(witness.log_token(nonce, each) for each in guesses))
        answer = await bob.inbox.handle(
            Request("POST", HEADS_PATH, headers={CALLER: "carol"}, body=msgspec.json.encode(asked))
        )
        assert msgspec.json.decode(answer.body, type=Heads).heads == ()
        first = next(alice.log.file.events()).body or b""
        known = HeadsRequest(nonce=nonce, logs=(witness.log_token(nonce, first),))
        answer = await bob.inbox.handle(
            Request("POST", HEADS_PATH, headers={CALLER: "carol"}, body=msgspec.json.encode(known))
        )
        assert len(msgspec.json.decode(answer.body, type=Heads).heads) == 1
        for bad in (b"{}", b'{"nonce": "x", "logs": []}', json.dumps({"nonce": nonce, "logs": ["x"] * 300}).encode()):
            assert (
                await bob.inbox.handle(Request("POST", HEADS_PATH, headers={CALLER: "carol"}, body=bad))
            ).status == 400
        assert carol.found == []


async def test_a_proof_is_given_for_signed_sizes_of_our_own_log_only(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        await alice.add(3)
        await alice.log.checkpoint()
        await alice.add(3)
        origin = alice.log.origin
        for asked in (
            (origin, 2, 7),
            (origin, 3, 2),
            (origin, -1, 2),
            (bob.log.origin, 0, 1),
            ("../x", 0, 1),
            ("alice.coterie/evidence/7", 0, 1),
        ):
            body = json.dumps(dict(zip(("origin", "old", "size"), asked, strict=True))).encode()
            answer = await alice.inbox.handle(Request("POST", CONSISTENCY_PATH, headers={CALLER: "bob"}, body=body))
            assert msgspec.json.decode(answer.body, type=Consistency).proof is None, asked
        body = json.dumps({"origin": origin, "old": 2, "size": 4}).encode()
        answer = await alice.inbox.handle(Request("POST", CONSISTENCY_PATH, headers={CALLER: "bob"}, body=body))
        assert msgspec.json.decode(answer.body, type=Consistency).proof


# Logs that were put back.


async def rolled_back(net: WitnessNet, *, regrown: int) -> None:
    """alice's whole disk, with what is beside the log, is an older one again."""
    async with net.running("alice", "bob") as (alice, _bob):
        assert await alice.exchange.exchange("bob") == ""
    copy_files(net.root, "alice", net.root / "copy")
    async with net.running("alice", "bob") as (alice, _bob):
        await alice.add(6)
        assert await alice.exchange.exchange("bob") == ""
    shutil.rmtree(net.root / "alice")
    copy_files(net.root, "copy", net.root / "alice")
    async with net.running("alice") as (alice,):
        other = EventRequest(event=EvidenceEvent(kind=evidence.JOB_ENDED, job="other"))
        await alice.service.record(*[other] * regrown)


@pytest.mark.parametrize("regrown", [0, 30])
async def test_a_restored_backup_is_found_at_both_sides_and_reopen_is_the_honest_way(
    tmp_path: Path, regrown: int
) -> None:
    net = WitnessNet(tmp_path)
    await rolled_back(net, regrown=regrown)
    async with net.running("alice", "bob") as (alice, bob):
        before = pinned(bob, "alice").head
        problem = await alice.exchange.exchange("bob")
        assert "our own log was rolled back" in problem
        assert [each.reason for each in bob.found] == [witness.SPLIT_VIEW if regrown else witness.ROLLED_BACK]
        # alice's own node refuses to go on, as if it had found it out by itself.
        assert alice.service.log is None
        with pytest.raises(EvidenceError, match="older copy"):
            await alice.service.sign()
        assert await alice.service.reopen() == "alice.coterie/evidence/2"
        first = evidence.decode(next(alice.log.file.events()).body or b"")
        assert first.checkpoint == (before.origin, str(before.size), before.root.hex())
        assert await alice.exchange.exchange("bob") == ""
        assert pinned(bob, "alice").origin == "alice.coterie/evidence/2"
        assert "partner.reopened" in bob.kinds()
        open_findings = [each for each in bob.store.findings("alice") if not each.accepted]
        assert bool(open_findings) == bool(regrown), "two faces stay found until a person accepts them"
        assert {each.closed_by for each in bob.store.findings("alice")} == ({""} if regrown else {"partner"})


async def test_a_log_that_shrinks_is_not_accused_while_an_older_request_may_be_on_its_way(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        size = pinned(bob, "alice").size
        await alice.add()
        note = await alice.log.checkpoint()
        late = witness.request_body(size, alice.log.file.consistency(size, Checkpoint.parse(note.text).size), note)
        await alice.add(3)
        assert await alice.exchange.exchange("bob") == ""
        request = Request("POST", ADD_CHECKPOINT_PATH, headers={CALLER: "alice"}, body=late)
        assert (await bob.inbox.handle(request)).status == 409
        assert bob.found == []
        await net.clock.advance(120)
        assert (await bob.inbox.handle(request)).status == 409
        assert [each.reason for each in bob.found] == [witness.ROLLED_BACK]
        # It goes on from what it showed last, with a proof: nothing was rolled back, or the newer file is in its place again.
        split = witness.LogFinding("alice", alice.log.origin, witness.SPLIT_VIEW, "s", "a", "b")
        later = witness.LogFinding("alice", "alice.coterie/evidence/2", witness.ROLLED_BACK, "s", "a", "")
        for each in (split, later):
            await bob.logs.found(each)
        await alice.add()
        assert await alice.exchange.exchange("bob") == ""
        assert [each.closed_by for each in bob.store.findings("alice")] == ["partner", "", ""]


async def test_a_partner_cannot_talk_us_out_of_our_log(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        forged = LogSigner(alice.log.origin, Ed25519PrivateKey.generate()).sign(
            Checkpoint(alice.log.origin, 999, b"\1" * 32)
        )
        answers = {
            ADD_CHECKPOINT_PATH: WitnessAnswer(409, b"999\n", witness.SIZE_TYPE),
            HEADS_PATH: WitnessAnswer(
                200, msgspec.json.encode(Heads(heads=(str(forged), "x", str(await bob.log.checkpoint()))))
            ),
        }

        async def lie(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            return answers.get(path)

        net.intercept = lie
        assert "shows no checkpoint of ours" in await alice.exchange.exchange("bob")
        answers[ADD_CHECKPOINT_PATH] = WitnessAnswer(422)
        assert "shows no checkpoint of ours" in await alice.exchange.exchange("bob")
        await alice.exchange.gossip("bob")
        assert alice.service.log is not None
        await alice.add()


@pytest.mark.parametrize(
    "answer",
    [
        WitnessAnswer(200, b""),
        WitnessAnswer(200, b"\xff"),
        WitnessAnswer(200, "— bob.coterie/witness AAAA\n".encode()),
        WitnessAnswer(409, b"x\n", witness.SIZE_TYPE),
        WitnessAnswer(409, b"1\n", "text/plain"),
        WitnessAnswer(500),
        WitnessAnswer(0, problem="gone\x1b[2J"),
    ],
)
async def test_answers_that_are_none(tmp_path: Path, answer: WitnessAnswer) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, _bob):
        assert await alice.exchange.exchange("bob") == ""

        async def wrong(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            return answer if path == ADD_CHECKPOINT_PATH else None

        net.intercept = wrong
        problem = await alice.exchange.exchange("bob")
        assert problem
        assert "\x1b" not in problem
        assert alice.store.exchange("bob").problem == problem
        net.intercept = None
        assert await alice.exchange.exchange("bob") == ""


async def test_a_replayed_or_foreign_cosignature_does_not_count(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        old = (await alice.log.checkpoint()).text
        other = WitnessSigner("bob.coterie/witness", Ed25519PrivateKey.generate())
        mine = WitnessSigner("bob.coterie/witness", bob.log.signer.private)
        for signature in (other.cosign(old, 1), mine.cosign("another text\n", 1)):
            line = signature.line().encode()

            async def replay(
                sender: str, receiver: str, path: str, body: bytes, line: bytes = line
            ) -> WitnessAnswer | None:
                return WitnessAnswer(200, line) if path == ADD_CHECKPOINT_PATH else None

            net.intercept = replay
            await alice.add()
            assert await alice.exchange.exchange("bob")
        assert alice.kinds("checkpoint.") == ["checkpoint.cosigned"]


# Keys and new logs.


async def test_a_new_log_that_does_not_name_the_old_one_is_refused_until_a_person_accepts(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        await alice.add(3)
        assert await alice.exchange.exchange("bob") == ""
    # Everything of the log is thrown away, also its key and heads: alice begins anew, with the same origin and another key.
    for each in (net.root / "alice").rglob("evidence*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)
    async with net.running("alice", "bob") as (alice, bob):
        assert "403" in await alice.exchange.exchange("bob")
        assert [each.reason for each in bob.found] == [witness.KEY_CHANGED]
        assert pinned(bob, "alice").size > 1
        assert bob.store.accept("alice") == 1
        assert await alice.exchange.exchange("bob") == ""


async def test_rotated_keys_and_logs_are_followed(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        old = pinned(bob, "alice").key
        await alice.service.rotate(True)
        await alice.service.rotate(False)
        assert await alice.exchange.exchange("bob") == ""
        assert pinned(bob, "alice").origin == "alice.coterie/evidence/3"
        assert pinned(bob, "alice").key.public != old.public
        # The other way: alice cosigns with the new key, which bob knows by now.
        assert await bob.exchange.exchange("alice") == ""
        assert bob.kinds("partner.") == ["partner.introduced", "partner.reopened", "partner.reopened"]
        await bob.service.rotate(True)
        await alice.add()
        assert await alice.exchange.exchange("bob") == ""
        assert bob.found == alice.found == []


async def test_a_reopened_log_that_names_an_older_head_is_a_rollback(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    await rolled_back(net, regrown=0)
    async with net.running("alice", "bob") as (alice, bob):
        # alice opens a new log without having asked anybody: her own disk names the older head.
        await alice.service.reopen()
        assert "403" in await alice.exchange.exchange("bob")
        assert [each.reason for each in bob.found] == [witness.ROLLED_BACK]
        assert pinned(bob, "alice").origin == "alice.coterie/evidence/1"


# Crashes and clocks.


async def test_a_crash_between_store_and_answer(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        await alice.add(4)

        async def crash(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            if path != ADD_CHECKPOINT_PATH:
                return None
            request = witness.parse_request(body)
            assert isinstance(request, witness.WitnessRequest)
            assert bob.store.cosign(request, sender, settled=False) is True
            return WitnessAnswer(0, problem="the connection ended")

        net.intercept = crash
        assert await alice.exchange.exchange("bob") == "the connection ended"
        known = pinned(bob, "alice").size
    net.intercept = None
    async with net.running("alice", "bob") as (alice, bob):
        assert pinned(bob, "alice").size == known, "it was on disk"
        assert await alice.exchange.exchange("bob") == ""
        assert (ADD_CHECKPOINT_PATH, 409) in [(path, status) for _, _, path, status in net.sent]
        assert bob.found == alice.found == []


async def test_clocks_that_moved_change_nothing_of_what_follows(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        await net.clock.advance(200 * 86400)
        assert await alice.exchange.exchange("bob") == ""
    net.clock = VirtualClock()
    async with net.running("alice", "bob") as (alice, bob):
        await alice.add()
        assert await alice.exchange.exchange("bob") == ""
        assert alice.store.exchange("bob").cosigned == int(net.clock.now().timestamp())
        assert bob.found == []


async def test_a_store_that_cannot_be_written_cosigns_nothing(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        await alice.add()
        bob.store._writing.execute("PRAGMA query_only=ON")
        assert "503" in await alice.exchange.exchange("bob")
        bob.store._writing.execute("PRAGMA query_only=OFF")
        assert await alice.exchange.exchange("bob") == ""


async def test_findings_of_one_partner_do_not_fill_the_disk(tmp_path: Path) -> None:
    store = WitnessStore(tmp_path / "witness.db")
    for number in range(100):
        store.keep_finding(witness.LogFinding("alice", f"o{number}", witness.SPLIT_VIEW, "s", "a", "b"), number)
    assert len(store.findings("alice")) == 20
    store.close()


async def test_a_new_key_of_the_domain_begins_a_log_that_is_followed(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, _bob):
        assert await alice.exchange.exchange("bob") == ""
        paths = alice.service.paths
    for each in (paths.domain_certificate, paths.domain_key, paths.ca_key, paths.certs / "ca.crt"):
        each.unlink()
    async with net.running("alice", "bob") as (alice, bob):
        assert alice.log.origin == "alice.coterie/evidence/2"
        assert await alice.exchange.exchange("bob") == ""
        assert pinned(bob, "alice").origin == "alice.coterie/evidence/2"
        assert bob.found == []


async def test_logs_of_one_partner_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_store, "MOST_LOGS", 3)
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        for _ in range(3):
            assert await alice.exchange.exchange("bob") == ""
            await alice.service.rotate(False)
        assert "403" in await alice.exchange.exchange("bob")
        assert bob.found == []
        assert len(bob.store.logs()) == 3


async def test_one_head_of_each_log_is_compared(tmp_path: Path) -> None:
    """A partner that shows many would have the log's owner asked many times."""
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob", "carol") as (alice, bob, _carol):
        assert await alice.exchange.exchange("bob") == ""
        notes = []
        for _ in range(5):
            await alice.add()
            notes.append(str(await alice.log.checkpoint()))

        async def many(sender: str, receiver: str, path: str, body: bytes) -> WitnessAnswer | None:
            return WitnessAnswer(200, msgspec.json.encode(Heads(heads=tuple(notes)))) if path == HEADS_PATH else None

        net.intercept = many
        await bob.exchange.gossip("carol")
        assert [each[1:3] for each in net.sent if each[2] == CONSISTENCY_PATH] == [("alice", CONSISTENCY_PATH)]
        assert bob.found == []


async def test_what_a_witness_learns_has_no_effect_before_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of bob is full, or he is killed, at each step: then nothing is cosigned, known or found that his log does not have."""
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        kept = bob.service.record

        async def full(*_: EventRequest) -> None:
            raise EvidenceError("the disk is full")

        monkeypatch.setattr(bob.service, "record", full)
        assert "503" in await alice.exchange.exchange("bob")
        assert bob.store.current("alice") is None
        monkeypatch.setattr(bob.service, "record", kept)
        assert await alice.exchange.exchange("bob") == ""
        seen = pinned(bob, "alice").head
        await alice.add()
        monkeypatch.setattr(bob.service, "record", full)
        assert "503" in await alice.exchange.exchange("bob")
        assert pinned(bob, "alice").head == seen
        with pytest.raises(EvidenceError):
            await bob.logs.found(witness.LogFinding("alice", alice.log.origin, witness.SPLIT_VIEW, "s", "a", "b"))
        assert bob.store.findings() == [] and bob.found == []
        monkeypatch.setattr(bob.service, "record", kept)
        assert await alice.exchange.exchange("bob") == ""
        events = [evidence.decode(each.body or b"") for each in bob.log.file.events()]
        received = [int(each.checkpoint[1]) for each in events if each.kind == evidence.CHECKPOINT_RECEIVED]
        assert received == [seen.size, pinned(bob, "alice").size]
