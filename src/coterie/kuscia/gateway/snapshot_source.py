"""Keeps Envoy's configuration in step with the API: objects change, a moment passes, Envoy has the new routes.

    news ──gather──> world ──inputs_of──> Inputs ──snapshot──> Resources ──apply──> Envoy
                                                                  │             └─> tokens in force: `on_loaded`
                                                                  └─> problems: events on the objects, a log line each

The first configuration of a life is complete or is not given at all: an Envoy that outlived us goes on with the last one
until everything was read, so that no route vanishes for a moment. What Envoy refuses does not stop anything. The files it
refused are put back as they were (else its next start would find nothing it can use), the others stay, and the next change
is tried anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.files import read_bytes_or_none
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.kube.api.meta import ApiObject
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.ingress import DNSES, INGRESSES
from coterie.kube.api.types.network import SERVICES
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kuscia.api.kuscia_wire import WEAKNESSES
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, GATEWAYS, DomainRoute
from coterie.kuscia.gateway.addresses import PodNetwork, SocketAddress
from coterie.kuscia.gateway.bearer import BearerTokens
from coterie.kuscia.gateway.callers import PodCallers
from coterie.kuscia.gateway.client_certificates import ClientKeyFiles
from coterie.kuscia.gateway.crypt.keys import keys_of
from coterie.kuscia.gateway.crypt.process import BodyEncryptionProcess
from coterie.kuscia.gateway.envoy import Applied, Envoy
from coterie.kuscia.gateway.identity import about
from coterie.kuscia.gateway.listeners import filter_file
from coterie.kuscia.gateway.model import PodCaller, Route, SnapshotInputs, SnapshotProblem
from coterie.kuscia.gateway.names import POD_FILTER
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.pod_access import callers_in
from coterie.kuscia.gateway.settings import GatewaySettings
from coterie.kuscia.gateway.snapshot import CLUSTERS_FILE, LISTENERS_FILE, EnvoyResources, pod_rules_file, snapshot
from coterie.kuscia.gateway.snapshot_inputs import GatewayObjects, InputCache, api_callers, inputs_of
from coterie.kuscia.gateway.watched_objects import WatchedObjects
from coterie.kuscia.identity.domain_identity import DomainIdentity

_QUIET = 0.005
_LONGEST_GATHER = 0.05
_NO_HURRY = 0.2
"""For what changes nothing that anybody could call: a new service's endpoints come a moment after it."""
_RETRY = 1.0
_MANY = 50
"""Objects from which on a snapshot is made beside the event loop instead of in it."""

Tokens = tuple[tuple[int, SecretValue], ...]
TokensOf = Callable[[DomainRoute], Tokens]
"""The tokens in force of a route of ours, opened, with their revisions, newest last."""
OnLoaded = Callable[[str, int, str], None]
"""Told when Envoy accepts all tokens of a route that leads to us: the route's name, its newest revision, its uid."""


Made = tuple[GatewayObjects, SnapshotInputs, EnvoyResources, frozenset[SnapshotProblem]]


