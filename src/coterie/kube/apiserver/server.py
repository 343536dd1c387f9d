"""The API server: a `Handler` over a store.

    store = MemoryStore(); await store.open()  # or SqliteStore(path)
    server = ApiServer(store)
    await server.start()                       # load, bootstrap, be ready
    response = await server.call(Request("GET", "/api/v1/namespaces", user=ADMIN))   # in-process
    http = HttpServer(server.handle, user_of=user_from_certificate, problem_response=status_response)
    await http.listen(...)   # on a socket
    await server.stop()

The path of a request, outermost first: count and audit, translate errors, authenticate, authorise, find the resource,
dispatch to a verb. Everything up to the verb runs without a task, and reads are answered at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import orjson

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response, UserInfo
from coterie.http.server import Tasks
from coterie.kube.api import convert, errors
from coterie.kube.api.certificate_signers import GROUP as CERTIFICATES
from coterie.kube.api.resources import BUILTIN, CUSTOM_METRICS, USAGE, Resource
from coterie.kube.api.schema import builtin as builtin_schemas
from coterie.kube.api.selectors import parse_field_selector
from coterie.kube.api.status_response import status_response
from coterie.kube.apiserver import (
    apiservices,
    bodies,
    bootstrap,
    discovery,
    members,
    options,
    paths,
    response_encoding,
    service_ranges,
)
from coterie.kube.apiserver.admission.chain import Admission, AdmissionRequest
from coterie.kube.apiserver.admission.nodes import NodeRestriction, check_token_request
from coterie.kube.apiserver.admission.policies import PolicyAdmission
from coterie.kube.apiserver.admission.quotas import Quotas
from coterie.kube.apiserver.admission.runtime_class import RuntimeClasses
from coterie.kube.apiserver.admission.service_addresses import ServiceAddresses
from coterie.kube.apiserver.admission.steps import (
    DefaultTolerations,
    LimitRanges,
    NamespaceLifecycle,
    Priorities,
    ServiceAccounts,
)
from coterie.kube.apiserver.admission.storage import StorageAdmission
from coterie.kube.apiserver.aggregator import AggregatedVersion, Aggregator
from coterie.kube.apiserver.audit import Audit, AuditEvent, AuditObjectReference, AuditRecord, AuditSink
from coterie.kube.apiserver.auth import grants, reviews
from coterie.kube.apiserver.auth.authentication_info import AuthenticationInfo
from coterie.kube.apiserver.auth.authn import Authenticator
from coterie.kube.apiserver.auth.nodes import NodeAuthorizer
from coterie.kube.apiserver.auth.rbac import forbidden
from coterie.kube.apiserver.auth.rules import Attributes
from coterie.kube.apiserver.auth.tokens import Lookups, TokenSigner, request_token
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.crds import CrdRegistry
from coterie.kube.apiserver.extension import ApiServerExtension
from coterie.kube.apiserver.kinds import EventStrategy, Strategy
from coterie.kube.apiserver.members import ServerMember
from coterie.kube.apiserver.metrics import Metrics
from coterie.kube.apiserver.openapi.service import OpenApi
from coterie.kube.apiserver.presentation import Presenter, warning_header
from coterie.kube.apiserver.proxy import NodeProxy
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import VersionView, head_of
from coterie.kube.apiserver.state.state import ROOT, ResourceStorage
from coterie.kube.apiserver.state.watching import StoredChange
from coterie.kube.apiserver.verbs.delete import DeleteVerbs
from coterie.kube.apiserver.verbs.eviction import EvictionVerb
from coterie.kube.apiserver.verbs.read import ReadVerbs
from coterie.kube.apiserver.verbs.subresources import Subresources
from coterie.kube.apiserver.verbs.watch import WatchVerb
from coterie.kube.apiserver.verbs.write import WriteVerbs
from coterie.kube.apiserver.webhooks.registry import ReviewServices, WebhookMetrics, WebhookRegistry
from coterie.kube.apiserver.write_gate import WriteGate, is_write
from coterie.kube.store.protocol import Store, StoreError

if TYPE_CHECKING:
    from coterie.base.log_pages import LogSearch
    from coterie.kube.apiserver import (
        component_status,
        custom_metrics,
        http_proxy,
        outgoing,
        pod_log_search,
        policy_audit,
        usage,
    )
    from coterie.kube.apiserver.admission import certificates
    from coterie.kube.apiserver.audit_policy import AuditPolicy
    from coterie.kube.apiserver.webhooks import conversion
else:
    certificates = lazy_import("coterie.kube.apiserver.admission.certificates")
    component_status = lazy_import("coterie.kube.apiserver.component_status")
    conversion = lazy_import("coterie.kube.apiserver.webhooks.conversion")
    custom_metrics = lazy_import("coterie.kube.apiserver.custom_metrics")
    http_proxy = lazy_import("coterie.kube.apiserver.http_proxy")
    outgoing = lazy_import("coterie.kube.apiserver.outgoing")
    pod_log_search = lazy_import("coterie.kube.apiserver.pod_log_search")
    policy_audit = lazy_import("coterie.kube.apiserver.policy_audit")
    usage = lazy_import("coterie.kube.apiserver.usage")

log = logger("apiserver")

Object = dict[str, Any]
Verb = Callable[[ResourceRequest], Response | Awaitable[Response]]
Dial = Callable[[str, int], Awaitable[socket.socket]]
_CRDS = "/registry/apiextensions.k8s.io/customresourcedefinitions"
_RBAC = "/registry/rbac.authorization.k8s.io/"
_SELECTING = frozenset(("list", "watch", "deletecollection"))
_NEEDS_NAME = {"create": False, "update": True, "patch": True}
_CLIENT_LEFT = 499
"""For metrics and audit: who asked went away before the answer."""
_EVERY_POD = "*"
"""In place of a pod's name: its log is that of all pods of the namespace (`pod_log_search.py`)."""
_LONGEST_REVISION = 18
_HEALTH = frozenset(("/healthz", "/livez", "/readyz"))
_ROOT_PATHS = ("/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version")


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be chosen about an API server; the defaults are the safe ones."""

    signer: TokenSigner | None = None
    """Signs and checks service-account tokens; without it there are none."""
    static_tokens: Sequence[tuple[SecretValue, UserInfo]] = ()
    audit_sinks: Sequence[AuditSink] = ()
    """Get every change, without bodies; see `audit_policy` for the other way."""
    audit_policy: AuditPolicy | None = None
    """What `audit_record` gets, in its place."""
    audit_record: Callable[[AuditRecord], None] | None = None
    extensions: Sequence[ApiServerExtension] = ()
    """What a product on top of the platform adds: kinds, roles, admission steps (`extension.py`)."""
    agent_tls: Callable[[], ssl.SSLContext | None] = field(default=lambda: None)
    """TLS towards node agents: the server's own certificate, and whose it trusts."""
    service_cidr: str = "100.112.0.0/16"
    """The virtual addresses of Services."""
    toleration_seconds: int = 300
    """For how long new pods stay on a node that is not ready or not reachable unless they say it themselves."""
    dial: Dial | None = None
    """Connects to endpoints of Services, where they are in a network that this process is not in (`outgoing.py`)."""
    write_gate: WriteGate | None = None
    """Asked before writes; see `write_gate.py`."""
    log_search: LogSearch | None = None
    """The control plane's own logs, for searches of the logs of a namespace (`pod_log_search.py`)."""
    front_proxy: tuple[str, str] | None = None
    """Files of the certificate and key with which aggregated servers are called."""
    authentication_info: AuthenticationInfo | None = None
    """Authorities that aggregated API servers have to know; None: no such ConfigMap is written."""
    event_ttl: float = 3600.0
    """Seconds after which Event objects are forgotten."""
    member: ServerMember | None = None
    """This server among those of its store; None: it is the only one."""
    reports: Callable[[], bool] = field(default=lambda: True)
    """Whether this server writes what it sees of aggregated servers; of several, one does."""
    compact_every: float = 300.0
    """Seconds between compactions; history of one to two such periods stays for watches and paged lists."""


