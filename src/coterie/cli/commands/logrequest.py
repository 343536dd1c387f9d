"""`coterie logrequest`: logs of a partner with its consent, and our own for partners."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable

from coterie.base.redaction import pattern_fault
from coterie.cli import arguments as options
from coterie.cli import log_requests as requests
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_list, as_text, plain_table, without_managed_fields
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kuscia.api.log_query import ALL_SOURCES, printable
from coterie.kuscia.api.log_requests import MOST_LINES
from coterie.kuscia.api.types.log_request import (
    APPROVE,
    LOG_REQUESTS,
    REJECT,
    REVOKE,
    LogRequest,
    LogRequestPhase,
    LogReview,
)

HELP = """
Ask a partner for log lines of a task that both took part in, and decide about such requests of partners. The owner
sees a preview from which secrets were cut out, and approves exactly that; the lines and the request are removed after
some time on both sides. Who asked, who approved and the digest of what was sent stays as a record for seven days.

  create JOB            ask (--party, --reason); with --wait print the answer
  ls                    list requests, made here (out) and received (in)
  show NAME             show a request, its history, and the answer when there is one
  preview NAME          show what would be sent; --redact cuts out more, --again reads the logs again
  approve NAME          send the preview
  reject NAME           send nothing; --reason is shown to the partner
  revoke NAME           take an answer back: it is removed on both sides; the partner may have read it
  rm NAME               delete a request; the answer goes too

`coterie policy set PARTNER --logs engine` answers requests of a partner without a person.

Examples:
  coterie logrequest create common-customers --party bob --reason "task psi failed with us waiting for you" --wait
  coterie logrequest create common-customers --party bob --task psi --since 1h --source engine,gateway --reason "..."
  coterie logrequest ls
  coterie logrequest preview common-customers-x7k2m --redact "customer-[0-9]{4}"
  coterie logrequest approve common-customers-x7k2m
  coterie logrequest reject common-customers-x7k2m --reason "please call us"