class SnapshotSourceError(Exception):
    """The gateway cannot begin its work; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SnapshotSourceStatus:
    applied: Applied | None = None
    problems: tuple[SnapshotProblem, ...] = ()
    changes: int = 0


class SnapshotSource:
    """A Runnable; ready when Envoy serves the first complete configuration."""

    name = "gateway-feed"

    def __init__(
        self,
        informers: Informers,
        envoy: Envoy,
        settings: GatewaySettings,
        identity: DomainIdentity,
        places: GatewayPaths,
        *,
        tokens_of: TokensOf,
        on_loaded: OnLoaded | None = None,
        on_ingresses: Callable[[frozenset[str]], None] | None = None,
        bearers: BearerTokens | None = None,
        crypt: BodyEncryptionProcess | None = None,
        polling_secret: SecretValue | None = None,
        callers: PodCallers | None = None,
        api: Callable[[], SocketAddress | None] = lambda: None,
        master: Callable[[], Route | None] = lambda: None,
        events: EventRecorder | None = None,
        version: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`on_ingresses`: called with the names of the Ingresses that Envoy serves."""
        self.ready = asyncio.Event()
        self.status = SnapshotSourceStatus()
        self.tasks_running = asyncio.Event()
        """Set while one of our tasks has services."""
        self._envoy = envoy
        self._settings = settings
        self._identity = identity
        self._places = places
        self._tokens_of = tokens_of
        self._on_loaded = on_loaded
        self._on_ingresses = on_ingresses
        self._bearers = bearers
        self._crypt = crypt
        self._polling_secret = polling_secret
        self._callers = callers or PodCallers()
        self._callers.restore(_callers_of_earlier_life(places))
        self._callers.on_change = self._callers_changed
        self._api = api
        self._master = master
        self._events = events
        self._version = version
        self._clock = clock
        self._memory = InputCache()
        self._opened: dict[str, tuple[DomainRoute, Tokens]] = {}
        self._keys = ClientKeyFiles(places.run / "clients")
        self._change_event = asyncio.Event()
        self._count = 0
        self._objects_changed = False
        self._urgent = False
        self._last: SnapshotInputs | None = None
        self._accepted: SnapshotInputs | None = None
        self._good: EnvoyResources | None = None
        self._reported: frozenset[SnapshotProblem] = frozenset()
        self._weak: frozenset[SnapshotProblem] = frozenset()
        self._log = logger("gateway.feed").bind(domain=settings.domain)
        self._watching = WatchedObjects(informers, settings, self.notify_change, clock, self._out_of_date)

    def notify_change(self, urgent: bool = True) -> None:
        """Something changed: look again soon."""
        self._count += 1
        self._urgent |= urgent
        self._objects_changed = True
        self._change_event.set()

    def _callers_changed(self) -> None:
        self._change_event.set()

    def set_identity(self, identity: DomainIdentity) -> None:
        """The domain has another certificate now: a lite gets its own from the master, after the start."""
        self._identity = identity
        self.notify_change()

    def set_pods(self, pods: PodNetwork | None) -> None:
        """The pods' network is another one now, with other addresses or another namespace."""
        self._settings = replace(self._settings, pods=pods)
        self.notify_change()

    def _out_of_date(self) -> bool:
        """Whether time alone has changed what Envoy should know."""
        return self._memory.until is not None and self._clock.now() > self._memory.until

    def world(self) -> GatewayObjects:
        """What is there now, without tokens and credentials."""
        return self._watching.world()

    @property
    def inputs(self) -> SnapshotInputs | None:
        """Of the configuration that Envoy accepted last; None before the first."""
        return self._accepted

    async def run(self) -> None:
        try:
            await self._watching.synced()
            await self._begin()
            self.ready.set()
            while True:
                await self._change_event.wait()
                if not self._objects_changed and self._last is not None:
                    self._change_event.clear()
                    await self._follow_callers()
                    continue
                await self._gathered()
                self._change_event.clear()
                self._objects_changed = self._urgent = False
                await self._follow()
        finally:
            self._watching.close()

    async def _gathered(self) -> None:
        """A job brings many services at once: they cost one snapshot together."""
        began = self._clock.monotonic()
        while self._clock.monotonic() - began < (_LONGEST_GATHER if self._urgent else _NO_HURRY):
            seen = self._count
            await self._clock.sleep(_QUIET)
            if self._urgent and self._count == seen:
                return

    # ---- one step ----

    async def _begin(self) -> None:
        world = self._watching.world()
        if self._bearers is not None:
            self._bearers.want(api_callers(world.routes, world.domains, self._settings.domain))
            await self._bearers.settled()
        self._change_event.clear()
        self._objects_changed = False
        world, inputs, resources, problems = await self._made()
        self._report_problems(problems)
        self._report_weak_forms(inputs)
        await self._give_keys(inputs)
        applied = await self._envoy.begin(resources)
        if applied.refused and LISTENERS_FILE in applied.pending:
            ingress = inputs.ingress_listeners
            opened = (ingress.http, ingress.https) if ingress is not None else ()
            wanted = (inputs.node_socket, self._settings.pod_listener, inputs.external, *opened)
            ports = ", ".join(str(each) for each in wanted if each is not None)
            why = "; ".join(applied.reasons) or "Envoy does not say why"
            raise SnapshotSourceError(
                f"the gateway of {inputs.domain} cannot listen on {ports} ({why}); free these ports or configure others"
            )
        await self._settle(world, inputs, resources, applied)

    async def _follow(self) -> None:
        world, inputs, resources, problems = await self._made()
        self._report_problems(problems)
        self._report_weak_forms(inputs)
        if inputs == self._last:
            self._report(world)
            if self._on_ingresses is not None:
                self._on_ingresses(inputs.ingress.served)
            return
        await self._give_keys(inputs)
        await self._settle(world, inputs, resources, await self._envoy.apply(resources))

    async def _follow_callers(self) -> None:
        """Engine pods wait for this before they start: nothing but the one file is made anew, and nothing is gathered (what
        comes meanwhile is the next round's)."""
        assert self._last is not None and self._good is not None
        inputs = replace(self._last, callers=self._callers.snapshot())
        resources = replace(self._good, files={**self._good.files, **pod_rules_file(inputs)})
        await self._settle(None, inputs, resources, await self._envoy.apply(resources))

    async def _give_keys(self, inputs: SnapshotInputs) -> None:
        """First, so that no request meets a child that knows less than Envoy does."""
        if self._crypt is not None:
            await self._crypt.update(keys_of(inputs))

    async def _made(self) -> Made:
        world = self._watching.world()
        if self._bearers is not None:
            self._bearers.want(api_callers(world.routes, world.domains, self._settings.domain))
            world = replace(world, bearers=self._bearers.current)
        socket = self._crypt.settings.socket if self._crypt is not None else None
        callers = self._callers.snapshot()
        world = replace(world, api=self._api(), master=self._master(), crypt=socket, callers=callers)
        world = replace(world, polling_secret=self._polling_secret)
        if len(world.routes) + len(world.services) > _MANY:
            return await asyncio.to_thread(self._make, world)
        return self._make(world)

    def _make(self, world: GatewayObjects) -> Made:
        clients, unwritten = self._keys.of(world.routes, self._settings.domain)
        full = replace(world, tokens=self._open(world), clients=clients)
        inputs, unread = inputs_of(
            full,
            self._settings,
            self._identity,
            self._places,
            version=self._version,
            memory=self._memory,
            now=self._clock.now(),
        )
        known = self._good if inputs == self._last else None
        resources = snapshot(inputs) if known is None else known
        return full, inputs, resources, frozenset((*resources.problems, *unwritten, *unread))

    def _open(self, world: GatewayObjects) -> dict[str, Tokens]:
        """Opening costs a private key operation: done once for each state of a route."""
        known = self._opened
        self._opened = {
            each.metadata.name: found
            if (found := known.get(each.metadata.name)) is not None and found[0] is each
            else (each, self._tokens_of(each))
            for each in world.routes
        }
        return {name: tokens for name, (_, tokens) in self._opened.items()}

    async def _settle(
        self, world: GatewayObjects | None, inputs: SnapshotInputs, resources: EnvoyResources, applied: Applied
    ) -> None:
        """Make something of Envoy's word. `world`: None when no object changed."""
        self.status = replace(self.status, applied=applied, changes=self.status.changes + 1)
        if applied.accepted:
            self._last, self._accepted, self._good = inputs, inputs, resources
            (self.tasks_running.set if inputs.task_links else self.tasks_running.clear)()
            self._callers.accepted(inputs.callers)
            if world is not None:
                self._report(world)
            if self._on_ingresses is not None:
                self._on_ingresses(inputs.ingress.served)
            return
        self._last = None
        if not applied.refused:
            # It restarts, or has much to do: the files are there, and it will read them.
            await self._clock.sleep(_RETRY)
            self.notify_change()
            return
        why = "; ".join(applied.reasons) or "Envoy does not say why"
        self._warn(self._gateway(), "ConfigurationRefused", f"Envoy refuses {', '.join(applied.pending)}: {why}")
        if self._good is not None:
            await self._envoy.apply(_put_back(resources, self._good, applied.pending))

    def _report(self, world: GatewayObjects) -> None:
        """Partners wait for this: a new token is told to its source when each of our gateways takes it."""
        for route in world.routes:
            newest = route.token_status.newest
            if route.spec.destination != self._settings.domain or newest is None:
                continue
            if self._on_loaded is not None and self._settings.instance not in (newest.effective_instances or ()):
                self._on_loaded(route.metadata.name, newest.revision, route.metadata.uid)

    # ---- telling ----

    def _report_problems(self, now: frozenset[SnapshotProblem]) -> None:
        """Each problem once, for as long as it lasts."""
        self.status = replace(self.status, problems=tuple(sorted(now)))
        for problem in sorted(now - self._reported):
            self._log.warning("Requested configuration rejected", about=problem.about, why=problem.message)
            self._warn(self._subject(problem), "GatewayRefused", problem.message)
        for problem in sorted(self._reported - now):
            self._log.info("Rejected configuration resolved", about=problem.about, why=problem.message)
        self._reported = now

    def _report_weak_forms(self, inputs: SnapshotInputs) -> None:
        """What routes do without because they asked for it: at each start, and when it changes."""
        now = frozenset(
            SnapshotProblem(about(route), WEAKNESSES[form]) for route in inputs.routes for form in route.kuscia_wire
        )
        for weak in sorted(now - self._weak):
            self._log.warning("Protection switched off by a route", about=weak.about, weakness=weak.message)
            self._warn(self._subject(weak), "ProtectionOff", weak.message)
        for weak in sorted(self._weak - now):
            self._log.info("Protection switched on again", about=weak.about, weakness=weak.message)
        self._weak = now

    def _subject(self, problem: SnapshotProblem) -> ObjectReference:
        kind, _, name = problem.about.partition(" ")
        found: ApiObject | None = None
        if kind == "route" and (found := self._watching.route(name)) is not None:
            resource = DOMAIN_ROUTES.resource
        elif kind == "service" and (found := self._watching.service(name)) is not None:
            resource = SERVICES.resource
        elif kind == "ingress" and (found := self._watching.ingress(name)) is not None:
            resource = INGRESSES.resource
        elif kind == "dns" and (found := self._watching.dns(name)) is not None:
            resource = DNSES.resource
        if found is None:
            return self._gateway()
        return reference_to(found, api_version=resource.api_version, kind=resource.kind)

    def _gateway(self) -> ObjectReference:
        resource = GATEWAYS.resource
        return ObjectReference(
            api_version=resource.api_version,
            kind=resource.kind,
            namespace=self._settings.domain,
            name=self._settings.instance,
        )

    def _warn(self, about: ObjectReference, reason: str, message: str) -> None:
        if self._events is not None:
            self._events.warning(about, reason, message)


def _callers_of_earlier_life(places: GatewayPaths) -> tuple[PodCaller, ...]:
    """Those in the file that Envoy read last."""
    content = read_bytes_or_none(filter_file(places.directory, POD_FILTER))
    try:
        return callers_in(orjson.loads(content or b"{}")["resources"][0]["typed_config"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return ()


def _put_back(wanted: EnvoyResources, good: EnvoyResources, refused: tuple[str, ...]) -> EnvoyResources:
    """What Envoy refused as it was before. Of clusters and listeners it takes the good ones and leaves only the others."""
    whole = [name for name in refused if name in good.files and name not in (CLUSTERS_FILE, LISTENERS_FILE)]
    return replace(wanted, files={**wanted.files, **{name: good.files[name] for name in whole}})
