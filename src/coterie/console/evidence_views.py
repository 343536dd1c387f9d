"""The evidence log of the console's domain: events, one with its proof, checkpoints and who cosigned them, the file for an auditor.

The log is a file of this machine, not of the API server; who may `get` `evidence` of `coterie.io` there may see it here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from coterie.base.paths import DomainPaths
from coterie.console.rows import text
from coterie.http.errors import HttpProblem
from coterie.http.plain_client import NotConnected
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.api.log_query import LogQueryRefused, moment
from coterie.kuscia.evidence import export, listing, verification
from coterie.kuscia.evidence.listing import EventFilter, ShownEvent
from coterie.kuscia.evidence.local_log import LocalLog, NoSuchLog, log_numbers
from coterie.kuscia.evidence.signed_notes import NoteError, SignedNote
from coterie.kuscia.evidence.verification import LogReport
from coterie.kuscia.evidence.witness import witness_key
from coterie.kuscia.evidence.witnesses import WITNESS_PATH, WitnessCall

_REVIEWS: Final = Kind.dynamic(builtin("selfsubjectaccessreviews", "authorization.k8s.io"))
_PAGE: Final = 100
LONGEST_EXPORT: Final = 16 << 20
MOST_VERIFIED: Final = 500_000
"""Events: six seconds of CPU."""
LONGEST: Final = 1 << 20
"""Of one text: a proof, a checkpoint."""


async def evidence_view(
    client: Client, paths: DomainPaths, words: Sequence[str], params: Mapping[str, Sequence[str]], now: datetime
) -> Object:
    """`words`: of the address, behind `views/evidence`. Raises HttpProblem."""
    await _check_access(client)
    try:
        match words:
            case ():
                return await _events(paths, params, now)
            case ("state",):
                return await _state(paths)
            case ("export",):
                return await _export(paths, params, now)
            case ("verify",):
                return await _verify(paths)
            case (index,) if index.isdecimal():
                return await _event(paths, int(index))
    except NoSuchLog:
        return {"events": [], "size": 0, "logs": [], "origin": ""}
    except EvidenceError as problem:
        raise HttpProblem(503, "ServiceUnavailable", str(problem)) from problem
    raise HttpProblem(404, "NotFound", "there is no such view")


async def _check_access(client: Client) -> None:
    attributes = {"verb": "get", "group": "coterie.io", "resource": "evidence"}
    review = await client.create(_REVIEWS, {"spec": {"resourceAttributes": attributes}})
    if not (review.get("status") or {}).get("allowed"):
        raise Forbidden("you may not read the evidence log: it needs the right to get evidence.coterie.io")


def _filter(params: Mapping[str, Sequence[str]], now: datetime) -> EventFilter:
    given = {name: (params.get(name) or [""])[-1] for name in ("job", "kind", "partner", "since", "until")}
    try:
        times = [moment(name, given[name], now) for name in ("since", "until")]
    except LogQueryRefused as problem:
        raise HttpProblem(400, "BadRequest", str(problem)) from problem
    return EventFilter(given["job"], given["kind"], given["partner"], *times)


async def _events(paths: DomainPaths, params: Mapping[str, Sequence[str]], now: datetime) -> Object:
    log, chosen = LocalLog.find(paths), _filter(params, now)
    before = (params.get("before") or [""])[-1]
    found = await asyncio.to_thread(
        listing.newest_shown, log.reader, chosen, _PAGE, int(before) if before.isdecimal() else None
    )
    size = await asyncio.to_thread(lambda: log.reader.size)
    return {"origin": log.key.name, "size": size, "logs": log_numbers(paths), "events": list(map(_row, found))}


async def _event(paths: DomainPaths, index: int) -> Object:
    log = LocalLog.find(paths)
    shown = await asyncio.to_thread(listing.shown_event, log.reader, min(index, 1 << 60))
    if shown is None:
        raise HttpProblem(404, "NotFound", f"the log has no event {index}")
    view = {**_row(shown), "content": shown.as_json(), "proof": "", "key": str(log.key)}
    if shown.event is not None:
        await log.sign()
        view["proof"] = await asyncio.to_thread(export.tlog_proof_of, log.reader, shown.index)
    return view


async def _state(paths: DomainPaths) -> Object:
    log = LocalLog.find(paths)
    heads = await asyncio.to_thread(log.reader.heads)
    view: Object = {
        "origin": log.key.name,
        "key": str(log.key),
        "size": await asyncio.to_thread(lambda: log.reader.size),
        "logs": log_numbers(paths),
        "signedSize": heads[-1][0] if heads else 0,
        "checkpoint": heads[-1][1] if heads else "",
        "cosigners": _cosigners(note for _, note in heads),
        "partners": [],
    }
    try:
        states = await log.call_node(WITNESS_PATH, WitnessCall(partner="", now=False, accept=False))
    except (EvidenceError, NotConnected):
        return view
    return {**view, "partners": list(map(_partner, states))}


def _partner(state: Mapping[str, Any]) -> Object:
    ours, theirs = state.get("ours") or {}, state.get("theirs") or {}
    findings = [each.get("message", "") for each in state.get("findings") or () if not each.get("accepted")]
    return {
        "partner": text(state.get("partner")),
        "policy": text(state.get("policy")),
        "ours": ours.get("size", 0),
        "at": _iso(ours["cosigned"]) if ours.get("cosigned") else "",
        "theirs": theirs.get("size", 0),
        "problem": text("; ".join([*findings, ours.get("problem", "")]).strip("; ")),
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(min(seconds, 1 << 35), UTC).isoformat().replace("+00:00", "Z")


def _cosigners(notes: Iterable[str]) -> list[Object]:
    """The newest cosignature of each witness."""
    found: dict[str, Object] = {}
    for note in notes:
        try:
            signed = SignedNote.parse(note)
        except NoteError:
            continue
        origin, size = signed.text.split("\n")[:2]
        for each in signed.signatures:
            if each.name == origin:
                continue
            seconds = int.from_bytes(each.data[:8], "big")
            found[each.name] = {"witness": text(each.name), "size": int(size), "at": _iso(seconds)}
    return list(found.values())


async def _export(paths: DomainPaths, params: Mapping[str, Sequence[str]], now: datetime) -> Object:
    log, chosen = LocalLog.find(paths), _filter(params, now)
    await log.sign()

    def lines() -> str:
        found, size = [], 0
        header = log.header(whole=chosen.empty)
        written = (
            export.export_log(log.reader, header, witnesses=log.witnesses)
            if chosen.empty
            else export.export_events(log.reader, header, chosen.matches, witnesses=log.witnesses)
        )
        for each in written:
            found.append(each)
            size += len(each)
            if size > LONGEST_EXPORT:
                raise HttpProblem(
                    413, "TooLarge", "the file is too large for a page: choose a job or a time, or use the command"
                )
        return b"".join(found).decode()

    return {"file": f"{log.domain}.{log.number}.evidence", "content": await asyncio.to_thread(lines)}


async def _verify(paths: DomainPaths) -> Object:
    """All of the newest log, as `coterie audit verify` checks its file. Partners count with the keys that our node knows."""
    log = LocalLog.find(paths)
    if await asyncio.to_thread(lambda: log.reader.size) > MOST_VERIFIED:
        raise HttpProblem(
            413, "TooLarge", f"the log has more than {MOST_VERIFIED} events: export it, and use `coterie audit verify`"
        )

    def checked() -> LogReport:
        witnesses = log.witnesses
        lines = export.export_log(log.reader, log.header(whole=True), witnesses=witnesses)
        keys = [witness_key(each.key) for each in witnesses]
        return verification.verify(verification.streamed(lines), witnesses=keys)

    try:
        await log.sign()
        report = await asyncio.to_thread(checked)
    except EvidenceError as problem:  # also found by who signs: then nothing is signed
        return {"valid": False, "fault": text(str(problem)), "events": 0, "removed": 0, "size": 0, "cosigned": []}
    return {
        "valid": report.ok,
        "fault": text(str(report.fault or "")),
        "events": report.events,
        "removed": report.removed,
        "size": report.heads[-1].checkpoint.size if report.heads else 0,
        "cosigned": sorted({text(name) for head in report.heads for name in head.cosigned})[:_PAGE],
    }


def _row(shown: ShownEvent) -> dict[str, Any]:
    event = shown.event
    if event is None:
        return {"index": shown.index, "at": "", "kind": "", "removed": True}
    return {
        "index": shown.index,
        "at": datetime.fromtimestamp(event.time / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "kind": event.kind,
        "job": text(event.job),
        "task": text(event.task),
        "parties": [text(each) for each in (event.parties or ((event.partner,) if event.partner else ()))],
        "who": text(shown.who),
        "about": text(shown.about),
        "removed": False,
    }
