"""`coterie job logs`: what the tasks of a job print, at all parties that this user may see."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.container_logs import Lines
from coterie.base.tasks import TaskOwner
from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.commands.logrequest import follow_request
from coterie.cli.commands.logs import number_of_lines
from coterie.cli.jobs.follow import JobFollower, fetch_snapshot
from coterie.cli.jobs.log_search import OVERLAP, Followed, collect, json_of, label_of, text_of
from coterie.cli.jobs.logs import PodOfJob, elsewhere, kept_output, pods_of, read_kept
from coterie.cli.log_requests import LogAsk, create
from coterie.cli.output import as_text
from coterie.cli.session import CliSession, domains_under, root_of
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.client.streams import log_stream
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.jobs.commands import own_parties
from coterie.kuscia.api.log_query import (
    ENGINE,
    MAX_LINES,
    SOURCES,
    LogLine,
    LogQuery,
    LogQueryRefused,
    log_query,
    printable,
)
from coterie.kuscia.api.types.job import KusciaJob
from coterie.kuscia.control.job_snapshots import PODS, JobSnapshot
from coterie.kuscia.control.task_logs import ApiTaskLogs

HELP = """
Print the logs of a job: all pods of all parties that are visible here, each line prefixed with `party/task/pod |`.
Logs of deleted pods are kept for some days by the machine they ran on. Logs of a partner's pods are only available at
the partner.

--since, --until, --grep, --source, --limit and -o json search all machines of the own domains and print the lines in
the order of their times. Other sources than engine are lines about the job or its tasks in the logs of the gateway,
the scheduler, the data mesh and the controllers; their prefix is `party/task/source |`.

Examples:
  coterie job logs common-customers
  coterie job logs common-customers -f                 # follow until the job ends, including new tasks
  coterie job logs common-customers --task psi --party alice --tail 20
  coterie job logs common-customers --task psi --party alice --no-prefix
  coterie job logs common-customers --source all --since 10m
  coterie job logs common-customers --grep 'error|refused' --source engine --source gateway
  coterie job logs common-customers --source all -o json --limit 0     # all lines, one JSON object each
  coterie job logs common-customers --party bob --ask "psi failed, your side closed the connection" -f
  coterie job logs common-customers --files -o json    # list the pods and where their logs are
