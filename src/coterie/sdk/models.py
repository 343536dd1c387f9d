"""What goes to the API and comes from it, as plain data with the API's own names.

A field without a value is empty, as in protobuf; nothing here is ever `None` but parts that may be missing as a whole.
What the API says beyond this is ignored, so an SDK may be older than the node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from coterie.sdk.errors import JobEnded, Unreachable

T = TypeVar("T")
Text = Mapping[str, str]
ENDED = frozenset(("Succeeded", "Failed", "Cancelled", "ApprovalReject"))
"""States of a job that does nothing any more."""


def read(kind: type[T], value: Any) -> T:
    """Numbers of 64 bits come as text."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as problem:
        raise Unreachable(f"the answer is not as KusciaAPI has it: {problem}") from problem


def to_request(value: Any) -> Any:
    """What has no value need not be said."""
    plain = msgspec.to_builtins(value)
    return _without_nothing(plain)


def _without_nothing(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nothing(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nothing(each) for each in value]
    return value


# Dry runs.


@dataclass(frozen=True, slots=True)
class PlannedApproval:
    verdict: str = ""
    """`Allow`, `Ask` or `Refuse`; empty: none is needed."""
    by: str = ""
    rules: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    task: str = ""
    table: str = ""
    columns: tuple[str, ...] = ()
    all_columns: bool = False
    grant: str = ""
    uses: int = 0
    counted: bool = False
    """Whether uses of the grant are counted, and `uses_left` says something."""
    uses_left: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    task: str = ""
    app_image: str = ""
    version: str = ""
    digest: str = ""
    offered_versions: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PlannedPlacement:
    task: str = ""
    role: str = ""
    pods: int = 0
    fits: bool = False
    nodes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PlannedLink:
    peer: str = ""
    ready: bool = False
    requested: str = ""
    capacity: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PlannedParty:
    domain_id: str = ""
    phase: str = ""
    message: str = ""
    outlook: str = ""
    detail: str = ""
    approval: PlannedApproval | None = None
    tables: tuple[PlannedTable, ...] = ()
    engines: tuple[PlannedEngine, ...] = ()
    placements: tuple[PlannedPlacement, ...] = ()
    links: tuple[PlannedLink, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What would become of a job."""

    outlook: str = ""
    """`Runs`, `Waits`, `Fails` or `Unknown`: the worst of all parties."""
    message: str = ""
    parties: tuple[PlannedParty, ...] = ()

    @property
    def runs(self) -> bool:
        return self.outlook == "Runs"

    def party(self, domain: str) -> PlannedParty:
        """KeyError for who does not take part."""
        found = {each.domain_id: each for each in self.parties}
        return found[domain]


# Jobs.


@dataclass(frozen=True, slots=True)
class Resources:
    """Both what is asked for and the limit: `Resources(cpu="2", memory="4Gi", bandwidth="100")`."""

    cpu: str = ""
    memory: str = ""
    bandwidth: str = ""


@dataclass(frozen=True, slots=True)
class BandwidthLimit:
    destination_id: str
    limit_kbps: int


@dataclass(frozen=True, slots=True)
class Party:
    domain_id: str
    role: str = ""
    resources: Resources | None = None
    bandwidth_limits: tuple[BandwidthLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    task_timeout_seconds: int = 0
    resource_reserved_seconds: int = 0
    resource_reallocation_interval_seconds: int = 0
    stall_seconds: int = 0
    """A task whose engines are idle at all parties for so long is ended. Coterie's, as are the next ones."""
    stall_action: str = ""
    """`Fail` or `Restart`; empty: the first."""
    retry_count: int = 0
    """How often a task that failed is begun again at most."""
    retry_backoff_seconds: int = 0
    """The pause before the first retry; each further one is twice as long."""


@dataclass(frozen=True, slots=True)
class Task:
    """One engine at several parties: `Task("psi", [Party("alice"), Party("bob")], alias="psi")`."""

    app_image: str = ""
    parties: Sequence[Party] = ()
    alias: str = ""
    task_id: str = ""
    dependencies: Sequence[str] = ()
    task_input_config: str = ""
    priority: int = 0
    schedule_config: Schedule | None = None
    tolerable: bool = False
    bandwidth_request: str = ""
    """What each party needs on its nodes and on the link to each other party: `100Mbps`."""

    @classmethod
    def of(
        cls,
        engine: str,
        parties: Sequence[str | Party],
        input: object = "",
        *,
        alias: str = "",
        after: Sequence[str] = (),
    ) -> Task:
        """In few words. `input` that is not text becomes JSON; `after`: aliases of tasks that must have succeeded."""
        return cls(
            app_image=engine,
            parties=[Party(each) if isinstance(each, str) else each for each in parties],
            alias=alias or engine,
            dependencies=tuple(after),
            task_input_config=input if isinstance(input, str) else json.dumps(input),
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    port_name: str = ""
    scope: str = ""
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class PartyStatus:
    domain_id: str = ""
    state: str = ""
    err_msg: str = ""
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """An attempt at a task that failed."""

    attempt: int = 0
    start_time: str = ""
    end_time: str = ""
    reason: str = ""
    err_msg: str = ""
    retry_time: str = ""
    """When the next attempt begins; empty: it was the last."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    task_id: str = ""
    alias: str = ""
    state: str = ""
    err_msg: str = ""
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    progress: float = 0
    parties: tuple[PartyStatus, ...] = ()
    waiting_since: str = ""
    stalled: bool = False
    attempts: tuple[AttemptStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class DomainState:
    domain_id: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    state: str = ""
    err_msg: str = ""
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    tasks: tuple[TaskStatus, ...] = ()
    stage_status_list: tuple[DomainState, ...] = ()
    approve_status_list: tuple[DomainState, ...] = ()
    waiting_since: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is now: what was asked for, and how far it is."""

    job_id: str = ""
    initiator: str = ""
    max_parallelism: int = 0
    tasks: Sequence[Task] = ()
    status: JobStatus = field(default_factory=JobStatus)
    custom_fields: Text = field(default_factory=dict)

    @property
    def state(self) -> str:
        return self.status.state

    @property
    def error(self) -> str:
        """Why it failed; empty when it did not."""
        return self.status.err_msg

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def succeeded(self) -> bool:
        return self.state == "Succeeded"

    def task(self, alias: str) -> TaskStatus:
        """How far one task is; KeyError when the job has none of that name."""
        for each in self.status.tasks:
            if each.alias == alias:
                return each
        raise KeyError(alias)

    def check(self) -> Job:
        """The job itself when it succeeded; raises JobEnded otherwise."""
        if not self.succeeded:
            why = f": {self.error}" if self.error else ""
            raise JobEnded(f"job {self.job_id} is {self.state}{why}", self)
        return self


@dataclass(frozen=True, slots=True)
class JobEvent:
    """`type`: ADDED, MODIFIED, DELETED or ERROR."""

    type: str
    job_id: str
    status: JobStatus


# Domains and routes.


@dataclass(frozen=True, slots=True)
class NodeStatus:
    name: str = ""
    status: str = ""
    version: str = ""
    last_heartbeat_time: str = ""
    last_transition_time: str = ""


@dataclass(frozen=True, slots=True)
class DeployToken:
    token: str = field(default="", repr=False)
    state: str = ""
    last_transition_time: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    domain_id: str = ""
    role: str = ""
    cert: str = field(default="", repr=False)
    master_domain_id: str = ""
    annotations: Text = field(default_factory=dict)
    node_statuses: tuple[NodeStatus, ...] = ()
    deploy_token_statuses: tuple[DeployToken, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutePort:
    port: int = 0
    name: str = "http"
    protocol: str = "HTTP"
    isTLS: bool = False
    path_prefix: str = ""


@dataclass(frozen=True, slots=True)
class RouteEndpoint:
    host: str = ""
    ports: Sequence[RoutePort] = ()


@dataclass(frozen=True, slots=True)
class TransitDomain:
    domain_id: str = ""


@dataclass(frozen=True, slots=True)
class Transit:
    transit_method: str = ""
    domain: TransitDomain | None = None


@dataclass(frozen=True, slots=True)
class RouteStatus:
    status: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A way from `source` to `destination`: calls go to `endpoint`, the destination's gateway."""

    source: str = ""
    destination: str = ""
    endpoint: RouteEndpoint | None = None
    authentication_type: str = "Token"
    token_config: Mapping[str, Any] | None = None
    mtls_config: Mapping[str, Any] | None = field(default=None, repr=False)
    transit: Transit | None = None
    body_encryption: Mapping[str, str] | None = None
    name: str = ""
    status: RouteStatus | None = None

    @property
    def ready(self) -> bool:
        return self.status is not None and self.status.status == "Succeeded"


# Data.


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    comment: str = ""
    not_nullable: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    type: str = ""
    fields: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Data:
    """A table, model or report of a domain: `Data("t", relative_uri="t.csv", columns=[Column("id", "str")])`."""

    domaindata_id: str = ""
    name: str = ""
    type: str = "table"
    relative_uri: str = ""
    domain_id: str = ""
    datasource_id: str = ""
    attributes: Text = field(default_factory=dict)
    partition: Partition | None = None
    columns: Sequence[Column] = ()
    vendor: str = ""
    status: str = ""
    author: str = ""
    file_format: str = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Source:
    """Where data lies. `info` holds passwords, so it is not printed."""

    type: str = ""
    datasource_id: str = ""
    domain_id: str = ""
    name: str = ""
    info: Mapping[str, Any] | None = field(default=None, repr=False)
    info_key: str = ""
    access_directly: bool = False
    status: str = ""


@dataclass(frozen=True, slots=True)
class GrantLimit:
    """`expiration_time`: nanoseconds since 1970."""

    expiration_time: int = 0
    use_count: int = 0
    flow_id: str = ""
    components: Sequence[str] = ()
    initiator: str = ""
    input_config: str = ""


@dataclass(frozen=True, slots=True)
class GrantUse:
    use_time: int = 0
    grant_domain: str = ""
    component: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class GrantStatus:
    phase: str = ""
    message: str = ""
    records: tuple[GrantUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """Lets the domain `grant_domain` use a table in its jobs."""

    domaindata_id: str = ""
    grant_domain: str = ""
    limit: GrantLimit | None = None
    domaindatagrant_id: str = ""
    domain_id: str = ""
    description: Text = field(default_factory=dict)
    author: str = ""
    signature: str = ""
    status: GrantStatus | None = None


# Services, images, keys.


@dataclass(frozen=True, slots=True)
class UpdateStrategy:
    type: str = ""
    max_surge: str = ""
    max_unavailable: str = ""


@dataclass(frozen=True, slots=True)
class ContainerResources:
    container_name: str = ""
    min_cpu: str = ""
    max_cpu: str = ""
    min_memory: str = ""
    max_memory: str = ""


@dataclass(frozen=True, slots=True)
class ServingParty:
    domain_id: str = ""
    app_image: str = ""
    role: str = ""
    replicas: int | None = None
    update_strategy: UpdateStrategy | None = None
    resources: Sequence[ContainerResources] = ()
    service_name_prefix: str = ""


@dataclass(frozen=True, slots=True)
class ServingPartyStatus:
    domain_id: str = ""
    role: str = ""
    state: str = ""
    replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    updatedReplicas: int = 0
    create_time: str = ""
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class ServingStatus:
    state: str = ""
    reason: str = ""
    message: str = ""
    total_parties: int = 0
    available_parties: int = 0
    create_time: str = ""
    party_statuses: tuple[ServingPartyStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Serving:
    """An online service of several parties."""

    serving_id: str = ""
    serving_input_config: str = ""
    initiator: str = ""
    parties: Sequence[ServingParty] = ()
    affinity_mode: str = ""
    status: ServingStatus | None = None


@dataclass(frozen=True, slots=True)
class ImageName:
    name: str = ""
    tag: str = ""
    id: str = ""
    sign: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """An engine that tasks can name. `deploy_templates`: as the API has them."""

    name: str = ""
    image: ImageName | None = None
    config_templates: Text = field(default_factory=dict)
    deploy_templates: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class KeyAndCertificates:
    """`key` and each of `cert_chain` are PEM; the first certificate is that of the key."""

    key: str = field(repr=False)
    cert_chain: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartnerLog:
    """A request for log lines of a partner."""

    request_id: str
    requester_id: str = ""
    owner_id: str = ""
    job_id: str = ""
    task_alias: str = ""
    reason: str = ""
    phase: str = ""
    """Pending, AwaitingApproval, Answered, Rejected, Revoked, Withdrawn or Expired."""
    message: str = ""
    expire_time: str = ""
    decided_by: str = ""
    digest: str = ""
    """SHA-256 of the text."""
    text: str = ""
    lines: int = 0
    redactions: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event of the evidence log."""

    index: int = 0
    time: str = ""
    """Empty: the content was removed by retention."""
    kind: str = ""
    job_id: str = ""
    task_id: str = ""
    parties: tuple[str, ...] = ()
    who: str = ""
    """The person, or the beginning of the commitment where the salt was erased."""
    about: str = ""
    content: str = ""
    """All fields, as JSON."""


@dataclass(frozen=True, slots=True)
class EvidencePage:
    origin: str = ""
    size: int = 0
    """Events of the log."""
    events: tuple[RecordedEvent, ...] = ()
    """The newest first."""


@dataclass(frozen=True, slots=True)
class EvidenceText:
    """A proof or a file, for `coterie audit verify` or another program."""

    content: str = ""
    log_key: str = ""
    """The key of the log: name+id+base64."""


@dataclass(frozen=True, slots=True)
class EvidenceState:
    origin: str = ""
    log_key: str = ""
    logs: tuple[int, ...] = ()
    size: int = 0
    signed_size: int = 0
    """Events below the last checkpoint."""
    checkpoint: str = ""
    """The last one, with its cosignatures."""
    fault: str = ""
    """What is wrong, where it was verified."""
    verified: bool = False


@dataclass(frozen=True, slots=True)
class BandwidthOfNode:
    """In bits per second, as everything about bandwidth."""

    name: str = ""
    total_bits: int = 0
    allocatable_bits: int = 0
    reserved_bits: int = 0
    used_bits: int = 0
    available_bits: int = 0


@dataclass(frozen=True, slots=True)
class BandwidthOfLink:
    peer_id: str = ""
    capacity_bits: int = 0
    """0: nobody said one."""
    reserved_bits: int = 0
    sent_bits: int = 0
    received_bits: int = 0


@dataclass(frozen=True, slots=True)
class BandwidthOfTask:
    task_id: str = ""
    peer_id: str = ""
    reserved_bits: int = 0
    sent_bits: int = 0
    received_bits: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    limit_bits: int = 0


@dataclass(frozen=True, slots=True)
class BandwidthFigures:
    domain_id: str = ""
    nodes: tuple[BandwidthOfNode, ...] = ()
    links: tuple[BandwidthOfLink, ...] = ()
    tasks: tuple[BandwidthOfTask, ...] = ()


@dataclass(frozen=True, slots=True)
class PodNode:
    node_name: str = ""
    node_ip: str = ""


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """One line that `logs.search` found."""

    at: str = ""
    source: str = ""
    domain_id: str = ""
    job_id: str = ""
    task_id: str = ""
    pod: str = ""
    container: str = ""
    node: str = ""
    level: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class LoggedLines:
    lines: tuple[LoggedLine, ...] = ()
    """Oldest first."""
    cursor: str = ""
    """For the lines before these; empty when there are none."""
    notes: tuple[str, ...] = ()
    """What could not be searched."""
