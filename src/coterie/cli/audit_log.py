"""What the actions of `coterie audit` share: which log, which events, options, files."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.base.paths import DomainPaths
from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.progress import working
from coterie.http.plain_client import NotConnected
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.api.log_query import LogQueryRefused, moment
from coterie.kuscia.evidence import listing
from coterie.kuscia.evidence.listing import EventFilter, ShownEvent
from coterie.kuscia.evidence.local_log import LocalLog, NoSuchLog


def find_log(args: argparse.Namespace, app: App, number: int = 0) -> LocalLog:
    """The newest one of the domain, or one with this number. CliError when there is none."""
    paths = DomainPaths(sessions.kubeconfig_files(args, app)[0].parent)
    try:
        return LocalLog.find(paths, number)
    except NoSuchLog as problem:
        raise CliError(
            f"{paths.home}: {problem}",
            "it is made when the node starts for the first time; `--root` and `--domain` choose another one",
        ) from problem


COLUMNS = ("INDEX", "TIME", "KIND", "JOB", "PARTIES", "WHO", "ABOUT")
SUBJECTS = (evidence.PERSON, evidence.TABLE, evidence.OBJECT)


def row_of(shown: ShownEvent) -> tuple[str, ...]:
    event = shown.event
    if event is None:
        return (str(shown.index), "", "(removed by retention)", "", "", "", "")
    return (
        str(shown.index),
        shown.time,
        event.kind,
        event.job or event.task,
        shown.parties,
        shown.who,
        shown.about,
    )


# Options that several actions share.


def filter_options(parser: options.Parser) -> None:
    chosen = parser.add_argument_group("which events")
    chosen.add_argument("--job", metavar="NAME", default="", help="of this job")
    chosen.add_argument("--kind", metavar="KIND", default="", help="of this kind, or of kinds that begin so: grant.")
    chosen.add_argument("--partner", metavar="ID", default="", help="with this partner")
    chosen.add_argument("--since", metavar="TIME", default="", help="10m, 2h, 1d or a time")
    chosen.add_argument("--until", metavar="TIME", default="", help="10m, 2h, 1d or a time")
    parser.complete(job="jobs", kind=tuple(sorted(evidence.KINDS)), partner="domains")


def filter_of(args: argparse.Namespace) -> EventFilter:
    now = datetime.now(UTC)
    since, until = _moment("since", args.since, now), _moment("until", args.until, now)
    return EventFilter(args.job, args.kind, args.partner, since, until)


def _moment(name: str, text: str, now: datetime) -> datetime | None:
    try:
        return moment(name, text, now)
    except LogQueryRefused as problem:
        raise UsageError(f"--{name}: {problem}") from problem


def log_option(parser: options.Parser) -> None:
    parser.add_argument(
        "--log", metavar="N", type=int, default=0, help="the log with this number (default: the newest)"
    )


def disclose_option(parser: options.Parser) -> None:
    parser.add_argument(
        "--disclose", metavar="SUBJECTS", default="", help=f"show what these stand for: {', '.join(SUBJECTS)}"
    )
    parser.complete(disclose=SUBJECTS)


def subjects(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    if unknown := [each for each in found if each not in SUBJECTS]:
        raise UsageError(f'--disclose: "{unknown[0]}" is none of {", ".join(SUBJECTS)}')
    return found


def index_argument(parser: options.Parser) -> None:
    parser.add_argument("index", metavar="INDEX", help="number of an event; `coterie audit ls` shows it")


def find_event(args: argparse.Namespace, log: LocalLog) -> ShownEvent:
    if not args.index.isdecimal():
        raise UsageError("INDEX is the number of an event; `coterie audit ls` shows it")
    found = listing.shown_event(log.reader, min(int(args.index), 1 << 60))
    if found is None:
        raise CliError(f"the log has no event {args.index}", "`coterie audit ls` lists them")
    return found


@contextmanager
def failures() -> Iterator[None]:
    """Of the log and of files, as sentences."""
    try:
        yield
    except EvidenceError as problem:
        raise CliError(str(problem)) from problem
    except OSError as problem:
        raise CliError(f"{problem.filename or 'a file'}: {problem.strerror or problem}") from problem


def written(file: str, app: App, lines: Iterator[bytes], hint: str = "") -> int:
    path = Path(file)
    with working(app, str(path), "writing", done="written"):
        size = write_file(path, lines)
    app.say(f"{path}: {size} bytes. Check it with `coterie audit verify {path}{hint}`")
    return 0


def write_file(path: Path, lines: Iterator[bytes]) -> int:
    """Written aside and put in place whole. The number of bytes."""
    aside = path.with_name(path.name + ".part")
    size = 0
    try:
        with aside.open("wb") as file:
            for line in lines:
                size += file.write(line)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return size


def run_node_call(log: LocalLog, path: str, body: object) -> Any:
    try:
        return asyncio.run(log.call_node(path, body))
    except NotConnected as problem:
        raise CliError(
            f'the node of "{log.domain}" does not run', "start it with `coterie start` or `coterie up`"
        ) from problem
