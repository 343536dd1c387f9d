"""`coterie job run`: start a job and follow it; the exit status is what became of it."""

from __future__ import annotations

import argparse
import math
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import manifests
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.jobs import chart, live
from coterie.cli.jobs.follow import find
from coterie.cli.jobs.plan_view import EXIT_CODES, plan_lines
from coterie.cli.manifests import Manifest
from coterie.cli.output import as_text, without_managed_fields
from coterie.cli.resource_arguments import kind_name
from coterie.cli.session import CliSession
from coterie.kube.api.errors import AlreadyExists
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import BandwidthError, mbit_up, parse_bits
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.engine_versions import engine_named
from coterie.kuscia.api.job_plans import LONGEST_WAIT
from coterie.kuscia.api.jobs import timeline
from coterie.kuscia.api.jobs.job_state import TIMED_OUT, engine_job, with_schedule
from coterie.kuscia.api.jobs.validation import Problem
from coterie.kuscia.api.types.job import (
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    STALL_FAIL,
    STALL_RESTART,
)
from coterie.kuscia.api.types.job_plan import JobOutlook
from coterie.kuscia.control import job_checks
from coterie.kuscia.control.job_planning import PlanNotAsked, ask_plan
from coterie.kuscia.control.job_snapshots import JOBS, JobSnapshot

HELP = """
Start a job and follow it until it ends. The job comes from a file, or is created from an engine and a list of parties.
Other objects in the file, such as the AppImage, are applied first. On a terminal the progress of every party is drawn;
otherwise each change is printed as a line. Ctrl-C detaches: the job keeps running.

--dry-run=plan starts nothing: all parties say whether they would approve the job, which tables, grants and engine
it would use, and where it would be placed. Exit status then: 0 it would run, 1 it would not, 3 it would wait or a
party gave no answer.

Exit status: 0 Succeeded, 1 Failed, 3 Cancelled or rejected, 124 not ended within --timeout, 130 interrupted (Ctrl-C).

Examples:
  coterie job run job.yaml
  coterie job run job.yaml --name again --timeout 10m
  cat job.yaml | coterie job run - --no-wait
  coterie job run --engine sample --parties alice,bob
  coterie job run --engine sample --parties alice,bob --input '{"mode": "slow", "seconds": 5}' --timeline
  coterie job run --engine psi --parties alice,bob --input @psi.json --role alice=sender,bob=receiver
  coterie job run --engine psi --parties alice,bob --cpu 2 --memory alice=8Gi,bob=4Gi --bandwidth 100
  coterie job run --engine psi --parties alice,bob --input @psi.json --retry 2 --retry-backoff 30s
  coterie job run job.yaml --stall-seconds 600 --stall-action restart
  coterie job run --engine sample --parties alice,bob --dry-run -o yaml   # only print the job
  coterie job run job.yaml --dry-run=plan          # ask all parties what would become of it
"""
_SUFFIX_BYTES = 3
_PRINT, _PLAN = "print", "plan"


def arguments(parser: options.Parser) -> None:
    parser.add_argument("file", nargs="?", default="", metavar="FILE", help="YAML or JSON file; - for standard input")
    make = parser.add_argument_group("a job from an engine")
    make.add_argument("--engine", metavar="NAME", default="", help='AppImage, or an engine with a range: "psi>=0.9,<1"')
    make.add_argument("--parties", metavar="IDS", default="", help="domains that take part, e.g. alice,bob")
    make.add_argument("--input", metavar="TEXT", default=None, help="input of the engine; @FILE reads it from a file")
    make.add_argument(
        "--initiator", metavar="ID", default="", help="initiator (default: the first party that is hosted here)"
    )
    make.add_argument(
        "--role", metavar="ID=ROLE", action="append", default=[], help="roles of the parties, e.g. alice=guest,bob=host"
    )
    per_party = "for each party, or ID=AMOUNT,..."
    make.add_argument("--cpu", metavar="N", action="append", default=[], help=f"cores {per_party}")
    make.add_argument("--memory", metavar="SIZE", action="append", default=[], help=f"e.g. 4Gi, {per_party}")
    make.add_argument("--bandwidth", metavar="RATE", action="append", default=[], help=f"such as 100Mbps {per_party}")
    every = parser.add_argument_group("for every task of the job")
    every.add_argument(
        "--retry",
        type=int,
        metavar="N",
        default=None,
        help="begin a task that failed again, up to N times (at most 10)",
    )
    every.add_argument(
        "--retry-backoff",
        type=options.seconds,
        metavar="TIME",
        default=None,
        help="pause before the first retry, e.g. 30s; doubled each time",
    )
    every.add_argument(
        "--stall-seconds",
        type=int,
        metavar="N",
        default=None,
        help="end a task whose engines are idle at all parties for N seconds",
    )
    every.add_argument(
        "--stall-action",
        choices=("fail", "restart"),
        default="",
        help="what happens to such a task (default: fail)",
    )
    parser.add_argument(
        "--name", metavar="NAME", default="", help="name of the job (default: from the file, or generated)"
    )
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="follow the job until it ends (default: yes)",
    )
    parser.add_argument(
        "--timeout",
        type=options.seconds,
        metavar="TIME",
        default=0.0,
        help="stop following after this time; the job keeps running",
    )
    parser.add_argument("--timeline", action="store_true", help="measure, and print a timeline at the end")
    parser.add_argument("--svg", metavar="FILE", default="", help="write the timeline as an SVG file")
    parser.add_argument(
        "--dry-run",
        nargs="?",
        const=_PRINT,
        default="",
        metavar="plan",
        help="print the job without creating it; with =plan ask all parties what would become of it",
    )
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.connection_options(parser)
    parser.complete(engine="engines", parties="domains,", initiator="domains")