"""
_DEFAULT_LIMIT = 10_000
_POLL = 1.0
_ANSWER_SECONDS = 600.0
_COLOURS = ("36", "33", "35", "32", "34", "31")
_LAST_LINES = 10.0
"""Seconds for which streams may go on after the job has ended."""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("--task", metavar="ALIAS", default="", help="only this task")
    parser.add_argument("--party", metavar="ID", default="", help="only this party")
    parser.add_argument("-c", "--container", metavar="NAME", default="", help="only this container")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the job ends")
    parser.add_argument(
        "--tail", metavar="N", type=number_of_lines, default=None, help="only the last N lines of each container"
    )
    parser.add_argument("--since", metavar="TIME", default="", help="only lines from then on: 10m, 2h or RFC 3339")
    parser.add_argument("--until", metavar="TIME", default="", help="only lines up to then: 10m, 2h or RFC 3339")
    parser.add_argument("--grep", metavar="REGEX", default="", help="only lines that match")
    parser.add_argument(
        "--source",
        metavar="SOURCE",
        action="append",
        default=[],
        help=f"{', '.join(SOURCES)} or all; may be repeated (default: engine)",
    )
    parser.add_argument(
        "--limit", metavar="N", type=_limit, default=None, help=f"most lines, 0: all (default: {_DEFAULT_LIMIT})"
    )
    parser.add_argument(
        "--ask", metavar="WHY", default="", help="ask the partner --party for its lines; -f waits for the answer"
    )
    parser.add_argument("--files", action="store_true", help="list the pods and where their logs are")
    parser.add_argument("--timestamps", action="store_true", help="print a timestamp before each line")
    parser.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print party/task/pod before each line (default: yes)",
    )
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(name="jobs", task="job-tasks", party="job-parties", source=(*SOURCES, "all"))


def run(args: argparse.Namespace, app: App) -> int:
    if args.ask:
        return sessions.run(args, app, lambda session: _ask_partner(session, args))
    if args.files or args.output == "yaml":
        if args.follow or _searches(args, but_output=True):
            raise UsageError("--files and -o yaml list files; leave out the options that choose lines")
        return sessions.run(args, app, lambda session: _LogFollower(session, args).run())
    if _searches(args):
        query = _query(args)
        return sessions.run(args, app, lambda session: _LogSearcher(session, args, query).run())
    return sessions.run(args, app, lambda session: _LogFollower(session, args).run())


def _searches(args: argparse.Namespace, *, but_output: bool = False) -> bool:
    chosen = args.since or args.until or args.grep or args.source or args.limit is not None
    return bool(chosen) or (args.output == "json" and not but_output)


def _limit(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def _query(args: argparse.Namespace) -> LogQuery:
    """The task stays an alias: what it is called is known when the job has been read."""
    named = [each for text in args.source for each in text.split(",")] or [ENGINE]
    try:
        return log_query(
            now=SYSTEM_CLOCK.now(),
            job=args.name,
            party=args.party,
            since=args.since,
            until=args.until,
            grep=args.grep,
            sources=SOURCES if "all" in named else named,
            limit=MAX_LINES,
        )
    except LogQueryRefused as refused:
        raise UsageError(f"--{refused}" if refused.field != "job" else str(refused)) from refused


def _how_to_ask(job: str, party: str) -> str:
    return f'`coterie job logs {job} --party {party} --ask "why"` asks for its lines'


async def _ask_partner(session: CliSession, args: argparse.Namespace) -> int:
    if not args.party:
        raise UsageError("--ask needs --party: whose lines?")
    sources = tuple(each for text in args.source for each in text.split(","))
    ask = LogAsk(
        job=args.name,
        party=args.party,
        reason=args.ask,
        task=args.task,
        sources=SOURCES if "all" in sources else sources,
        since=args.since,
        until=args.until,
        grep=args.grep,
        lines=args.limit or args.tail or 0,
    )
    return await follow_request(session, await create(session, ask), _ANSWER_SECONDS if args.follow else None)


class _LogSearcher:
    """With a query: all sources and machines, in the order of time."""

    def __init__(self, session: CliSession, args: argparse.Namespace, query: LogQuery) -> None:
        self._session = session
        self._app = session.app
        self._args = args
        self._query = query
        self._painted: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._warned: set[str] = set()

    async def run(self) -> int:
        args = self._args
        now = await fetch_snapshot(self._session.client, args.name)
        _check(now.job, args)
        self._aliases = {each.task_id: each.alias for each in now.job.spec.tasks}
        task = next((each.task_id for each in now.job.spec.tasks if args.task and each.alias == args.task), "")
        logs = ApiTaskLogs(self._session.client, own_parties(now.job))
        query = replace(self._query, task=task)
        most = min((each for each in (args.tail, args.limit) if each is not None), default=_DEFAULT_LIMIT)
        lines, more = list[LogLine](), False
        if args.tail != 0:
            query = replace(query, limit=min(most or MAX_LINES, MAX_LINES))
            lines, more = await collect(logs, query, most, self._note)
        for line in lines:
            self._print(line)
        if more and args.tail is None:
            self._app.warn(f"There are older lines; --limit prints more than {most}")
        if args.follow:
            await self._follow(logs, query, lines)
        for party in elsewhere(now.job, args.task):
            if args.party in ("", party):
                self._app.warn(f"{party} has its own logs of the job: {_how_to_ask(args.name, party)}")
        return 0

    async def _follow(self, logs: ApiTaskLogs, query: LogQuery, lines: list[LogLine]) -> None:
        followed = Followed(replace(query, limit=MAX_LINES), SYSTEM_CLOCK.now() - OVERLAP if not lines else None)
        followed.fresh(lines)
        over = False
        while True:
            found, _ = await collect(logs, followed.next_query(), 0, self._note)
            for line in followed.fresh(found):
                self._print(line)
            if over:
                return
            await SYSTEM_CLOCK.sleep(_POLL)
            over = (await fetch_snapshot(self._session.client, self._args.name)).state.over

    def _note(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._app.warn(printable(text))

    def _print(self, line: LogLine) -> None:
        args, terminal = self._args, self._app.out.isatty()
        if args.container and line.container != args.container:
            return
        if args.output == "json":
            self._app.say(json_of(line, terminal=terminal))
            return
        prefix = f"{label_of(line, self._aliases)} | " if args.prefix else ""
        if prefix and self._app.colour:
            code = self._painted.setdefault(line.party, _COLOURS[len(self._painted) % len(_COLOURS)])
            prefix = f"\x1b[{code}m{prefix}\x1b[0m"
        stamp = f"{line.at} " if args.timestamps else ""
        for text in text_of(line, terminal=terminal):
            self._app.say(f"{prefix}{stamp}{text}")


class _LogFollower:
    def __init__(self, session: CliSession, args: argparse.Namespace) -> None:
        self._session = session
        self._app = session.app
        self._args = args
        self._root: Path = root_of(args, session.app)
        self._painted: dict[str, str] = {}
        self._missing = 0

    async def run(self) -> int:
        args = self._args
        first = await fetch_snapshot(self._session.client, args.name)
        _check(first.job, args)
        if args.files or args.output != "table":
            self._app.write(as_text([self._entry(pod) for pod in self._pods(first)], args.output))
            return 0
        if args.follow and not first.state.over:
            first = await self._follow()
        else:
            for pod in self._pods(first):
                await self._print(pod, follow=False)
        self._mention_others(first)
        return 1 if self._missing else 0

    def _pods(self, now: JobSnapshot) -> list[PodOfJob]:
        return pods_of(now.job, now.tasks, self._args.task, self._args.party)

    async def _follow(self) -> JobSnapshot:
        begun: set[tuple[str, str]] = set()
        async with TaskOwner("logs") as owner, JobFollower(self._session.client, self._args.name) as following:
            while True:
                now = await following.next()
                for pod in self._pods(now):
                    if pod.begun and (pod.party, pod.name) not in begun:
                        begun.add((pod.party, pod.name))
                        owner.start(pod.label, self._print(pod, follow=True))
                if now.state.over:
                    await owner.drain(_LAST_LINES)
                    return now

    async def _print(self, pod: PodOfJob, *, follow: bool) -> None:
        if not pod.begun:
            return
        try:
            found = await self._session.client.get(PODS, pod.name, pod.party)
            containers = [each["name"] for each in found["spec"]["containers"]]
            for container in self._selected(containers):
                await self._print_lines(
                    pod, container if len(containers) > 1 else "", self._live(pod, container, follow)
                )
            return
        except NotFound:
            why = "has been removed"
        except ApiError as refusal:
            why = f"cannot be asked ({refusal})"
        await self._print_kept(pod, why)

    async def _print_kept(self, pod: PodOfJob, why: str) -> None:
        files = kept_output(self._root, pod)
        for container in self._selected(list(files)):
            pieces = read_kept(files[container], self._args.tail, self._args.timestamps)
            await self._print_lines(pod, container if len(files) > 1 else "", pieces)
        if files or await self._print_searched(pod):
            return
        self._missing += 1
        where = f"node {pod.node} keeps" if pod.node else "its node keeps"
        self._app.warn(
            f"{pod.label}: the pod {why}; {where} its output for some days, "
            f"in var/stdout/pods/{pod.party}_{pod.name}_*; "
            "run this command on that machine"
        )
        for line in pod.termination_message.splitlines():
            self._line(pod, "", line)

    async def _print_searched(self, pod: PodOfJob) -> bool:
        """What the machine that the pod ran on keeps of it; whether it has anything."""
        query = LogQuery(job=self._args.name, task=pod.task_id, party=pod.party, sources=(ENGINE,), limit=MAX_LINES)
        try:
            logs = ApiTaskLogs(self._session.client, [pod.party])
            lines, _ = await collect(logs, query, _DEFAULT_LIMIT, lambda note: None)
        except (ApiError, TransportError):
            return False
        chosen = [line for line in lines if line.pod == pod.name and line.container in self._selected([line.container])]
        for line in chosen[-self._args.tail :] if self._args.tail else chosen:
            self._line(pod, "", f"{line.at} {line.text}" if self._args.timestamps else line.text)
        return bool(lines)

    def _selected(self, containers: list[str]) -> list[str]:
        chosen = self._args.container
        return [each for each in containers if not chosen or each == chosen]

    def _live(self, pod: PodOfJob, container: str, follow: bool) -> AsyncIterator[bytes]:
        return log_stream(
            self._session.client,
            pod.name,
            pod.party,
            container=container,
            follow=follow,
            tail=self._args.tail,
            timestamps=self._args.timestamps,
        )

    async def _print_lines(self, pod: PodOfJob, container: str, pieces: AsyncIterator[bytes]) -> None:
        lines = Lines()
        async for data in pieces:
            for line in lines.take(data):
                self._line(pod, container, line)
        for line in lines.end():
            self._line(pod, container, line)

    def _line(self, pod: PodOfJob, container: str, line: str) -> None:
        text = printable(line) if self._app.out.isatty() else line
        self._app.say((self._prefix(pod, container) if self._args.prefix else "") + text)

    def _prefix(self, pod: PodOfJob, container: str) -> str:
        text = f"{pod.label}{f'/{container}' if container else ''} | "
        if not self._app.colour:
            return text
        code = self._painted.setdefault(pod.party, _COLOURS[len(self._painted) % len(_COLOURS)])
        return f"\x1b[{code}m{text}\x1b[0m"

    def _entry(self, pod: PodOfJob) -> dict[str, object]:
        files = {container: str(file) for container, file in kept_output(self._root, pod).items()}
        return {
            "party": pod.party,
            "task": pod.task,
            "pod": pod.name,
            "phase": pod.phase,
            "node": pod.node,
            "files": files,
        }

    def _mention_others(self, now: JobSnapshot) -> None:
        args = self._args
        if not self._pods(now) and not args.party:
            self._app.warn(f"No task of job {args.name} has printed anything yet; it is {now.state.phase}")
        others = [party for party in elsewhere(now.job, args.task) if not args.party or party == args.party]
        here = domains_under(self._root)
        for party in others:
            how = f"`coterie --domain {party} job logs {args.name}`" if party in here else _how_to_ask(args.name, party)
            self._app.warn(f"{party} runs its pods under its own control plane: {how}")


def _check(job: KusciaJob, args: argparse.Namespace) -> None:
    aliases = [task.alias for task in job.spec.tasks]
    if args.task and args.task not in aliases:
        raise CliError(f'Error: job {args.name} has no task "{args.task}"; it has {", ".join(aliases)}')
    parties = job.spec.party_domains
    if args.party and args.party not in parties:
        raise CliError(f'Error: "{args.party}" takes no part in job {args.name}; its parties are {", ".join(parties)}')
