"""Files of evidence: what is right is accepted, and whatever is changed, dropped, moved, forged is found, with its place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from evidence_world import LoggingDomain, opened, task_started, two_domains

from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceEvent
from coterie.kuscia.evidence import comparison, merkle
from coterie.kuscia.evidence.evidence_file import MAGIC
from coterie.kuscia.evidence.signed_notes import Checkpoint
from coterie.kuscia.evidence.verification import LogReport, verify


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoggingDomain, LoggingDomain]:
    return asyncio.run(two_domains(tmp_path_factory.mktemp("evidence")))


@pytest.fixture(scope="module")
def whole(world: tuple[LoggingDomain, LoggingDomain]) -> bytes:
    return world[0].whole()


def report_of(content: bytes, world: tuple[LoggingDomain, LoggingDomain] | None = None) -> LogReport:
    if world is None:
        return verify(opened(content))
    alice, bob = world
    return verify(opened(content), trusted={"alice": alice.public_key}, witnesses=[bob.witness.key])


def test_a_whole_log(world: tuple[LoggingDomain, LoggingDomain], whole: bytes) -> None:
    report = report_of(whole, world)
    assert report.fault is None
    assert report.trusted
    assert report.events == world[0].log.file.size
    assert report.unsigned == 0
    assert [dict(each.cosigned) for each in report.heads] == [
        {"bob.coterie/witness": 1_790_000_000},
        {"bob.coterie/witness": 1_790_000_000},
        {},
    ]


def test_events_of_one_job(world: tuple[LoggingDomain, LoggingDomain]) -> None:
    content = world[0].some("job-1", disclose=("person",))
    report = report_of(content, world)
    assert report.fault is None
    assert report.events == 5
    assert set(report.disclosed.values()) == {"user:carol"}
    assert b"job-2" not in content


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # of a certificate with a flipped byte, now and then
@pytest.mark.parametrize("make", [lambda alice: alice.whole(), lambda alice: alice.some("job-1", disclose=("person",))])
def test_every_flipped_byte_is_found(
    world: tuple[LoggingDomain, LoggingDomain], make: Callable[[LoggingDomain], bytes]
) -> None:
    content = make(world[0])
    good = report_of(content, world)
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        report = report_of(changed, world)
        if report.fault is None:
            # Another spelling of the same (unused bits of base64, case of hex digits), or a witness that nobody knows.
            assert told(report) == told(good), f"byte {at} of {content[max(0, at - 40) : at + 40]!r}"
            for head, known in zip(report.heads, good.heads, strict=True):
                assert head.cosigned == known.cosigned or (not head.cosigned and head.unknown)


def told(report: LogReport) -> tuple[object, ...]:
    return report.events, [each.checkpoint for each in report.heads], report.disclosed, report.removed, report.trusted


def events_of(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def moved(lines: list[bytes]) -> list[bytes]:
    at = [index for index, line in enumerate(lines) if line.startswith(b"e ")]
    lines[at[2]], lines[at[3]] = lines[at[3]], lines[at[2]]
    return lines


def renumbered(lines: list[bytes]) -> list[bytes]:
    """Dropped, and the rest numbered anew: only the tree can tell."""
    lines.remove(next(line for line in lines if line.startswith(b"e 2 ")))
    count = iter(range(1000))
    return [
        b" ".join((b"e", b"%d" % next(count), *line.split(b" ", 2)[2:])) if line.startswith(b"e ") else line
        for line in lines
    ]


def inserted(lines: list[bytes]) -> list[bytes]:
    body = evidence.encode(EvidenceEvent(kind=evidence.JOB_APPROVED, job="job-9", time=1))
    at = next(index for index, line in enumerate(lines) if line.startswith(b"e 3 "))
    return [*lines[:at], b"e 3 %s %s\n" % (merkle.leaf_hash(body).hex().encode(), body), *lines[at:]]


def rewritten(lines: list[bytes]) -> list[bytes]:
    """Another event in place of one, with the hash that belongs to it."""
    body = evidence.encode(EvidenceEvent(kind=evidence.JOB_CREATED, job="another", time=1))
    return [
        b"e 1 %s %s\n" % (merkle.leaf_hash(body).hex().encode(), body) if line.startswith(b"e 1 ") else line
        for line in lines
    ]


def headless(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if not line.startswith(b"h ")]


def forged_head(lines: list[bytes]) -> list[bytes]:
    """A head over fewer events with the signature of another."""
    at = [index for index, line in enumerate(lines) if line.startswith(b"h ")]
    note = json.loads(lines[at[0]][2:])
    origin, _, root, rest = note.split("\n", 3)
    lines[at[0]] = b"h " + json.dumps("\n".join((origin, "1", root, rest))).encode() + b"\n"
    return lines


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (moved, "missing"),
        (renumbered, "stands behind"),
        (inserted, "missing"),
        (rewritten, "not those that the domain signed"),
        (headless, "no signed head"),
        (forged_head, "wrong"),
        (lambda lines: lines[:-3] + lines[-1:], "stands behind"),
        (lambda lines: lines[:2], "no signed head"),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], "cut off"),
        (lambda lines: [*lines, b"x what\n"], "cannot be read"),
        (lambda lines: [b"something else\n", *lines[1:]], "no evidence file"),
        (lambda lines: [lines[0], b"{}\n", *lines[2:]], "header"),
    ],
)
def test_tampering(
    world: tuple[LoggingDomain, LoggingDomain],
    whole: bytes,
    change: Callable[[list[bytes]], list[bytes]],
    why: str,
) -> None:
    report = report_of(b"".join(change(events_of(whole))), world)
    assert report.fault is not None
    assert why in report.fault.sentence


def test_the_place_of_the_first_bad_event(whole: bytes) -> None:
    at = whole.index(b'"outcome":"Succeeded"')
    changed = whole.replace(b'"outcome":"Succeeded"', b'"outcome":"Succeede!"')
    report = report_of(changed)
    assert report.fault is not None
    assert report.fault.offset == whole.rindex(b"\n", 0, at) + 1


def test_a_stranger_with_a_perfect_log_is_not_alice(world: tuple[LoggingDomain, LoggingDomain]) -> None:
    alice, bob = world
    report = verify(opened(alice.whole()), trusted={"alice": bob.public_key})
    assert report.fault is not None
    assert "not the one that is trusted" in report.fault.sentence
    # The header names alice, but the key was certified by somebody else.
    head, _, rest = alice.whole()[len(MAGIC) :].partition(b"\n")
    said = {**json.loads(head), "certificate": bob.certificate}
    report = verify(opened(MAGIC + json.dumps(said).encode() + b"\n" + rest))
    assert report.fault is not None
    assert "not certified" in report.fault.sentence


def test_a_proof_of_another_event_does_not_fit(world: tuple[LoggingDomain, LoggingDomain]) -> None:
    lines = events_of(world[0].some("job-1"))
    proofs = [index for index, line in enumerate(lines) if line.startswith(b"p ")]
    lines[proofs[1]] = (
        lines[proofs[1]].split(b" ")[0]
        + b" "
        + b" ".join([lines[proofs[1]].split(b" ")[1], *lines[proofs[2]].split(b" ")[2:]])
    )
    report = report_of(b"".join(lines))
    assert report.fault is not None
    assert "is not in the log" in report.fault.sentence


async def test_removed_bodies_are_counted(tmp_path: Path) -> None:
    alice, _ = await two_domains(tmp_path)
    await alice.log.file.remove_bodies(3)
    report = verify(opened(alice.whole()))
    assert report.ok
    assert report.removed == 2
    first = alice.whole().splitlines(keepends=True)
    first[2] = b" ".join(first[2].split(b" ", 3)[:3]) + b" -\n"
    broken = verify(opened(b"".join(first)))
    assert broken.fault is not None
    assert "never removed" in broken.fault.sentence


def test_two_honest_logs_agree(world: tuple[LoggingDomain, LoggingDomain]) -> None:
    files = [partial(opened, side.whole()) for side in world]
    report = comparison.compare(*files)
    assert report.ok, (report.first.fault, report.second.fault, report.contradictions)
    assert report.agreed_tasks == 2
    assert report.shared_heads == 4
    assert dict(report.first.heads[0].cosigned) == {"bob.coterie/witness": 1_790_000_000}


async def test_a_log_that_was_rolled_back_is_named(tmp_path: Path) -> None:
    alice, bob = await two_domains(tmp_path)
    cut = alice.whole().splitlines(keepends=True)
    first_head = next(index for index, line in enumerate(cut) if line.startswith(b"h "))
    older = b"".join(cut[: first_head + 1])
    report = comparison.compare(partial(opened, older), partial(opened, bob.whole()))
    assert report.first.ok
    assert any("alice, whose log has only" in each.sentence for each in report.contradictions)


async def test_two_faces_are_named(tmp_path: Path) -> None:
    """Alice shows bob one log and the auditor another, both signed by her."""
    alice, bob = await two_domains(tmp_path)
    await bob.log.record(
        EvidenceEvent(
            kind=evidence.CHECKPOINT_RECEIVED,
            partner="alice",
            checkpoint=(alice.log.origin, "3", "07" * 32),
        )
    )
    await bob.log.checkpoint()
    report = comparison.compare(partial(opened, alice.whole()), partial(opened, bob.whole()))
    assert any("alice showed bob another log" in each.sentence for each in report.contradictions)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (task_started("late", agree="b" * 64), "different agreement"),
        (task_started("late", engine="0" * 64), "different engines"),
        (None, "bob has no event of it"),
    ],
)
async def test_two_stories_of_one_task(tmp_path: Path, event: EvidenceEvent | None, why: str) -> None:
    alice, bob = await two_domains(tmp_path)
    await alice.log.record(task_started("late"))
    if event is not None:
        await bob.log.record(event)
    for side in (alice, bob):
        await side.log.checkpoint()
    report = comparison.compare(partial(opened, alice.whole()), partial(opened, bob.whole()))
    assert [each for each in report.contradictions if why in each.sentence], report.contradictions
    assert Checkpoint.parse((await alice.log.checkpoint()).text).size == alice.log.file.size


_DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("kind", [b"header", b"w", b"d", b"s", b"h", b"e", b"p 9" + b"9" * 5000])
def test_whatever_is_in_a_file_is_a_fault_and_never_an_exception(whole: bytes, kind: bytes) -> None:
    lines = events_of(whole)
    if kind == b"header":
        lines[1] = _DEEP + b"\n"
    elif kind == b"e":
        count = sum(line.startswith(b"e ") for line in lines)
        body = b'{"kind":"task.started",' + _DEEP[1:]
        lines.append(b"e %d %s %s\n" % (count, merkle.leaf_hash(body).hex().encode(), body))
    else:
        lines.append(kind + b" " + _DEEP + b"\n")
    assert verify(opened(b"".join(lines))).fault is not None
    report = comparison.compare(partial(opened, b"".join(lines)), partial(opened, whole))
    assert not report.ok


async def test_an_earlier_start_that_differs_is_not_hidden_behind_a_later_one(tmp_path: Path) -> None:
    alice, bob = await two_domains(tmp_path)
    for event in (task_started("late", agree="b" * 64), task_started("late")):
        await alice.log.record(event)
    for _ in range(2):
        await bob.log.record(task_started("late"))
    for side in (alice, bob):
        await side.log.checkpoint()
    report = comparison.compare(partial(opened, alice.whole()), partial(opened, bob.whole()))
    assert [each.sentence for each in report.contradictions] == [
        "task late: alice and bob recorded different agreement"
    ]
    assert report.agreed_tasks == 2


async def test_a_comparison_is_of_the_logs_that_the_domains_showed_each_other(tmp_path: Path) -> None:
    alice, bob = await two_domains(tmp_path)
    files = partial(opened, alice.whole()), partial(opened, bob.whole())
    trusted = {"alice": alice.public_key, "bob": bob.public_key}
    report = comparison.compare(*files, trusted=trusted)
    assert report.ok and report.first.trusted and report.second.trusted
    assert not comparison.compare(*files, trusted={"bob": alice.public_key}).ok
    # Bob has a second log under the same name and certified by him, which only the auditor sees.
    other = await LoggingDomain.make(tmp_path / "other", "bob")
    known = EvidenceEvent(kind=evidence.PARTNER_INTRODUCED, partner="bob", more={"key": str(bob.log.key)})
    await alice.log.record(
        known, EvidenceEvent(kind=evidence.CHECKPOINT_RECEIVED, checkpoint=(bob.log.origin, "9" * 5000, "00"))
    )
    for side in (alice, other):
        await side.log.checkpoint()
    assert comparison.compare(partial(opened, alice.whole()), files[1], trusted=trusted).ok
    report = comparison.compare(partial(opened, alice.whole()), partial(opened, other.whole()), trusted=trusted)
    assert any("by another key than the one in this file" in each.sentence for each in report.contradictions)