def run(args: argparse.Namespace, app: App) -> int:
    _dry_run(args)
    if bool(args.file) == bool(args.engine):
        raise UsageError("name either a FILE or an engine with --engine; see `coterie job run --help`")
    _schedule(args)  # what is wrong with it is said before anything is asked of the server
    if (args.timeline or args.svg) and not args.wait:
        raise UsageError("a timeline is measured while the job runs; leave out --no-wait")
    found: list[Manifest] = []
    if args.file:
        extra = [
            name
            for name in ("parties", "input", "initiator", "role", "cpu", "memory", "bandwidth")
            if getattr(args, name)
        ]
        if extra:
            raise UsageError(f"--{extra[0]} is for jobs from --engine; with a FILE, say it in the file")
        found = manifests.read([args.file], app)
    elif not _listed(args.parties):
        raise UsageError("say who takes part with --parties, e.g. --parties alice,bob")
    running = _Run(args, found)
    try:
        return sessions.run(args, app, running)
    except KeyboardInterrupt:
        if running.created:
            name = running.created
            app.warn(f"\nJob {name} goes on. See it: `coterie job watch {name}`. End it: `coterie job stop {name}`.")
        raise


class _Run:
    def __init__(self, args: argparse.Namespace, found: Sequence[Manifest]) -> None:
        self._args = args
        self._found = found
        self.created = ""
        """The job's name, from when it is on the server."""

    async def __call__(self, session: CliSession) -> int:
        args, app = self._args, session.app
        if args.file:
            job = _job_of(self._found, args.name)
        else:
            job = await _from_engine(session, args)
        job = with_schedule(job, _schedule(args))
        if args.dry_run == _PLAN:
            return await self._plan(session, job)
        if args.dry_run:
            app.write(as_text(job, "json" if args.output == "json" else "yaml"))
            return 0
        others = [manifest for manifest in self._found if not _is_job(manifest)]
        for manifest in others:
            await _apply(session, manifest, quiet=args.output != "table")
        await _check(session, job)
        began = time.monotonic()
        made = await _create(session, job)
        self.created = made["metadata"]["name"]
        if args.output == "name":
            app.say(f"{kind_name(KUSCIA_JOBS.resource)}/{self.created}")
        elif args.output == "table":
            app.say(f"job {self.created} created")
        if args.wait:
            return await _follow(session, args, self.created, began)
        if args.output in ("json", "yaml"):
            app.write(as_text(without_managed_fields(made), args.output))
        elif args.output == "table":
            app.say(f"See it: `coterie job watch {self.created}`")
        return 0

    async def _plan(self, session: CliSession, job: Object) -> int:
        args, app = self._args, session.app
        for manifest in self._found:
            if not _is_job(manifest):
                app.warn(f"{manifest.kind}/{manifest.name} is not applied in a dry run")
        try:
            found = await ask_plan(session.client, job, wait_seconds=math.ceil(args.timeout), clock=SYSTEM_CLOCK)
        except PlanNotAsked as problem:
            raise CliError(f"Error: {problem}") from problem
        if args.output == "table":
            app.say("\n".join(plan_lines(found)))
        else:
            shown = {"job": job["metadata"].get("name", ""), **msgspec.to_builtins(found)}
            app.write(as_text(shown, args.output))
        return EXIT_CODES[JobOutlook(found.outlook)]