class ApiServer:
    def __init__(self, store: Store, settings: Settings | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings or Settings()
        self.clock = clock
        self.metrics = Metrics()
        self.ready = False
        self._loaded = False
        """Between start and stop the collections hold what the store holds; outside no object may be asked for."""
        self.state = ResourceStorage(store)
        self._store = store
        self._strategies: dict[tuple[str, str, str], Strategy] = {}
        self._tasks = Tasks()
        self._address: tuple[str, int] | None = None
        """Where the API is reached, once that is published."""
        self._members: members.ServerMembers | None = None
        self._catalogue_event = asyncio.Event()
        self._schemas = schemas = builtin_schemas.load()
        self._definitions = CrdRegistry(
            self.state, self._strategies, schemas.object_meta, clock, self._catalogue_changed, lambda: self.outgoing
        )
        for resource in BUILTIN:
            if not resource.virtual:
                self._serve_builtin(resource, schemas)
        self._counted: dict[tuple[str, str, str, str], tuple[str, str, str]] = {}
        """How metrics name what was asked for."""
        self._virtual = {(r.group, r.version, r.plural): r for r in (*BUILTIN, *USAGE, CUSTOM_METRICS) if r.virtual}
        extensions = self.settings.extensions
        ownership = next((each.node_ownership for each in extensions if each.node_ownership is not None), None)
        self.authorizer = NodeAuthorizer(
            roles=lambda: self._objects(_RBAC + "roles"),
            role_bindings=lambda: self._objects(_RBAC + "rolebindings"),
            cluster_roles=lambda: self._objects(_RBAC + "clusterroles"),
            cluster_role_bindings=lambda: self._objects(_RBAC + "clusterrolebindings"),
            pods=self._collection("pods"),
            nodes=self._collection("nodes"),
            volumes=self._collection("persistentvolumes"),
            ownership=ownership,
            configmap_annotations=[key for extension in extensions for key in extension.configmap_annotations],
            configmaps=[name for extension in extensions for name in extension.configmaps_for_nodes],
        )
        self._lookups = Lookups(
            service_account=self._finder("serviceaccounts"),
            secret=self._finder("secrets"),
            pod=self._finder("pods"),
            node=lambda name: self._finder("nodes")("", name),
        )
        self.authenticator = Authenticator(
            signer=self.settings.signer,
            lookups=self._lookups,
            authorizer=self.authorizer,
            static_tokens=self.settings.static_tokens,
            clock=clock,
        )
        self.audit = Audit(self.settings.audit_sinks)
        self._policy_audit = self._make_policy_audit()
        self.aggregator = Aggregator(
            self.state,
            self.state.collection(apiservices.KEY),
            self._collection("services"),
            lambda: self.outgoing,
            self._tasks,
            clock,
            self.settings.front_proxy,
            self._discovery_changed,
            local_groups=_groups_of(extensions),
            reports=self.settings.reports,
        )
        self._aggregated = self.aggregator.served
        self._discovery = discovery.Discovery(self.resources, self.aggregator.versions)
        self._openapi = OpenApi(self._described, lambda: self._objects(_CRDS), self.aggregator.versions)
        self._build_verbs()
        self._observe()
        self._describe_metrics()

    def _make_policy_audit(self) -> policy_audit.PolicyAudit | None:
        settings = self.settings
        if settings.audit_policy is None or settings.audit_record is None:
            return None
        sensitive = [each for extension in settings.extensions for each in extension.sensitive_resources]
        return policy_audit.PolicyAudit(settings.audit_policy, settings.audit_record, self.clock, sensitive)

    @cached_property
    def outgoing(self) -> outgoing.Outgoing:
        """Made when first needed: most servers call nobody."""
        slices = self.state.collection("/registry/discovery.k8s.io/endpointslices")
        return outgoing.Outgoing(
            self._collection("services"), slices, self._collection("endpoints"), self.settings.dial
        )

    def _serve_builtin(self, resource: Resource, schemas: builtin_schemas.BuiltinSchemas) -> None:
        head = head_of(resource.storage_api_version, resource.kind)
        if convert.is_converted(resource):
            to_view, to_storage = partial(convert.from_storage, resource), partial(convert.to_storage, resource)
            self.state.serve(VersionView(resource, storage_head=head, to_view=to_view, to_storage=to_storage))
        else:
            self.state.serve(VersionView(resource, storage_head=head))
        kind = EventStrategy if resource.plural == "events" else Strategy
        self._strategies[(resource.group, resource.version, resource.plural)] = kind(resource, schemas)

    def _build_verbs(self) -> None:
        core = self._collection
        presenter = Presenter(self.clock, self._tasks)
        guard_of = self.state.guard if self._store.shared else None
        service_addresses = ServiceAddresses(
            core("services"),
            self.settings.service_cidr,
            addresses=self.state.collection(service_ranges.ADDRESSES),
            guard_of=guard_of,
        )
        self._service_ranges = service_ranges.ServiceRanges(self.state, service_addresses, self.call, self.clock)
        policies = PolicyAdmission(self.state, lambda *key: self._strategies.get(key), self.authorizer)
        # The order of admission: who may create here at all, what is filled in, what others have the last word on.
        self._admission = Admission(
            (
                NamespaceLifecycle(core("namespaces")),
                LimitRanges(core("limitranges")),
                ServiceAccounts(core("serviceaccounts")),
                DefaultTolerations(self.settings.toleration_seconds),
                Priorities(self.state.collection("/registry/scheduling.k8s.io/priorityclasses")),
                StorageAdmission(self.state.collection("/registry/storage.k8s.io/storageclasses")),
                RuntimeClasses(self.state.collection("/registry/node.k8s.io/runtimeclasses")),
                policies.mutate,
                self._definitions.admit,
                self._no_escalation,
                NodeRestriction(self.authorizer),
                self._admit_certificate_request,
                *(step for each in self.settings.extensions for step in each.admission(self.state, self.clock)),
                *(step for each in self.settings.extensions for step in each.authorization(self.authorizer)),
                service_addresses,
                policies.validate,
                Quotas(core("resourcequotas"), lambda attempt: self.state.collection(attempt.resource.key), guard_of),
            )
        )
        reader = ReadVerbs(self.state, presenter)
        self._watch = WatchVerb(self.state, presenter, reader, self._tasks)
        more = {key: text for each in self.settings.extensions for key, text in each.stored_only.items()}
        self._webhook_metrics = WebhookMetrics()
        self._webhooks = webhooks = WebhookRegistry(
            self.state,
            ReviewServices(
                lambda: self.outgoing,
                self._strategies,
                self._schemas,
                self.authorizer,
                core("namespaces"),
                self.clock,
                self._webhook_metrics,
            ),
        )
        writer = WriteVerbs(self.state, self._admission, presenter, self.clock, more, webhooks)
        deleter = DeleteVerbs(
            self.state,
            presenter,
            self._schemas["v1/DeleteOptions"],
            self.clock,
            webhooks,
            admit=policies.validate_request,
            by_kind={key: step for each in self.settings.extensions for key, step in each.deletion(self.state).items()},
        )
        subs = Subresources(writer, self._schemas, self.clock, webhooks, admit=policies.validate_request)
        budgets = self.state.collection("/registry/policy/poddisruptionbudgets")
        evictions = EvictionVerb(
            self.state,
            deleter,
            budgets,
            self._schemas["policy/v1/Eviction"],
            self.clock,
            webhooks,
            admit=policies.validate_request,
        )
        ownership = self.authorizer.ownership
        self._node_proxy = proxy = NodeProxy(
            core("nodes"),
            self._tasks,
            self.settings.agent_tls,
            [each.agent_verifier(self.state, self.clock) for each in self.settings.extensions if each.agent_verifier],
            owner_label=ownership.label if ownership is not None else "",
        )
        self._verbs: dict[str, Verb] = {
            "get": reader.get,
            "list": reader.list,
            "watch": self._watch.watch,
            "create": writer.create,
            "update": writer.update,
            "patch": writer.patch,
            "delete": deleter.delete,
            "deletecollection": deleter.delete_collection,
        }
        connecting, self._proxying = subs.connected(proxy.stream), subs.connected(self._proxy_http)
        self._sub_verbs: dict[tuple[str, str], Verb] = {
            ("status", "get"): reader.get,
            ("status", "update"): writer.update,
            ("status", "patch"): writer.patch,
            ("approval", "get"): reader.get,
            ("approval", "update"): writer.update,
            ("approval", "patch"): writer.patch,
            ("scale", "get"): subs.get_scale,
            ("scale", "update"): subs.put_scale,
            ("scale", "patch"): subs.patch_scale,
            ("binding", "create"): subs.bind,
            ("eviction", "create"): evictions.evict,
            ("ephemeralcontainers", "get"): reader.get,
            ("ephemeralcontainers", "update"): subs.put_ephemeral,
            ("ephemeralcontainers", "patch"): subs.patch_ephemeral,
            ("resize", "get"): reader.get,
            ("resize", "update"): writer.update,
            ("resize", "patch"): writer.patch,
            ("finalize", "update"): subs.finalize,
            ("token", "create"): self._request_token,
            ("log", "get"): self._log,
            ("exec", "get"): connecting,
            ("exec", "create"): connecting,
            ("attach", "get"): connecting,
            ("attach", "create"): connecting,
            ("portforward", "get"): connecting,
            ("portforward", "create"): connecting,
        }
        self._bind = subs.bind
        self._subresources = subs

    # Parts that are made when they are first asked for: what they need is loaded then.

    @cached_property
    def _http_proxy(self) -> http_proxy.HttpProxy:
        core = self._collection
        return http_proxy.HttpProxy(
            core("nodes"),
            core("pods"),
            core("services"),
            self.state.collection("/registry/discovery.k8s.io/endpointslices"),
            core("endpoints"),
            self._node_proxy,
            self._tasks,
            lambda: self.outgoing,
        )

    def _proxy_http(self, call: ResourceRequest) -> Response | Awaitable[Response]:
        return self._http_proxy.proxy(call)

    @cached_property
    def _log_search(self) -> pod_log_search.PodLogSearch:
        ownership = self.authorizer.ownership
        return pod_log_search.PodLogSearch(
            self._collection("nodes"),
            self._node_proxy,
            ownership.label if ownership is not None else "",
            self.settings.log_search,
        )

    def _log(self, call: ResourceRequest) -> Awaitable[Response]:
        if call.name == _EVERY_POD:
            return self._log_search.respond(call)
        return self._node_proxy.log(call)

    @cached_property
    def _usage(self) -> usage.UsageApi:
        return usage.UsageApi(self._collection("nodes"), self._collection("pods"), self._node_proxy, self.clock)

    @cached_property
    def _custom_metrics(self) -> custom_metrics.CustomMetricsApi:
        annotations = [pair for extension in self.settings.extensions for pair in extension.metrics_annotations]
        return custom_metrics.CustomMetricsApi(
            self._collection("nodes"), self._collection("pods"), self._node_proxy, self.clock, annotations
        )

    @cached_property
    def _certificate_admission(self) -> certificates.CertificateAdmission:
        return certificates.CertificateAdmission(self.authorizer, self.clock)

    def _admit_certificate_request(self, attempt: AdmissionRequest) -> None:
        if attempt.resource.group == CERTIFICATES:
            self._certificate_admission(attempt)

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the store, make the first objects, become ready. The store must be open."""
        self.state.revision = self._store.revision
        await self.state.load(_CRDS + "/")
        for definition in self.state.collection(_CRDS):
            self._definitions.serve(definition)
        count = await self.state.load(ROOT)
        await self.state.start()
        self._webhooks.refresh()
        self._loaded = True
        await self._renew_event_lease()
        await bootstrap.ensure(self.call, self.settings.extensions)
        if self.settings.authentication_info is not None:
            await bootstrap.ensure_authentication_info(self.call, self.settings.authentication_info)
        incomplete = [each.load() for each in self._collection("services") if b'"clusterIP":' not in each.raw]
        await bootstrap.complete_services(self.call, incomplete)
        await apiservices.reconcile(self.state, self.resources, self.clock)
        await self._service_ranges.reconcile()
        self._tasks.create_task(self._service_ranges.run(), name="apiserver service ranges")
        self.aggregator.start()
        self._tasks.create_task(self._housekeeping(), name="apiserver housekeeping")
        self._tasks.create_task(self._follow_catalogue(), name="apiserver catalogue")
        self.ready = True
        log.info("The API server is ready", objects=count, revision=self.state.revision)

    async def publish(self, address: str, port: int) -> None:
        """Tell where the API is reached, by the Service `default/kubernetes`; it is made again when somebody deletes it. A
        member of several tells it together with the others."""
        self._address = (address, port)
        first, own = str(ipaddress.IPv4Network(self.settings.service_cidr)[1]), bootstrap.ServerEndpoint(address, port)
        if self.settings.member is None:
            await bootstrap.ensure_own_service(self.call, first, [own])
            return
        if self._members is None:
            leases = partial(self._objects_of, "/registry/coordination.k8s.io/leases", members.NAMESPACE)
            self._members = members.ServerMembers(self.settings.member, own, first, self.call, leases, self.clock)
            await self._members.announce()
            self._tasks.create_task(self._members.run(), name="apiserver membership")
        else:
            await self._members.announce()

    async def leave(self) -> None:
        """Of a member that stops in order, while it still serves: the others know at once."""
        if self._members is not None:
            await self._members.leave()

    async def _publish_again(self) -> None:
        if self._address is not None and self._loaded:
            try:
                await self.publish(*self._address)
            except errors.ApiError as problem:
                log.warning("The Service of the API could not be made again", error=problem)

    def _own_service_deleted(self, changes: Sequence[StoredChange]) -> None:
        for change in changes:
            own = (change.entry.namespace, change.entry.name) == ("default", bootstrap.OWN_SERVICE)
            if own and change.kind == "DELETED" and self._address is not None and self._loaded:
                self._tasks.create_task(self._publish_again(), name="apiserver service")

    async def stop(self) -> None:
        self.ready = self._loaded = False
        self._watch.end_all()
        await self._tasks.cancel()
        self.state.close()

    async def _housekeeping(self) -> None:
        """Compaction and the lease of events, at their pace, for as long as the server lives."""
        compact_to = self.state.revision
        while True:
            await self.clock.sleep(self.settings.compact_every)
            target, compact_to = compact_to, self.state.revision
            try:
                if target > self._store.compacted:
                    await self._store.compact(target)
                await self._renew_event_lease()
            except StoreError as problem:
                log.error("Store compaction failed; trying again later", error=problem)

    async def _follow_catalogue(self) -> None:
        while True:
            await self._catalogue_event.wait()
            self._catalogue_event.clear()
            await apiservices.reconcile(self.state, self.resources, self.clock)

    async def _renew_event_lease(self) -> None:
        """Events written from now on share a new lease, so they end together, a while after they were written."""
        ttl = self.settings.event_ttl + self.settings.compact_every
        self._collection("events").lease = await self._store.grant(ttl)

    # -- requests -----------------------------------------------------------------------------------------------

    async def call(self, request: Request) -> Response:
        """`handle` for callers in this process who want to wait for the answer."""
        answer = self.handle(request)
        return answer if isinstance(answer, Response) else await answer

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        started = perf_counter()
        target = paths.parse(request.method, request.path)
        answer: Response | Awaitable[Response]
        try:
            if self._store.shared and target is not None and self._loaded:
                return self._finish(request, target, self._when_fresh(request, target), started)
            target, answer = self._dispatch(request, target)
        except (errors.ApiError, HttpProblem) as error:
            answer = status_response(error)
        if isinstance(answer, Response):
            if self._policy_audit is not None:
                self._policy_audit.answered(request, target, answer)
            answer = response_encoding.for_client(request, answer)
            self._answered(request, target, answer, started)
            return answer
        return self._finish(request, target, answer, started)

    async def _when_fresh(self, request: Request, target: paths.RequestInfo) -> Response:
        """Where other servers write too: answered, refused and decided on nothing older than the request."""
        version = request.param("resourceVersion") if request.method == "GET" and request.query else ""
        if version != "0":
            revision = int(version) if version.isdecimal() and len(version) <= _LONGEST_REVISION else 0
            await self.state.catch_up(revision)
        _, answer = self._dispatch(request, target)
        return answer if isinstance(answer, Response) else await answer

    def _dispatch(
        self, request: Request, target: paths.RequestInfo | None
    ) -> tuple[paths.RequestInfo | None, Response | Awaitable[Response]]:
        """What is asked for, as the query has it, and the answer."""
        if self._aggregated and (elsewhere := self.aggregator.find(request.path)) is not None:
            return self._aggregated_request(request, elsewhere)
        if target is None:
            return None, self._other_request(request)
        if "watch=" in request.query and target.verb in ("list", "get") and not target.subresource:
            target = _maybe_watch(request, target)
        return target, self._objects_request(request, target)

    async def _finish(
        self, request: Request, target: paths.RequestInfo | None, pending: Awaitable[Response], started: float
    ) -> Response:
        try:
            answer = await pending
        except (errors.ApiError, HttpProblem) as error:
            answer = status_response(error)
        except asyncio.CancelledError:
            # Nobody waits for the answer, but a write that was under way is done all the same.
            if self._policy_audit is not None:
                self._policy_audit.answered(request, target, Response(_CLIENT_LEFT))
            self._answered(request, target, Response(_CLIENT_LEFT), started)
            raise
        if self._policy_audit is not None:
            self._policy_audit.answered(request, target, answer)
        answer = response_encoding.for_client(request, answer)
        self._answered(request, target, answer, started)
        return answer

    def _answered(self, request: Request, target: paths.RequestInfo | None, answer: Response, started: float) -> None:
        seconds = perf_counter() - started
        if target is None:
            self.metrics.request(request.method.lower(), ("", "", ""), answer.status, seconds)
            return
        key = (target.group, target.version, target.resource, target.subresource)
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted_as(target)
            if counted[1] != "unknown" and counted[2] == target.subresource:
                self._counted[key] = counted
        self.metrics.request(target.verb, counted, answer.status, seconds)
        if request.user is not None and self.audit.wants(target.verb, target.subresource):
            self.audit.record(
                AuditEvent(
                    time=self.clock.now(),
                    user=request.user,
                    verb=target.verb,
                    path=request.path,
                    code=answer.status,
                    source=request.peer.address,
                    duration=seconds,
                    object=AuditObjectReference(
                        target.group, target.version, target.resource, target.subresource, target.namespace, target.name
                    ),
                    impersonator=request.impersonator,
                    user_agent=request.headers.get("user-agent", ""),
                    dry_run=request.param("dryRun") == "All",
                    annotations=request.annotations,
                )
            )

    def _counted_as(self, target: paths.RequestInfo) -> tuple[str, str, str]:
        """Group, resource and sub-resource of what exists; what does not exist must not grow the page of metrics."""
        key = (target.group, target.version, target.resource)
        view = self.state.view(*key)
        resource = view.resource if view is not None else self._virtual.get(key)
        if resource is None:
            return "", "unknown", ""
        known = not target.subresource or resource.subresource(target.subresource) is not None
        return target.group, target.resource, target.subresource if known else "unknown"

    def _user(self, request: Request) -> UserInfo:
        # Set only by callers inside this process: a connection makes requests without a user.
        user = request.user
        if user is None:
            user = request.user = self.authenticator.authenticate(request)
        return user

    def _authorized(self, request: Request, target: paths.RequestInfo) -> UserInfo:
        """Who asks, if that is allowed."""
        user = self._user(request)
        audit = self._policy_audit
        if audit is not None:
            audit.received(request, target)
        namespace, name = target.namespace, target.name
        if target.resource == "namespaces" and not target.group:
            # For rules a namespace lies in itself: who has rights in it may look at it.
            namespace = name
        if not name and target.verb in _SELECTING and "fieldSelector=metadata.name" in request.query:
            # Whoever may only see certain names may list and watch them by name.
            name = parse_field_selector(request.param("fieldSelector")).exact("metadata.name") or ""
        attributes = Attributes(target.verb, target.group, target.resource, target.subresource, namespace, "", name)
        if target.resource == "nodes" and target.verb in _SELECTING:
            attributes = attributes._replace(labels=request.param("labelSelector"))
        decision = self.authorizer.allowed(user, attributes)
        if audit is not None:
            audit.authorized(request, decision)
        if not decision.allowed:
            raise forbidden(user, attributes, decision.reason)
        return user

    def _aggregated_request(
        self, request: Request, version: AggregatedVersion
    ) -> tuple[paths.RequestInfo | None, Awaitable[Response]]:
        if not self._loaded:
            raise errors.ServiceUnavailable("the server is starting or stopping", retry_after=1)
        try:
            target = paths.parse_elsewhere(request.method, request.path)
        except ValueError as problem:
            raise errors.BadRequest(str(problem)) from problem
        endless = "upgrade" in request.headers
        if target is not None:
            if request.query and target.verb in ("list", "get") and not target.subresource:
                # As the other server reads it: there an empty value, among others, is true.
                watches = request.params.get("watch", ["false"])[0].lower() not in ("false", "0")
                target = target._replace(verb="watch") if watches else target
            endless = endless or target.verb == "watch"
            user = self._authorized(request, target)
        else:
            user = self._user(request)
            if self._policy_audit is not None:
                self._policy_audit.received(request, None)
            self._authorize_path(request, user)
        return target, self.aggregator.respond(request, version, user, endless=endless)

    def _objects_request(self, request: Request, target: paths.RequestInfo) -> Response | Awaitable[Response]:
        if not self._loaded:
            raise errors.ServiceUnavailable("the server is starting or stopping", retry_after=1)
        user = self._authorized(request, target)
        key = (target.group, target.version, target.resource)
        view = self.state.view(*key)
        if view is None:
            virtual = self._virtual.get(key)
            if virtual is None:
                raise _no_resource()
            return self._virtual_request(request, target, virtual, user)
        resource = view.resource
        if resource.namespaced != bool(target.namespace):
            if target.namespace or target.name:
                raise _no_resource()
            if target.verb not in ("list", "watch"):
                raise _not_allowed()
        if not target.subresource and target.verb in _NEEDS_NAME and _NEEDS_NAME[target.verb] != bool(target.name):
            raise _not_allowed()
        call = ResourceRequest(
            request, target, target.verb, view, self.state.collection(view.key), self._strategies[key], user
        )
        if target.subresource:
            sub = resource.subresource(target.subresource)
            if sub is None:
                raise _no_resource()
            if target.subresource == "proxy":
                return self._proxying(call)
            verb = self._sub_verbs.get((target.subresource, target.verb)) if target.verb in sub.verbs else None
        else:
            verb = self._verbs.get(target.verb) if target.verb in resource.verbs else None
        if verb is None:
            raise _not_allowed()
        gate = self.settings.write_gate
        if view.conversion is not None and target.verb in ("get", "list") and call.converts:
            answer: Response | Awaitable[Response] = conversion.read(call, verb)
        elif (
            gate is not None
            and is_write(target)
            and gate.wants(request.impersonator or user, target)
            and request.param("dryRun") != "All"
        ):
            answer = self._gated(gate, call, verb)
        else:
            answer = verb(call)
        if not view.warning:
            return answer
        header = warning_header(view.warning)
        return _with_header(answer, header) if isinstance(answer, Response) else _later_with_header(answer, header)

    @staticmethod
    async def _gated(gate: WriteGate, call: ResourceRequest, verb: Verb) -> Response:
        # Who really asks: acting as somebody else, such as a controller, must not hide it.
        await gate.before(call.request.impersonator or call.user, call.target, call.request.body)
        answer = verb(call)
        return answer if isinstance(answer, Response) else await answer

    def _other_request(self, request: Request) -> Response | Awaitable[Response]:
        user = self._user(request)
        if self._policy_audit is not None:
            self._policy_audit.received(request, None)
        path = request.path
        if path in _HEALTH or path.startswith(("/livez/", "/readyz/", "/healthz/")):
            return self._health(path)
        if self._authorize_path(request, user) != "get":
            raise errors.MethodNotAllowed("the server does not allow this method on the requested resource")
        if path.startswith("/openapi/"):
            elsewhere = self.aggregator.find(path.removeprefix("/openapi/v3")) if self._aggregated else None
            if elsewhere is not None and path == f"/openapi/v3{elsewhere.path}":
                return self.aggregator.respond(request, elsewhere, user, endless=False)
            return self._openapi.respond(request)
        if path.startswith("/api"):
            return self._discovery.respond(request)
        if path in ("/version", "/version/"):
            return _json(discovery.version_document())
        if path == "/metrics":
            return Response(200, self.metrics.render().encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/":
            return _json({"paths": list(_ROOT_PATHS)})
        signer = self.settings.signer
        if signer is not None and path == "/openid/v1/jwks":
            return Response(200, orjson.dumps(signer.key_set()), "application/jwk-set+json")
        if signer is not None and path == "/.well-known/openid-configuration":
            return _json(signer.discovery(f"{signer.issuer}/openid/v1/jwks"))
        raise _no_resource()

    def _authorize_path(self, request: Request, user: UserInfo) -> str:
        """For what is no object; returns the verb."""
        verb = request.method.lower() if request.method != "HEAD" else "get"
        attributes = Attributes(verb, path=request.path)
        decision = self.authorizer.allowed(user, attributes)
        if self._policy_audit is not None:
            self._policy_audit.authorized(request, decision)
        if not decision.allowed:
            raise forbidden(user, attributes, decision.reason)
        return verb

    def _health(self, path: str) -> Response:
        if path.startswith("/livez"):
            return Response(200, b"ok", "text/plain; charset=utf-8")
        if not self.ready:
            return Response(503, b"the server is starting or stopping\n", "text/plain; charset=utf-8")
        if self._store.away:
            return Response(503, b"the store is away: %b\n" % self._store.away.encode(), "text/plain; charset=utf-8")
        return Response(200, b"ok", "text/plain; charset=utf-8")

    # -- answers that are no stored objects ---------------------------------------------------------------------

    def _virtual_request(
        self, request: Request, target: paths.RequestInfo, resource: Resource, user: UserInfo
    ) -> Response | Awaitable[Response]:
        if resource.group == usage.GROUP:
            if target.verb not in resource.verbs or target.subresource:
                raise _not_allowed()
            return self._usage.respond(request, target, resource)
        if resource.group == custom_metrics.GROUP:
            if target.verb not in resource.verbs or not target.subresource:
                raise _not_allowed()
            return self._custom_metrics.respond(request, target)
        if resource.kind == "ComponentStatus" and target.verb in resource.verbs and not target.subresource:
            return component_status.respond(request, resource, target.name, self.ready, self.clock.now())
        if target.verb not in resource.verbs or target.name or target.subresource:
            raise _not_allowed()
        if resource.namespaced != bool(target.namespace):
            raise _no_resource()
        body = self._read(request, resource.kind, resource.schema_name)
        match resource.kind:
            case "SubjectAccessReview":
                answer = reviews.subject_access_review(body, self.authorizer)
            case "LocalSubjectAccessReview":
                answer = reviews.local_subject_access_review(body, self.authorizer, target.namespace)
            case "SelfSubjectAccessReview":
                answer = reviews.self_subject_access_review(body, self.authorizer, user)
            case "SelfSubjectRulesReview":
                answer = reviews.self_subject_rules_review(body, self.authorizer, user)
            case "SelfSubjectReview":
                answer = {**reviews.self_subject_review(body, user), "apiVersion": resource.api_version}
            case "TokenReview":
                answer = reviews.token_review(body, self.authenticator)
            case _:
                return self._bind_by_collection(request, target, body, user)
        return _json(answer, 201)

    def _bind_by_collection(
        self, request: Request, target: paths.RequestInfo, body: Object, user: UserInfo
    ) -> Response | Awaitable[Response]:
        """POST bindings: the older form of POST pods/x/binding."""
        metadata = body.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(name, str) or not name:
            raise errors.BadRequest("metadata.name: the pod to bind must be named")
        pods = ("", "v1", "pods")
        view = self.state.view(*pods)
        assert view is not None
        named = target._replace(resource="pods", name=name, subresource="binding")
        return self._bind(
            ResourceRequest(request, named, "create", view, self._collection("pods"), self._strategies[pods], user)
        )

    def _read(self, request: Request, kind: str, schema_name: str) -> Object:
        return bodies.read_kind(request.body, request.headers.get("content-type", ""), kind, self._schemas[schema_name])

    async def _request_token(self, call: ResourceRequest) -> Response:
        signer = self.settings.signer
        if signer is None:
            raise errors.ServiceUnavailable("this server was started without a key to sign service-account tokens")
        body = self._read(call.request, "TokenRequest", "authentication.k8s.io/v1/TokenRequest")
        body = await self._subresources.reviewed(call, body, ("authentication.k8s.io", "v1", "TokenRequest"))
        account = call.entry().load()
        check_token_request(self.authorizer, call.user, call.namespace, call.name, body)
        return _json(request_token(body, account, signer, self._lookups, self.clock.now()), 201)

    def _no_escalation(self, attempt: AdmissionRequest) -> None:
        """Nobody can hand out rights that he does not have himself."""
        if attempt.resource.group != "rbac.authorization.k8s.io" or attempt.subresource:
            return
        if attempt.resource.plural in ("roles", "clusterroles"):
            grants.check_role(self.authorizer, attempt.user, attempt.obj, attempt.old)
        else:
            grants.check_binding(self.authorizer, attempt.user, attempt.obj, attempt.old)

    # -- state --------------------------------------------------------------------------------------------------

    def resources(self) -> Sequence[Resource]:
        """Everything that is served, for discovery."""
        virtual = [resource for resource in self._virtual.values() if resource is not CUSTOM_METRICS]
        return [*virtual, *(view.resource for view in self.state.views())]

    def _described(self) -> Sequence[Resource]:
        """Everything that has a schema."""
        return [resource for resource in self.resources() if resource.group != usage.GROUP]

    def _collection(self, plural: str) -> Collection:
        return self.state.collection(f"/registry/core/{plural}")

    def _objects(self, key: str) -> list[Object]:
        return [entry.load() for entry in self.state.collection(key)]

    def _objects_of(self, key: str, namespace: str) -> list[Object]:
        return [entry.load() for entry in self.state.collection(key) if entry.namespace == namespace]

    def _finder(self, plural: str) -> Callable[[str, str], Object | None]:
        collection = self._collection(plural)

        def find(namespace: str, name: str) -> Object | None:
            entry = collection.get(namespace, name)
            return entry.load() if entry is not None else None

        return find

    def _observe(self) -> None:
        for plural in ("roles", "rolebindings", "clusterroles", "clusterrolebindings"):
            self.state.observe(_RBAC + plural, lambda _: self.authorizer.invalidate())
        self.state.observe(_CRDS, self._definitions.observe)
        self.state.observe(apiservices.KEY, self._registrations_changed)
        self.state.observe("/registry/core/services", self.aggregator.observe_services)
        for key in ("core/services", "core/endpoints", "discovery.k8s.io/endpointslices"):
            self.state.observe(f"{ROOT}{key}", self._own_service_deleted)
        self.state.observe("/registry/discovery.k8s.io/endpointslices", self.aggregator.observe_slices)
        for kind, plural in (("ServiceAccount", "serviceaccounts"), ("Secret", "secrets"), ("Pod", "pods"), ("Node", "nodes")):  # fmt: skip
            self.state.observe(f"/registry/core/{plural}", self._forget_tokens(kind))

    def _forget_tokens(self, kind: str) -> Callable[[Sequence[StoredChange]], None]:
        def forget(changes: Sequence[StoredChange]) -> None:
            for change in changes:
                if change.kind != "ADDED":
                    self.authenticator.invalidate(kind, change.entry.namespace, change.entry.name)

        return forget

    def _registrations_changed(self, changes: Sequence[StoredChange]) -> None:
        self.aggregator.observe(changes)
        if any(change.kind == "DELETED" for change in changes):
            self._catalogue_event.set()  # what is served here is registered again

    def _discovery_changed(self) -> None:
        self._discovery.invalidate()
        self._openapi.invalidate()

    def _catalogue_changed(self) -> None:
        self._webhooks.refresh()
        self._discovery_changed()
        self._catalogue_event.set()

    def _describe_metrics(self) -> None:
        gauge = self.metrics.gauge
        gauge(
            "apiserver_storage_objects",
            "Objects stored, by resource.",
            lambda: [(f'resource="{c.key.removeprefix(ROOT)}"', len(c)) for c in self.state.collections()],
        )
        gauge("apiserver_longrunning_requests", "Watches under way.", lambda: [('verb="watch"', self._watch.count)])
        self._webhook_metrics.describe(self.metrics)
        gauge("coterie_store_revision", "Newest revision of the store.", lambda: [("", self.state.revision)])
        gauge("coterie_store_compacted_revision", "History below is gone.", lambda: [("", self._store.compacted)])


def _groups_of(extensions: Iterable[ApiServerExtension]) -> set[str]:
    """Groups of the kinds that a product brings."""
    sources = [each.definitions for each in extensions if each.definitions is not None]
    return {name.partition(".")[2] for source in sources for name in source.hashes()}


def _maybe_watch(request: Request, target: paths.RequestInfo) -> paths.RequestInfo:
    """Only the query tells a watch from a list; a watch of one name is a watch with that name as filter."""
    return target._replace(verb="watch") if options.boolean(request, "watch") else target


def _with_header(answer: Response, header: tuple[str, str]) -> Response:
    return replace(answer, headers=[*answer.headers, header])


async def _later_with_header(pending: Awaitable[Response], header: tuple[str, str]) -> Response:
    return _with_header(await pending, header)


def _json(obj: Object, status: int = 200) -> Response:
    return Response(status, orjson.dumps(obj) + b"\n")


def _no_resource() -> errors.NotFound:
    return errors.NotFound("the server could not find the requested resource")


def _not_allowed() -> errors.MethodNotAllowed:
    return errors.MethodNotAllowed("the server does not allow this method on the requested resource")
