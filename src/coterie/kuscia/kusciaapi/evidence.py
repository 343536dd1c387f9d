"""The service of evidence: events of this domain's log, proofs, files for others, and whether the log is in order.

For the operator alone: values behind commitments are the domain's own. A lite answers from its own log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from coterie.kube.api.meta import Object
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.api.log_query import LogQueryRefused, moment
from coterie.kuscia.evidence import event_formats, export, listing, verification
from coterie.kuscia.evidence.evidence_file import FileHeader
from coterie.kuscia.evidence.listing import EventFilter, ShownEvent
from coterie.kuscia.evidence.local_log import LocalLog, log_numbers
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.operations import ApiOperation, OperationContext

_USUAL, _MOST = 100, 1000
LONGEST = 3 << 20
"""Of an export: clients of gRPC take answers of 4 MiB."""
_SUBJECTS = (evidence.PERSON, evidence.TABLE, evidence.OBJECT)
_ROWS = (event_formats.JSON, event_formats.CSV, event_formats.OTLP)


async def list_events(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    if not 0 <= request.limit <= _MOST:
        raise invalid("limit", f"is at most {_MOST}")
    chosen, log = _filter(request.filter, here), _log(here, request.log)
    found = await _read(
        listing.newest_shown, log.reader, chosen, request.limit or _USUAL, request.before if request.before else None
    )
    size = await _read(lambda: log.reader.size)
    return {"data": {"origin": log.key.name, "size": size, "events": list(map(_shown, found))}}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    log = _log(here, request.log)
    return {"data": _shown(await _event(log, request.index, ApiErrorCode.QUERY_EVIDENCE))}


async def prove(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    form, disclose = request.format or "evidence", _subjects(request.disclose)
    if form not in ("evidence", "tlog-proof"):
        raise invalid("format", "is evidence or tlog-proof")
    if disclose and form != "evidence":
        raise invalid("disclose", "is for the format evidence")
    log = _log(here, request.log)
    shown = await _event(log, request.index, ApiErrorCode.PROVE_EVIDENCE)
    if shown.event is None:
        raise CallRefused(ApiErrorCode.PROVE_EVIDENCE, f"event {shown.index} was removed by retention")
    await _sign(log, ApiErrorCode.PROVE_EVIDENCE)
    if form == "tlog-proof":
        text = await _read(export.tlog_proof_of, log.reader, shown.index)
    else:
        text = await _read(
            lambda: _joined(
                export.export_one(
                    log.reader, log.header(whole=False), shown.index, disclose=disclose, witnesses=log.witnesses
                )
            )
        )
    return {"data": {"content": text, "log_key": str(log.key)}}


async def export_events(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    form, disclose = request.format or "evidence", _subjects(request.disclose)
    chosen = _filter(request.filter, here)
    if form not in ("evidence", *_ROWS):
        raise invalid("format", "is evidence, json, csv or otlp")
    if disclose and form != "evidence":
        raise invalid("disclose", "is for the format evidence; the others show all that the operator sees")
    log = _log(here, request.log)
    if form == "evidence":
        await _sign(log, ApiErrorCode.EXPORT_EVIDENCE)
        text = await _read(lambda: _joined(_lines(log, chosen, disclose)))
    else:
        text = await _read(lambda: _rows(log, chosen, form))
    return {"data": {"content": text, "log_key": str(log.key)}}


async def query_state(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    log = _log(here, request.log)
    data: Object = {
        "origin": log.key.name,
        "log_key": str(log.key),
        "logs": await _read(log_numbers, here.paths),
        "size": await _read(lambda: log.reader.size),
    }
    if heads := await _read(log.reader.heads):
        data |= {"signed_size": heads[-1][0], "checkpoint": heads[-1][1]}
    if request.verify:
        fault = await _read(_fault, log)
        data |= {"fault": fault, "verified": not fault}
    return {"data": data}


def _fault(log: LocalLog) -> str:
    lines = export.export_log(log.reader, log.header(whole=True), witnesses=log.witnesses)
    report = verification.verify(verification.streamed(lines))
    return str(report.fault) if report.fault is not None else ""


def _lines(log: LocalLog, chosen: EventFilter, disclose: tuple[str, ...]) -> Iterable[bytes]:
    header: FileHeader = log.header(whole=chosen.empty)
    if chosen.empty:
        return export.export_log(log.reader, header, disclose=disclose, witnesses=log.witnesses)
    return export.export_events(log.reader, header, chosen.matches, disclose=disclose, witnesses=log.witnesses)


def _rows(log: LocalLog, chosen: EventFilter, form: str) -> str:
    rows, size = [], 0
    for shown in listing.shown_events(log.reader, chosen):
        rows.append(shown.as_json())
        size += len(json.dumps(rows[-1]))
        _check_size(size)
    text = event_formats.formatted(rows, form, log.domain)
    _check_size(len(text))
    return text


def _joined(lines: Iterable[bytes]) -> str:
    found, size = [], 0
    for line in lines:
        found.append(line)
        size += len(line)
        _check_size(size)
    return b"".join(found).decode()


def _check_size(size: int) -> None:
    if size > LONGEST:
        raise CallRefused(
            ApiErrorCode.EXPORT_EVIDENCE,
            f"the export has more than {LONGEST >> 20} MiB: choose a job or a time, or run `coterie audit export`",
        )


def _log(here: OperationContext, number: int) -> LocalLog:
    return LocalLog.find(here.paths, number)


def _filter(given: Any, here: OperationContext) -> EventFilter:
    times = {}
    for name in ("since", "until"):
        try:
            times[name] = moment(name, getattr(given, name), here.clock.now())
        except LogQueryRefused as problem:
            raise invalid(f"filter.{name}", str(problem)) from problem
    return EventFilter(given.job_id, given.kind, given.partner_id, times["since"], times["until"])


def _subjects(given: Iterable[str]) -> tuple[str, ...]:
    for each in given:
        if each not in _SUBJECTS:
            raise invalid("disclose", f'"{each}" is none of {", ".join(_SUBJECTS)}')
    return tuple(given)


async def _event(log: LocalLog, index: int, code: ApiErrorCode) -> ShownEvent:
    found: ShownEvent | None = await _read(listing.shown_event, log.reader, min(index, 1 << 60))
    if found is None:
        raise CallRefused(code, f"the log {log.key.name} has no event {index}")
    return found


async def _sign(log: LocalLog, code: ApiErrorCode) -> None:
    try:
        await log.sign()
    except EvidenceError as problem:
        raise CallRefused(code, str(problem)) from problem


async def _read(work: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(work, *arguments)


def _shown(shown: ShownEvent) -> Object:
    event = shown.event
    content: Object = {"index": shown.index, "content": json.dumps(shown.as_json(), sort_keys=True)}
    if event is None:
        return content
    when = datetime.fromtimestamp(event.time / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return content | {
        "time": when,
        "kind": event.kind,
        "job_id": event.job,
        "task_id": event.task,
        "parties": list(event.parties or ((event.partner,) if event.partner else ())),
        "who": shown.who,
        "about": shown.about,
    }


def _operation(method: str, path: str, failure: ApiErrorCode, work: Any) -> ApiOperation:
    async def run(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
        try:
            return await work(here, caller, request)  # type: ignore[no-any-return]
        except EvidenceError as problem:
            raise CallRefused(failure, str(problem)) from problem

    return ApiOperation("EvidenceService", method, f"/api/v1/evidence/{path}", failure, run)


OPERATIONS = (
    _operation("ListEvidence", "list", ApiErrorCode.QUERY_EVIDENCE, list_events),
    _operation("QueryEvidence", "query", ApiErrorCode.QUERY_EVIDENCE, query),
    _operation("ProveEvidence", "prove", ApiErrorCode.PROVE_EVIDENCE, prove),
    _operation("ExportEvidence", "export", ApiErrorCode.EXPORT_EVIDENCE, export_events),
    _operation("QueryEvidenceState", "state/query", ApiErrorCode.QUERY_EVIDENCE, query_state),
)