def _dry_run(args: argparse.Namespace) -> None:
    """`--dry-run FILE` has a value as far as the parser can tell: it is the file."""
    if args.dry_run not in ("", _PRINT, _PLAN):
        if args.file or args.engine:
            raise UsageError(f"--dry-run={args.dry_run}: there are --dry-run and --dry-run=plan")
        args.file, args.dry_run = args.dry_run, _PRINT
    if args.dry_run == _PLAN and args.output == "name":
        raise UsageError("-o name is for jobs that are created; a plan has -o json and -o yaml")
    if args.dry_run == _PLAN and args.timeout > LONGEST_WAIT:
        raise UsageError(f"--timeout: a plan is waited for {LONGEST_WAIT} seconds at most")


# The job.


def _is_job(manifest: Manifest) -> bool:
    resource = KUSCIA_JOBS.resource
    return (manifest.kind, manifest.api_version) == (resource.kind, resource.api_version)


def _job_of(found: Sequence[Manifest], name: str) -> Object:
    jobs = [manifest for manifest in found if _is_job(manifest)]
    if not jobs:
        raise CliError(f"Error: there is no KusciaJob in {found[0].place}; `coterie apply -f` takes other objects")
    if len(jobs) > 1:
        raise CliError(
            f"Error: there are {len(jobs)} jobs in the file, and one can be followed; use `coterie apply -f`"
        )
    job = jobs[0]
    if job.namespace not in ("", CROSS_DOMAIN):
        raise CliError(f'Error: {job.place}: jobs live in the namespace {CROSS_DOMAIN}, not in "{job.namespace}"')
    meta = {**job.object["metadata"], "namespace": CROSS_DOMAIN}
    if name:
        meta["name"] = name
        meta.pop("generateName", None)
    if not meta.get("name") and not meta.get("generateName"):
        raise CliError(f"Error: {job.place}: metadata.name is missing; write one, or give one with --name")
    return {**job.object, "metadata": meta}


async def _from_engine(session: CliSession, args: argparse.Namespace) -> Object:
    parties = _listed(args.parties)
    amounts = {"cpu": args.cpu, "memory": args.memory, labels.KUSCIA_BANDWIDTH: args.bandwidth}
    given = {name: _by_party(texts, parties, name.rpartition("/")[2]) for name, texts in amounts.items()}
    given[labels.KUSCIA_BANDWIDTH] = {party: _mbit(text) for party, text in given[labels.KUSCIA_BANDWIDTH].items()}
    resources = {
        party: {name: by_party[party] for name, by_party in given.items() if party in by_party} for party in parties
    }
    roles = _by_party(args.role, parties, "role", named_only=True)
    initiator = args.initiator or await _first_of_ours(session, parties)
    name = args.name or f"{engine_named(args.engine).replace('.', '-')}-{secrets.token_hex(_SUFFIX_BYTES)}"
    text = _input(args.input, session.app)
    return engine_job(name, args.engine, parties, initiator, task_input=text, roles=roles, resources=resources)


def _mbit(text: str) -> str:
    """`100`, `100Mbps`, `1Gi` as the whole Mbit/s of `kuscia.io/bandwidth`."""
    try:
        return str(mbit_up(parse_bits(text)))
    except BandwidthError as error:
        raise UsageError(f"--bandwidth: {error}") from error


def _schedule(args: argparse.Namespace) -> Object:
    """What the options say of every task, as fields of its scheduleConfig."""
    out: Object = {}
    if args.retry is not None or args.retry_backoff is not None:
        if args.retry is None:
            raise UsageError("--retry-backoff needs --retry N")
        out["retry"] = {"count": args.retry}
        if args.retry_backoff:
            out["retry"]["backoffSeconds"] = round(args.retry_backoff)
    if args.stall_seconds is not None:
        out["stallSeconds"] = args.stall_seconds
    if args.stall_action:
        if args.stall_seconds is None:
            raise UsageError("--stall-action needs --stall-seconds N")
        out["stallAction"] = STALL_RESTART if args.stall_action == "restart" else STALL_FAIL
    return out


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _by_party(texts: Sequence[str], parties: Sequence[str], option: str, *, named_only: bool = False) -> dict[str, str]:
    """`2`: for all of them; `alice=2,bob=1`: for those that are named."""
    out: dict[str, str] = {}
    for part in (part for text in texts for part in text.split(",") if part):
        party, equals, value = part.partition("=")
        if not equals and not named_only:
            out = {**dict.fromkeys(parties, part), **out}
            continue
        if not equals or not value or party not in parties:
            raise UsageError(f'--{option}: "{part}" is not ID=VALUE with one of the parties {", ".join(parties)}')
        out[party] = value
    return out