"""
_ACTIONS = ("create", "ls", "list", "show", "preview", "approve", "reject", "revoke", "rm", "delete")
_SAME = {"list": "ls", "delete": "rm"}
_PREVIEW_SECONDS = 20.0


def arguments(parser: options.Parser) -> None:
    parser.add_argument(
        "action", choices=_ACTIONS, metavar="create|ls|show|preview|approve|reject|revoke|rm", help="action"
    )
    options.words_argument(parser)
    asking = parser.add_argument_group("for create")
    asking.add_argument("--party", metavar="ID", default="", help="whose logs")
    asking.add_argument(
        "--as", dest="requester", metavar="ID", default="", help="who asks (default: our party of the job)"
    )
    asking.add_argument("--task", metavar="ALIAS", default="", help="only this task")
    asking.add_argument(
        "--source", metavar="NAME", action="append", default=[], help=f"{', '.join(ALL_SOURCES)} (default: engine)"
    )
    asking.add_argument("--since", metavar="TIME", default="", help="10m, 2h, 1d or a time")
    asking.add_argument("--until", metavar="TIME", default="", help="10m, 2h, 1d or a time")
    asking.add_argument("--grep", metavar="TEXT", default="", help="only lines that contain this text")
    asking.add_argument("--lines", metavar="N", type=int, default=0, help=f"at most (default: 500, up to {MOST_LINES})")
    asking.add_argument(
        "--expires",
        metavar="TIME",
        type=options.seconds,
        default=0.0,
        help="end of a request without an answer (default: 24h)",
    )
    asking.add_argument(
        "--keep", metavar="TIME", type=options.seconds, default=0.0, help="how long the answer is kept (default: 24h)"
    )
    asking.add_argument(
        "--wait", metavar="TIME", type=options.seconds, nargs="?", const=600.0, default=None,
        help="wait for the answer (default: 10m) and print it",
    )  # fmt: skip
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; the other side reads it")
    parser.add_argument("--redact", metavar="REGEX", action="append", default=[], help="for preview: cut out more")
    parser.add_argument("--again", action="store_true", help="for preview: read the logs again")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(
        words={
            "create": ("jobs",),
            **dict.fromkeys(("show", "preview", "approve", "reject", "revoke", "rm"), ("log-requests",)),
        },
        party="job-parties",
        requester="domains",
        task="job-tasks",
        source=ALL_SOURCES,
    )


def run(args: argparse.Namespace, app: App) -> int:
    action = _SAME.get(args.action, args.action)
    wanted = 0 if action == "ls" else 1
    if len(args.words) != wanted:
        raise UsageError(f"coterie logrequest {action} takes {'one name' if wanted else 'no names'}")
    if action == "create" and not (args.party and args.reason):
        raise UsageError("coterie logrequest create needs --party ID and --reason TEXT")
    if faults := [fault for each in args.redact if (fault := pattern_fault(each))]:
        raise UsageError(f"--redact: {faults[0]}")
    return sessions.run(args, app, lambda session: _RUN[action](session, args))


def ask_of(args: argparse.Namespace) -> requests.LogAsk:
    sources = tuple(each.strip() for text in args.source for each in text.split(",") if each.strip())
    return requests.LogAsk(
        job=args.words[0],
        party=args.party,
        reason=args.reason,
        requester=args.requester,
        task=args.task,
        sources=sources,
        since=args.since,
        until=args.until,
        grep=args.grep,
        lines=args.lines,
        expires=round(args.expires),
        keep=round(args.keep),
    )


async def _create(session: CliSession, args: argparse.Namespace) -> int:
    made = await requests.create(session, ask_of(args))
    return await follow_request(session, made, args.wait, args.output)


async def follow_request(session: CliSession, made: LogRequest, wait: float | None, output: str = "table") -> int:
    """After a request was made: say what comes next, or wait for the answer and print it."""
    name, owner = made.metadata.name, made.spec.owner
    if wait is None:
        if output != "table":
            return await _document(session, made, output)
        session.app.say(f"log request {name} made; {owner} decides about it")
        session.app.say(f"Next: coterie logrequest show {name}")
        return 0
    with working(session.app, f"log request {name}", f"waiting for {owner}", done="decided", quiet=output != "table"):
        made = await requests.wait_for(session, made, requests.is_decided, wait)
    if output != "table":
        await _document(session, made, output)
    elif made.status.phase == LogRequestPhase.ANSWERED:
        _print_answer(session, made)
    else:
        session.app.warn(printable(f"{made.status.phase or 'New'}: {made.status.message}"))
    return 0 if made.status.phase == LogRequestPhase.ANSWERED else 1


def _print_answer(session: CliSession, request: LogRequest) -> None:
    answer = request.status.answer
    if answer is not None:
        session.app.write(requests.shown_text(answer.text))
        for note in requests.excerpt_notes(answer):
            session.app.warn(f"{request.spec.owner}: {note}")
        session.app.warn(requests.excerpt_line(answer))


async def _document(session: CliSession, request: LogRequest, output: str) -> int:
    meta = request.metadata
    plain = await session.client.get(LOG_REQUESTS.as_dynamic, meta.name, meta.namespace)
    session.app.write(as_text(without_managed_fields(plain), output))
    return 0


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    found = await requests.listed(session)
    if args.output != "table":
        plain = [
            without_managed_fields(
                await session.client.get(LOG_REQUESTS.as_dynamic, each.metadata.name, each.metadata.namespace)
            )
            for each in found
        ]
        session.app.write(as_text(as_list(plain), args.output))
        return 0
    if not found:
        session.app.say(
            "There are no log requests; `coterie logrequest create JOB --party ID --reason TEXT` makes one."
        )
        return 0
    rows = [requests.row_of(each) for each in sorted(found, key=lambda each: each.metadata.creation_timestamp or "")]
    session.app.write(render_table(plain_table(requests.COLUMNS, rows), colour=session.app.colour))
    return 0


async def _show(session: CliSession, args: argparse.Namespace) -> int:
    request = await requests.find(session, args.words[0])
    if args.output != "table":
        return await _document(session, request, args.output)
    session.app.say("\n".join(requests.sheet_of(request)))
    if request.status.answer is not None:
        session.app.say("")
        _print_answer(session, request)
    elif requests.is_incoming(request) and request.status.preview is not None:
        session.app.say(f"\nNext: coterie logrequest preview {request.metadata.name}")
    return 0


async def _preview(session: CliSession, args: argparse.Namespace) -> int:
    request = await requests.find(session, args.words[0], incoming=True)
    if args.again or args.redact:
        request = await _renewed(session, request, tuple(args.redact))
    if request.status.phase == LogRequestPhase.AWAITING_APPROVAL:
        request = await requests.wait_for(session, request, _has_preview, _PREVIEW_SECONDS)
    preview = request.status.preview
    if args.output != "table":
        return await _document(session, request, args.output)
    if preview is None:
        raise CliError(
            printable(f"Error: there is no preview; the request is {request.status.phase}: {request.status.message}")
        )
    session.app.write(requests.shown_text(preview.text))
    for note in requests.excerpt_notes(preview):
        session.app.warn(note)
    session.app.warn(requests.excerpt_line(preview))
    session.app.warn(printable(f"{request.spec.requester} asks because: {request.spec.reason}"))
    name = request.metadata.name
    session.app.warn(f"Next: coterie logrequest approve {name}, or coterie logrequest reject {name} --reason TEXT")
    return 0


def _has_preview(request: LogRequest) -> bool:
    wanted = (request.spec.review or LogReview()).generation
    preview = request.status.preview
    return (
        preview is not None and preview.generation == wanted
    ) or request.status.phase != LogRequestPhase.AWAITING_APPROVAL


async def _renewed(session: CliSession, request: LogRequest, redact: tuple[str, ...]) -> LogRequest:
    old = request.spec.review or LogReview()
    rules = list(dict.fromkeys((*(old.redact or ()), *redact)))
    return await _review(session, request, redact=rules or None, generation=old.generation + 1)


async def _review(session: CliSession, request: LogRequest, **fields: object) -> LogRequest:
    meta = request.metadata
    patch = requests.with_review(request, **fields)
    return await session.client.patch(LOG_REQUESTS, meta.name, meta.namespace, patch)


async def _decide(session: CliSession, args: argparse.Namespace, decision: str) -> int:
    request = await requests.find(session, args.words[0], incoming=True)
    phase, name = request.status.phase, request.metadata.name
    wanted = LogRequestPhase.ANSWERED if decision == REVOKE else LogRequestPhase.AWAITING_APPROVAL
    if phase != wanted:
        raise CliError(printable(f"Error: log request {name} is {phase}: {request.status.message}"))
    fields: dict[str, object] = {"decision": decision, "reason": args.reason}
    preview = request.status.preview
    if decision == APPROVE:
        if preview is None:
            raise CliError(printable(f"Error: the logs for {name} have not been read yet: {request.status.message}"))
        fields["digest"] = preview.digest
    request = await _review(session, request, **fields)
    done = await requests.wait_for(session, request, lambda each: each.status.phase != wanted, _PREVIEW_SECONDS)
    if args.output != "table":
        return await _document(session, done, args.output)
    session.app.say(printable(f"log request {name}: {done.status.phase}: {done.status.message}"))
    if decision == APPROVE and preview is not None:
        session.app.say(requests.excerpt_line(preview))
    return 0


async def _remove(session: CliSession, args: argparse.Namespace) -> int:
    request = await requests.find(session, args.words[0])
    await session.client.delete(LOG_REQUESTS, request.metadata.name, request.metadata.namespace)
    session.app.say(f"log request {request.metadata.name} deleted")
    return 0


_RUN: dict[str, Callable[[CliSession, argparse.Namespace], Awaitable[int]]] = {
    "create": _create,
    "ls": _list,
    "show": _show,
    "preview": _preview,
    "approve": lambda session, args: _decide(session, args, APPROVE),
    "reject": lambda session, args: _decide(session, args, REJECT),
    "revoke": lambda session, args: _decide(session, args, REVOKE),
    "rm": _remove,
}
