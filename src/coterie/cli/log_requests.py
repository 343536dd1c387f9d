"""LogRequests on the command line: making one, finding it, waiting for its answer, and how it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.base.ids import suffix
from coterie.cli.app import CliError
from coterie.cli.session import CliSession
from coterie.kube.api.errors import Forbidden, NotFound
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.jobs.commands import own_parties
from coterie.kuscia.api.log_query import LogQueryRefused, moment, printable
from coterie.kuscia.api.log_requests import participation_fault, request_fault
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KusciaJob
from coterie.kuscia.api.types.log_request import LOG_REQUESTS, OPEN, LogExcerpt, LogRequest, LogRequestSpec

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LogAsk:
    """What somebody typed."""

    job: str
    party: str
    reason: str
    requester: str = ""
    task: str = ""
    sources: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    grep: str = ""
    lines: int = 0
    expires: int = 0
    keep: int = 0


async def create(session: CliSession, ask: LogAsk) -> LogRequest:
    """Raises CliError with the reason when nobody could answer it."""
    try:
        job = await session.client.get(KUSCIA_JOBS, ask.job, CROSS_DOMAIN)
    except NotFound as problem:
        raise CliError(f"Error: there is no job {ask.job} here") from problem
    spec = LogRequestSpec(
        requester=ask.requester or _requester(job, ask.party),
        owner=ask.party,
        job=ask.job,
        reason=ask.reason,
        task=ask.task,
        sources=ask.sources or None,
        since=_time("--since", ask.since),
        until=_time("--until", ask.until),
        grep=ask.grep,
        max_lines=ask.lines,
        expires_seconds=ask.expires,
        keep_seconds=ask.keep,
    )
    if fault := request_fault(spec) or participation_fault(job, spec):
        raise CliError(f"Error: {fault}")
    body = {
        "metadata": {"name": f"{ask.job[:200]}-{suffix(5)}", "namespace": spec.requester},
        "spec": msgspec.to_builtins(spec),
    }
    return msgspec.convert(await session.client.create(LOG_REQUESTS.as_dynamic, body), LogRequest)


def _requester(job: KusciaJob, owner: str) -> str:
    own = [party for party in own_parties(job) if party != owner]
    if len(own) == 1 or (own and own[0] == job.spec.initiator):
        return own[0]
    if not own:
        raise CliError(f"Error: no domain of this control plane besides {owner} takes part in job {job.metadata.name}")
    raise CliError(f"Error: several domains here take part: choose who asks with --as {'|'.join(own)}")


def _time(option: str, text: str) -> str:
    try:
        found = moment(option, text, SYSTEM_CLOCK.now())
    except LogQueryRefused as problem:
        raise CliError(f"Error: {problem}") from problem
    return rfc3339(found) if found is not None else ""


async def listed(session: CliSession) -> list[LogRequest]:
    """Requests of domains of ours and to them; not the mirrors of partners."""
    try:
        domains = {each.metadata.name: each for each in (await session.client.list(DOMAINS)).items}
        found = (await session.client.list(LOG_REQUESTS)).items
    except Forbidden:
        return list((await session.client.list(LOG_REQUESTS, session.namespace)).items)
    return [each for each in found if is_own(domains.get(each.metadata.namespace))]


def is_incoming(request: LogRequest) -> bool:
    return request.metadata.namespace == request.spec.owner


async def find(session: CliSession, name: str, *, incoming: bool | None = None) -> LogRequest:
    """By its name; between two domains of one control plane there are two of one name."""
    found = [each for each in await listed(session) if each.metadata.name == name]
    chosen = [each for each in found if incoming is None or is_incoming(each) == incoming]
    if chosen:
        return min(chosen, key=is_incoming)
    if found:
        who = "made here: the other side decides about it" if incoming else "of a partner"
        raise CliError(f"Error: log request {name} was {who}")
    raise CliError(f"Error: there is no log request {name} here; `coterie logrequest ls` lists them")


async def again(session: CliSession, request: LogRequest) -> LogRequest:
    return await session.client.get(LOG_REQUESTS, request.metadata.name, request.metadata.namespace)


async def wait_for(
    session: CliSession, request: LogRequest, done: Callable[[LogRequest], bool], seconds: float
) -> LogRequest:
    """Until it is so, or the time is over."""
    until = SYSTEM_CLOCK.monotonic() + seconds
    while not done(request) and SYSTEM_CLOCK.monotonic() < until:
        await SYSTEM_CLOCK.sleep(POLL_SECONDS)
        try:
            request = await again(session, request)
        except NotFound as problem:
            raise CliError(f"Error: log request {request.metadata.name} was deleted") from problem
    return request


def is_decided(request: LogRequest) -> bool:
    return request.status.phase not in OPEN


def row_of(request: LogRequest) -> tuple[str, ...]:
    spec, status = request.spec, request.status
    incoming = is_incoming(request)
    return (
        request.metadata.name,
        "in" if incoming else "out",
        printable(spec.requester if incoming else spec.owner),
        printable(spec.job + (f"/{spec.task}" if spec.task else "")),
        printable(status.phase or "New"),
        printable(status.expire_time or "-"),
        printable(spec.reason[:60]),
    )


COLUMNS = ("NAME", "WAY", "PARTNER", "JOB", "PHASE", "EXPIRES", "REASON")


def sheet_of(request: LogRequest) -> list[str]:
    """What was asked and what happened, without the lines themselves."""
    spec, status = request.spec, request.status
    asked: Mapping[str, object] = {
        "Requester": f"{spec.requester} ({spec.requested_by})" if spec.requested_by else spec.requester,
        "Owner": spec.owner,
        "Job": spec.job,
        "Task": spec.task or "all that both took part in",
        "Sources": ", ".join(spec.sources or ("engine",)),
        "Times": f"{spec.since or '...'} to {spec.until or 'now'}" if spec.since or spec.until else "",
        "Containing": spec.grep,
        "Reason": spec.reason,
        "Phase": status.phase or "New",
        "Message": status.message,
        "Expires": status.expire_time,
        "Decided by": status.decided_by,
        "Digest": status.digest,
    }
    out = [f"{name + ':':<14}{value}" for name, value in asked.items() if value]
    out += ["History:"]
    for each in status.history or ():
        words = "  ".join(part for part in (each.time, each.event, each.by, each.message) if part)
        out.append(f"  {words}{f'  sha256 {each.digest}' if each.digest else ''}")
    return [printable(line) for line in out]


def shown_text(text: str) -> str:
    """Lines as a terminal may show them, whoever wrote them."""
    return "".join(f"{printable(line)}\n" for line in text.removesuffix("\n").split("\n")) if text else ""


def excerpt_line(excerpt: LogExcerpt) -> str:
    more = "; there are more" if excerpt.truncated else ""
    return f"{excerpt.lines} lines, {excerpt.redactions} pieces cut out{more}; sha256 {printable(excerpt.digest)}"


def excerpt_notes(excerpt: LogExcerpt) -> Iterable[str]:
    return [printable(each) for each in excerpt.notes or ()]


def with_review(request: LogRequest, **fields: object) -> dict[str, object]:
    """A patch."""
    return {
        "metadata": {"resourceVersion": request.metadata.resource_version},
        "spec": {"review": {"decision": "", "reason": "", **fields}},
    }