def _input(text: str | None, app: App) -> str:
    if text is None:
        return "{}"
    if not text.startswith("@"):
        return text
    if text == "@-":
        return app.stdin.read()
    try:
        return (app.cwd / Path(text[1:]).expanduser()).read_text("utf-8")
    except OSError as error:
        raise CliError(f"Error: {text[1:]} (from --input) cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"Error: {text[1:]} (from --input) is not text in UTF-8") from error


async def _first_of_ours(session: CliSession, parties: Sequence[str]) -> str:
    """A job starts at a domain of this control plane, not at a partner's."""
    known = await job_checks.visible_domains(session.client) or {}
    return next((party for party in parties if is_own(known.get(party))), parties[0])


# Checking and creating.


async def _apply(session: CliSession, manifest: Manifest, *, quiet: bool) -> None:
    resource = (await session.catalogue()).of_kind(manifest.api_version, manifest.kind)
    namespace = (manifest.namespace or session.namespace) if resource.namespaced else ""
    await session.client.apply(Kind.dynamic(resource), manifest.object, namespace)
    if not quiet:
        session.app.say(f"{kind_name(resource)}/{manifest.name} applied")


async def _check(session: CliSession, job: Object) -> None:
    """What the controller would find wrong a moment later, said before anything is created."""
    found = await job_checks.check_job(session.client, job)
    if found.problems:
        lines = "\n  ".join(map(str, found.problems))
        raise CliError(f"Error: the job cannot run as it is:\n  {lines}" + _next_steps(found.missing))


def _next_steps(missing: Sequence[Problem]) -> str:
    steps = []
    if any(problem.field.endswith("appImage") for problem in missing):
        steps.append("`coterie engine ls` lists the engines there are, `coterie engine add` registers one")
    if any(problem.field.endswith(("domainID", "initiator")) for problem in missing):
        steps.append("`coterie get domains` lists the domains there are")
    return "".join(f"\n{step}" for step in steps)


async def _create(session: CliSession, job: Object) -> Object:
    try:
        return await session.client.create(JOBS, job, CROSS_DOMAIN)
    except AlreadyExists as error:
        name = job["metadata"]["name"]
        phase = ((await find(session.client, name)).get("status") or {}).get("phase") or "New"
        raise CliError(
            f"Error: there is a job {name} already, it is {phase}; give this one another name with --name, "
            f"or remove that one with `coterie job rm {name}`"
        ) from error


# Following.


async def _follow(session: CliSession, args: argparse.Namespace, name: str, began: float) -> int:
    app = session.app
    measured = args.timeline or args.svg
    stopwatch = timeline.PhaseTimes() if measured else None
    try:
        last = await live.follow(
            session, name, timeout=args.timeout, quiet=args.output != "table", stopwatch=stopwatch, since=began
        )
    except TimeoutError:
        app.warn(
            f"Job {name} has not ended after {args.timeout:g} s, and goes on. "
            f"See it: `coterie job watch {name}`. End it: `coterie job stop {name}`."
        )
        return TIMED_OUT
    if args.output in ("json", "yaml"):
        app.write(as_text(without_managed_fields(last.raw), args.output))
    if stopwatch is not None:
        stopwatch.seen[timeline.Moment(timeline.CREATED)] = 0.0
        _timeline(app, args, last, stopwatch)
    live.final_message(app, last.state)
    return last.state.exit_code


def _timeline(app: App, args: argparse.Namespace, last: JobSnapshot, stopwatch: timeline.PhaseTimes) -> None:
    line = timeline.timeline(last.job, stopwatch.seen, max(stopwatch.seen.values()), exact=True)
    if args.timeline and args.output == "table":
        app.say("\n" + "\n".join(chart.bars(line, live.terminal_format(app, whole=True))))
    if args.svg:
        live.write_svg(app, args.svg, line)
