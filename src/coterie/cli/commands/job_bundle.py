"""`coterie job bundle`: all about a job in one archive without secrets, for whoever has to find out why it failed."""

from __future__ import annotations

import argparse
import asyncio
import platform
from collections.abc import Sequence
from pathlib import Path

import orjson

from coterie import __version__
from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.base.files import write_atomic
from coterie.base.paths import DomainPaths
from coterie.cli import arguments as options
from coterie.cli import log_requests as requests
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.jobs.bundle import MOST_LINES, BundleContent, belongs, bundle_files, write_archive
from coterie.cli.jobs.follow import fetch_snapshot
from coterie.cli.jobs.log_search import collect
from coterie.cli.jobs.logs import elsewhere
from coterie.cli.progress import working
from coterie.cli.session import CliSession, root_of
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, EVENTS, SECRETS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.jobs.commands import own_parties
from coterie.kuscia.api.log_query import MAX_LINES, SOURCES, LogLine, LogQuery, printable
from coterie.kuscia.api.secret_values import secret_values
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS, GATEWAYS
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_TASKS, TASK_RESOURCE_GROUPS
from coterie.kuscia.api.types.log_request import LogRequest
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES
from coterie.kuscia.control.job_snapshots import JobSnapshot
from coterie.kuscia.control.task_logs import ApiTaskLogs
from coterie.kuscia.gateway.admin import Admin, AdminError
from coterie.kuscia.gateway.envoy import EnvoySettings
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.routes import check, probe

HELP = """
Write all about a job into one archive: objects, events, logs of the own parties, logs of partners as far as they
approved, lines of the gateways, versions and clocks. Secrets, tokens, values of variables and inputs that look like
secrets are removed. With --ask, each partner without an answer is asked for its logs first.

Examples:
  coterie job bundle common-customers
  coterie job bundle common-customers -o failure.tar.gz
  coterie job bundle common-customers --ask "task psi failed" --wait 10m
"""
_PODS, _SERVICES = Kind.dynamic(builtin("pods")), Kind.dynamic(builtin("services"))
_KEY_FILES = ("*.key", "*.pem", "token")
_LARGEST_KEY = 64 << 10
_CHECK_SECONDS = 20.0


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("-o", "--output", metavar="FILE", default="", help="the archive (default: NAME-bundle.tar.gz)")
    parser.add_argument("--ask", metavar="TEXT", default="", help="ask the partners for their logs; why")
    parser.add_argument(
        "--wait", metavar="TIME", type=options.seconds, default=120.0, help="for their answers (default: 2m)"
    )
    options.connection_options(parser)
    parser.complete(name="jobs")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _bundle(session, args))


async def _bundle(session: CliSession, args: argparse.Namespace) -> int:
    snapshot = await fetch_snapshot(session.client, args.name)
    partners = elsewhere(snapshot.job)
    if args.ask:
        await _ask(session, args, partners)
    with working(session.app, f"job {args.name}", "collecting objects, events and logs", done="collected"):
        content = await _Collector(session, snapshot, partners, root_of(args, session.app)).collect()
    files = bundle_files(content)
    name = f"{args.name}-bundle"
    target = _write(session.app, args.output or f"{name}.tar.gz", write_archive(files, name, content.made))
    for each in content.missing:
        session.app.warn(f"missing: {each}")
    session.app.say(f"{target}: {len(files)} files; look through it before you pass it on")
    answered = {each.spec.owner for each in content.requests if each.status.answer is not None}
    for each in sorted(set(partners) - answered):
        session.app.say(f'No logs of {each}: coterie job bundle {args.name} --ask "why"')
    return 0


def _write(app: App, name: str, data: bytes) -> Path:
    target = app.cwd / Path(name).expanduser()
    try:
        write_atomic(target, data)
    except OSError as problem:
        raise CliError(f"Error: {target} cannot be written ({problem.strerror})") from problem
    return target


async def _ask(session: CliSession, args: argparse.Namespace, partners: Sequence[str]) -> None:
    known = [each for each in await requests.listed(session) if each.spec.job == args.name]
    answered = {each.spec.owner for each in known if each.status.answer is not None and not requests.is_incoming(each)}
    made = [
        await requests.create(session, requests.LogAsk(args.name, each, args.ask, sources=("engine", "gateway")))
        for each in partners
        if each not in answered
    ]
    owners = ", ".join(each.spec.owner for each in made)
    with working(session.app, f"logs of {owners}", "waiting for the approval of the partner", done="decided"):
        done = await asyncio.gather(
            *(requests.wait_for(session, each, requests.is_decided, args.wait) for each in made)
        )
    for each in done:
        if each.status.answer is None:
            session.app.warn(printable(f"{each.spec.owner}: {each.status.phase}: {each.status.message}"))


