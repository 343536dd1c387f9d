"""C2SP's tlog-witness: what is cosigned, and the status of everything else."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from witness_kit import CALLER, WitnessingDomain, WitnessNet

from coterie.http.messages import Request, Response
from coterie.kuscia.api.evidence_exchange import ADD_CHECKPOINT_PATH, INTRODUCE_PATH
from coterie.kuscia.evidence import export, verification, witness
from coterie.kuscia.evidence.signed_notes import Checkpoint, LogSigner, SignedNote, parse_signatures, verify_cosignature


async def send(to: WitnessingDomain, body: bytes, caller: str = "alice", path: str = ADD_CHECKPOINT_PATH) -> Response:
    return await to.inbox.handle(Request("POST", path, headers={CALLER: caller}, body=body))


async def body_of(domain: WitnessingDomain, old: int) -> bytes:
    note = await domain.log.checkpoint()
    return witness.request_body(old, domain.log.file.consistency(old, Checkpoint.parse(note.text).size), note)


async def test_a_checkpoint_is_cosigned_and_the_next_one_goes_on_from_it(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        size = bob.store.current("alice").size  # type: ignore[union-attr]
        assert size >= 1
        await alice.add(5)
        answer = await send(bob, await body_of(alice, size))
        assert (answer.status, answer.content_type) == (200, "text/plain; charset=utf-8")
        (line,) = parse_signatures(answer.body.decode())
        head = (await alice.log.checkpoint()).text
        when = verify_cosignature(head, line, witness.witness_key(bob.log.key))
        assert when == int(net.clock.now().timestamp())
        assert line.name == "bob.coterie/witness"
        # The same again is cosigned again, and is no event.
        events = bob.log.file.size
        assert (await send(bob, await body_of(alice, Checkpoint.parse(head).size))).status == 200
        assert bob.log.file.size == events
        assert bob.kinds("checkpoint.") == ["checkpoint.received"] * 2
        assert alice.kinds("checkpoint.") == ["checkpoint.cosigned"]


async def test_statuses(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob", "carol") as (alice, bob, carol):
        assert (await send(bob, await body_of(alice, 0))).status == 404, "not introduced"
        assert await alice.exchange.exchange("bob") == ""
        size = bob.store.current("alice").size  # type: ignore[union-attr]
        await alice.add(3)
        good = await body_of(alice, size)
        stale = await send(bob, await body_of(alice, 0))
        assert (stale.status, stale.body, stale.content_type) == (409, b"%d\n" % size, "text/x.tlog.size")
        assert (await send(bob, await body_of(alice, size + 1))).status == 409
        note = await alice.log.checkpoint()
        head = Checkpoint.parse(note.text)
        assert (await send(bob, witness.request_body(head.size + 1, [], note))).status == 400
        # Another's log, in the name of alice, and alice's in the name of carol.
        assert (await send(bob, await body_of(carol, 0))).status == 404
        assert (await send(bob, good, caller="carol")).status == 404
        # Signed by another key under alice's origin.
        forged = LogSigner(alice.log.origin, Ed25519PrivateKey.generate()).sign(head)
        assert (
            await send(bob, witness.request_body(size, alice.log.file.consistency(size, head.size), forged))
        ).status == 403
        wrong = SignedNote(note.text, (note.signatures[0].__class__(head.origin, alice.log.key.id, b"\0" * 64),))
        assert (await send(bob, witness.request_body(size, [], wrong))).status == 403
        # A wrong proof proves nothing.
        assert (await send(bob, witness.request_body(size, [b"\1" * 32], note))).status == 422
        assert (await send(bob, good, caller="")).status == 403
        assert (await send(bob, good, caller="bob")).status == 403
        assert (await send(bob, good, path="/evidence/v1/other")).status == 404
        assert (await bob.inbox.handle(Request("GET", ADD_CHECKPOINT_PATH, headers={CALLER: "alice"}))).status == 405


HASH = base64.b64encode(b"\1" * 32).decode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"old 1",
        b"old 01\n\nx\n1\n" + HASH.encode() + b"\n\n\xe2\x80\x94 x AAAAAAAA\n",
        b"old -1\n\nx",
        b"old 1\nnot base64\n\nx",
        f"old 1\n{HASH[:-2]}9=\n\nx\n1\n{HASH}\n\n— x AAAAAAAA\n".encode(),
        b"old 1\n" + HASH.encode() + b"\n",
        f"old 0\n{(HASH + chr(10)) * 64}\nx\n1\n{HASH}\n\n— x AAAAAAAA\n".encode(),
        f"old 0\n\nx\n1\n{HASH}\nan extension\n\n— x AAAAAAAA\n".encode(),
        b"old 0\n\n" + b"x" * (1 << 17),
        f"old 0\n\nx\n01\n{HASH}\n\n— x AAAAAAAA\n".encode(),
    ],
)
async def test_malformed(tmp_path: Path, body: bytes) -> None:
    assert isinstance(refusal := witness.parse_request(body), witness.WitnessRefusal)
    assert refusal.status == 400


async def test_every_cut_of_a_request_is_refused(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        size = bob.store.current("alice").size  # type: ignore[union-attr]
        await alice.add(3)
        body = await body_of(alice, size)
        for end in range(0, len(body), 3):
            request = witness.parse_request(body[:end])
            if isinstance(request, witness.WitnessRequest):
                assert isinstance(bob.store.cosign(request, "alice", settled=True), witness.WitnessRefusal)
        assert bob.store.current("alice").size == size  # type: ignore[union-attr]
        assert not bob.store.findings()


async def test_too_many_requests(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("bob") as (bob,):
        statuses = {(await send(bob, b"x")).status for _ in range(130)}
        assert statuses == {400, 429}
        assert (await send(bob, b"x", caller="carol")).status == 400, "others have their own allowance"
        await net.clock.advance(10)
        assert (await send(bob, b"x")).status == 400


async def test_an_introduction_needs_the_domains_own_key(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob", "carol") as (alice, bob, _carol):
        net.keys["alice"], net.keys["carol"] = net.keys["carol"], net.keys["alice"]
        assert "403" in await alice.exchange.exchange("bob")
        assert bob.store.current("alice") is None
        del net.keys["alice"]
        assert "403" in await alice.exchange.exchange("bob")
        assert bob.kinds("partner.") == []
        for garbage in (b"", b"{}", b'{"logs": []}', b'{"logs": [{"opened": "{}", "note": ""}]}', b"[" * 5000):
            assert (await send(bob, garbage, path=INTRODUCE_PATH)).status in (400, 403)


async def test_exported_files_prove_who_cosigned(tmp_path: Path) -> None:
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, _bob):
        await alice.add(2)
        assert await alice.exchange.exchange("bob") == ""
        await alice.add(5)
        await alice.log.checkpoint()
        certificate = alice.service.paths.domain_certificate.read_text()
        known = alice.store.logs()
        files = [
            b"".join(
                export.export_log(
                    alice.log.file, export.header_of(alice.log.key, "alice", certificate, whole=True), witnesses=known
                )
            ),
            b"".join(
                export.export_one(
                    alice.log.file,
                    export.header_of(alice.log.key, "alice", certificate, whole=False),
                    1,
                    witnesses=known,
                )
            ),
        ]
        name = "bob.coterie/witness"
        for file in files:
            trusted = verification.verify(io.BytesIO(file), trusted=net.keys)
            assert trusted.ok
            assert name in {name for each in trusted.heads for name in each.cosigned}
            alone = verification.verify(io.BytesIO(file), trusted={"alice": net.keys["alice"]})
            assert alone.ok
            assert not [each for each in alone.heads if each.cosigned]
            assert name in {name for each in alone.heads for name in each.unknown}
            # With another key under bob's name nothing is proven, and what is no key is a fault.
            wrong = verification.verify(io.BytesIO(file), trusted={**net.keys, "bob": net.keys["alice"]})
            assert wrong.ok
            assert not [each for each in wrong.heads if each.cosigned]
            broken = file.replace(b'w {"certificate":', b'w {"key":1,"certificate":')
            assert not verification.verify(io.BytesIO(broken), trusted=net.keys).ok
        # A forged time of the cosignature.
        note = next(note for _, note in alice.log.file.heads() if name in note)
        line = SignedNote.parse(note).signatures[1]
        forged = replace(line, data=b"\0" * 8 + line.data[8:])
        text = files[0].decode().replace(line.line().rstrip("\n"), forged.line().rstrip("\n"))
        report = verification.verify(io.BytesIO(text.encode()), trusted=net.keys)
        assert report.fault is not None
        assert name in report.fault.sentence