class _Collector:
    def __init__(self, session: CliSession, snapshot: JobSnapshot, partners: Sequence[str], root: Path) -> None:
        self._session = session
        self._client = session.client
        self._snapshot = snapshot
        self._job = snapshot.job
        self._own = own_parties(snapshot.job)
        self._partners = tuple(partners)
        self._root = root
        self._missing: list[str] = []

    async def collect(self) -> BundleContent:
        name = self._job.metadata.name
        tasks = [task.task_id for task in self._job.spec.tasks if task.task_id]
        objects = await self._objects(name, tasks)
        routes, clocks = await self._routes()
        return BundleContent(
            job=name,
            made=SYSTEM_CLOCK.now(),
            own=self._own,
            partners=self._partners,
            objects=tuple(objects),
            events=tuple(await self._events(name, tasks)),
            logs=await self._logs(name),
            requests=tuple(await self._requests(name)),
            versions=await self._versions(objects),
            clocks=clocks,
            routes=routes,
            known_secrets=await self._known_secrets(),
            patterns=await self._patterns(),
            missing=tuple(self._missing),
        )

    async def _listed(self, kind: Kind[Object], namespace: str = "") -> list[Object]:
        """With their kinds, which lists leave out."""
        resource = kind.resource
        try:
            found = (await self._client.list(kind, namespace)).items
        except (ApiError, TransportError) as problem:
            where = f" of {namespace}" if namespace else ""
            self._missing.append(f"{resource.plural}{where}: {problem}")
            return []
        return [{"apiVersion": resource.api_version, "kind": resource.kind, **each} for each in found]

    async def _objects(self, name: str, tasks: Sequence[str]) -> list[Object]:
        parties = {*self._own, *self._partners, self._job.spec.initiator}
        images = {task.app_image for task in self._job.spec.tasks}
        pins = (self._job.status.engine_pins or {}).values()
        images |= {pin.app_image for parties in pins for pin in parties.values() if pin.app_image}
        out = [self._snapshot.raw]
        for kind, namespace in ((KUSCIA_TASKS, CROSS_DOMAIN), (TASK_RESOURCE_GROUPS, "")):
            out += [each for each in await self._listed(kind.as_dynamic, namespace) if belongs(each, (*tasks, name))]
        for party in self._own:
            for found in (TASK_RESOURCES.as_dynamic, _PODS, _SERVICES, CONFIG_MAPS.as_dynamic):
                out += [each for each in await self._listed(found, party) if belongs(each, tasks)]
            out += await self._listed(DOMAIN_ROUTES.as_dynamic, party)
            out += await self._listed(GATEWAYS.as_dynamic, party)
        for each in await self._listed(CLUSTER_DOMAIN_ROUTES.as_dynamic):
            spec = each.get("spec") or {}
            if {spec.get("source"), spec.get("destination")} <= parties:
                out.append(each)
        out += [each for each in await self._listed(DOMAINS.as_dynamic) if each["metadata"]["name"] in parties]
        out += [each for each in await self._listed(APP_IMAGES.as_dynamic) if each["metadata"]["name"] in images]
        return out

    async def _events(self, name: str, tasks: Sequence[str]) -> list[Object]:
        out: list[Object] = []
        for namespace in (CROSS_DOMAIN, *self._own):
            for event in await self._listed(EVENTS.as_dynamic, namespace):
                about = str((event.get("involvedObject") or {}).get("name", ""))
                if any(about == each or about.startswith(f"{each}-") for each in (name, *tasks)):
                    out.append(event)
        return out

    async def _logs(self, name: str) -> dict[str, list[LogLine]]:
        logs = ApiTaskLogs(self._client, self._own)
        out: dict[str, list[LogLine]] = {}
        for source in SOURCES:
            query = LogQuery(job=name, sources=(source,), limit=MAX_LINES)
            try:
                found, more = await collect(logs, query, MOST_LINES, lambda note: self._missing.append(f"logs: {note}"))
            except (ApiError, TransportError) as problem:
                self._missing.append(f"logs of {source}: {problem}")
                continue
            out[source] = found
            if more:
                self._missing.append(f"logs of {source}: only the newest {MOST_LINES} lines")
        return out

    async def _requests(self, name: str) -> list[LogRequest]:
        try:
            found = await requests.listed(self._session)
        except (ApiError, TransportError) as problem:
            self._missing.append(f"log requests: {problem}")
            return []
        return [each for each in found if each.spec.job == name and not requests.is_incoming(each)]

    async def _versions(self, objects: Sequence[Object]) -> Object:
        server: object
        try:
            server = orjson.loads((await self._client.raw("GET", "/version")).body)
        except (ApiError, TransportError, orjson.JSONDecodeError) as problem:
            server = str(problem)
        images = {
            each["metadata"]["name"]: (each.get("spec") or {}).get("image")
            for each in objects
            if each.get("kind") == APP_IMAGES.resource.kind
        }
        gateways = {
            each["metadata"]["namespace"]: (each.get("status") or {}).get("version", "")
            for each in objects
            if each.get("kind") == GATEWAYS.resource.kind
        }
        return {
            "coterie": __version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "apiServer": server,
            "gateways": gateways,
            "envoy": {party: await self._envoy(party) for party in self._own},
            "engines": images,
        }

    async def _envoy(self, party: str) -> str:
        home = probe.home_of(self._root, party)
        if home is None:
            return "does not run on this machine"
        places = GatewayPaths.of(home)
        admin = Admin(EnvoySettings(party, places.directory, places.run, places.logs).socket)
        try:
            return str(orjson.loads(await admin.ask("/server_info")).get("version", ""))
        except (AdminError, orjson.JSONDecodeError) as problem:
            return f"cannot be asked: {problem}"
        finally:
            await admin.close()

    async def _routes(self) -> tuple[Object, Object]:
        """What `coterie route check` finds, and how far the clocks are apart."""
        routes: Object = {}
        clocks: Object = {"own": rfc3339(SYSTEM_CLOCK.now()), "secondsAhead": {}}
        for source in self._own:
            for partner in self._partners:
                asked = probe.ProbeRequest(source, partner, home=probe.home_of(self._root, source))
                try:
                    async with asyncio.timeout(_CHECK_SECONDS):
                        facts = await probe.gather(self._client, asked, SYSTEM_CLOCK)
                except TimeoutError:
                    self._missing.append(f"route {source}-{partner}: not checked within {_CHECK_SECONDS:.0f} s")
                    continue
                except (ApiError, TransportError) as problem:
                    self._missing.append(f"route {source}-{partner}: {problem}")
                    continue
                routes[f"{source}-{partner}"] = [each.document() for each in check.diagnose(facts)]
                clocks["secondsAhead"][partner] = facts.skew
        return routes, clocks

    async def _patterns(self) -> tuple[str, ...]:
        try:
            policies = (await self._client.list(PARTNER_POLICIES)).items
        except (ApiError, TransportError):
            return ()
        found = (each.spec.logs.redact or () for each in policies if each.spec.logs is not None)
        return tuple(dict.fromkeys(pattern for patterns in found for pattern in patterns))

    async def _known_secrets(self) -> tuple[str, ...]:
        """What is a credential here, so that it is found wherever it was printed."""
        objects: list[Object] = []
        for party in self._own:
            for kind in (SECRETS.as_dynamic, CONFIG_MAPS.as_dynamic, DOMAIN_ROUTES.as_dynamic, _PODS):
                objects += await self._listed(kind, party)
        for kind in (DOMAINS.as_dynamic, CLUSTER_DOMAIN_ROUTES.as_dynamic, APP_IMAGES.as_dynamic):
            objects += await self._listed(kind)
        connection = self._session.connection
        own = [connection.token, connection.password, connection.key.decode("utf-8", "replace")]
        for party in self._own:
            own += _key_files(DomainPaths.of(self._root, party).certs)
        return tuple(dict.fromkeys((*(each for each in own if each), *secret_values(objects))))


def _key_files(certs: Path) -> list[str]:
    """Private keys of a domain of this machine, as far as they can be read. Below its other directories engines write."""
    out = []
    for pattern in _KEY_FILES:
        for file in sorted(certs.rglob(pattern) if certs.is_dir() else ()):
            try:
                if file.is_file() and not file.is_symlink() and file.stat().st_size <= _LARGEST_KEY:
                    out.append(file.read_text("utf-8", "replace"))
            except OSError:
                continue
    return out
