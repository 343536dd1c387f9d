"""`coterie.io/v1alpha1` Action, Trigger, ActionGrant and DeadLetter as programs read them; the definitions are in `definitions/crds`."""

from __future__ import annotations

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import QuantityText

GROUP, VERSION = "coterie.io", "v1alpha1"
ACTION_LABEL = "coterie.io/action"
"""Of an actor's pod, and of the ConfigMaps with an action's code: the name of the action."""
VERSION_LABEL = "coterie.io/action-version"
ACTOR_PORT = 6811
"""Where an actor listens in its pod."""
GATEWAY_NAME = "serverless-gateway"
"""Of the gateway's Service, Deployment and autoscaler."""
GATEWAY_PORT = 6810
LINK_PORT = 6812
"""Where a gateway's pod listens for the functions process."""
DEFAULT_IMAGE = "coterie-actor"
DEFAULT_HANDLER = "action.action"
"""Module and function, as in the seed: a script is the module `action`."""

LOAD, CALLS_PER_MINUTE = "Load", "CallsPerMinute"
"""Policies of scaling."""
READY, RELOAD_FAILED = "Ready", "ReloadFailed"
"""Conditions of an Action."""


class ActionVariable(Model, frozen=True, kw_only=True):
    name: str
    value: str = ""


class Scaling(Model, frozen=True, kw_only=True):
    policy: str = LOAD
    min_replicas: int = 0
    max_replicas: int = 5
    idle_seconds: int = 60


class Retries(Model, frozen=True, kw_only=True):
    """Of calls whose actor crashed or ran out of time; what the code itself raises is answered at once."""

    limit: int = 3
    first_delay_milliseconds: int = 200


class TrafficShare(Model, frozen=True, kw_only=True):
    version: str
    percent: int


class ActionResources(Model, frozen=True, kw_only=True):
    cpu: QuantityText | None = None
    memory: QuantityText | None = None


class ActionSpec(Model, frozen=True, kw_only=True):
    script: str = ""
    archive: str = ""
    """Base64 of a .tar.gz or .zip."""
    handler: str = DEFAULT_HANDLER
    image: str = DEFAULT_IMAGE
    command: tuple[str, ...] | None = None
    """Of images that speak the actor protocol themselves (docs/guide/functions.md)."""
    next: tuple[str, ...] | None = None
    """Actions that this one may call: `name`, or `partner/name`."""
    timeout_seconds: int = 30
    concurrency: int = 1
    scaling: Scaling = Scaling()
    retries: Retries = Retries()
    env: tuple[ActionVariable, ...] | None = None
    resources: ActionResources = ActionResources()
    tables: tuple[str, ...] | None = None
    """DomainDatas of ours that it may read in calls of our own. Calls of partners read what their ActionGrants say."""
    traffic: tuple[TrafficShare, ...] | None = None
    """Empty: all calls go to the newest version."""
    version_history_limit: int = 10

    @property
    def targets(self) -> tuple[str, ...]:
        return self.next or ()


class ActionVersion(Model, frozen=True, kw_only=True):
    name: str
    """`v` and 10 hex digits of the code's SHA-256."""
    created: str = ""
    percent: int = 0
    replicas: int = 0


class ActionStatus(Model, frozen=True, kw_only=True):
    observed_generation: int = 0
    version: str = ""
    """The newest."""
    versions: tuple[ActionVersion, ...] | None = None
    desired_replicas: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    calls_per_minute: int = 0
    errors_per_minute: int = 0
    cold_starts: int = 0
    dead_letters: int = 0
    last_scale_time: str | None = None
    conditions: tuple[Condition, ...] | None = None


class Action(ApiObject, frozen=True, kw_only=True):
    spec: ActionSpec = ActionSpec()
    status: ActionStatus = ActionStatus()


class HttpTrigger(Model, frozen=True, kw_only=True):
    path: str
    methods: tuple[str, ...] | None = None
    """Empty: all."""
    key: str = ""
    """Name of the query parameter whose value orders calls: calls with the same value run one after the other."""


class DomainDataTrigger(Model, frozen=True, kw_only=True):
    name: str = ""
    """Empty: all tables of the domain."""


class TriggerSpec(Model, frozen=True, kw_only=True):
    action: str
    http: HttpTrigger | None = None
    schedule: str = ""
    """Cron, five fields, UTC."""
    topic: str = ""
    """Of the bus: each record is a call."""
    domain_data: DomainDataTrigger | None = None
    params: dict[str, str] | None = None
    """Of calls by schedule, topic and DomainData."""
    suspend: bool = False


class TriggerStatus(Model, frozen=True, kw_only=True):
    observed_generation: int = 0
    last_call_time: str | None = None
    conditions: tuple[Condition, ...] | None = None


class Trigger(ApiObject, frozen=True, kw_only=True):
    spec: TriggerSpec
    status: TriggerStatus = TriggerStatus()


class ActionGrantLimit(Model, frozen=True, kw_only=True):
    calls: int | None = None
    """In all."""
    calls_per_minute: int | None = None
    expiration_time: str | None = None


class ActionGrantSpec(Model, frozen=True, kw_only=True):
    action: str
    grant_domain: str
    """The partner who may call."""
    limit: ActionGrantLimit = ActionGrantLimit()
    tables: tuple[str, ...] | None = None
    """DomainDatas of ours that the action may read for this partner; each needs a DomainDataGrant to it."""
    max_body_bytes: int = 1 << 20


class ActionGrantStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    message: str = ""
    uses: int = 0
    last_use_time: str | None = None
    use_records: tuple[dict[str, str], ...] | None = None


class ActionGrant(ApiObject, frozen=True, kw_only=True):
    spec: ActionGrantSpec
    status: ActionGrantStatus = ActionGrantStatus()


class DeadLetterSpec(Model, frozen=True, kw_only=True):
    """A call that was given up. Its content stays on the bus."""

    action: str
    request: str
    reason: str = ""
    attempts: int = 0
    size: int = 0
    content_type: str = ""
    time: str = ""
    replay: bool = False
    """Set by a person: the call goes back to the action, and the object is removed. Deleting the object drops the call."""


class DeadLetter(ApiObject, frozen=True, kw_only=True):
    spec: DeadLetterSpec


def _kind(plural: str, kind: str, short: tuple[str, ...] = ()) -> Resource:
    return Resource(GROUP, VERSION, plural, kind, True, singular=kind.lower(), custom=True, short_names=short)


ACTIONS = Kind(_kind("actions", "Action"), Action)
TRIGGERS = Kind(_kind("triggers", "Trigger"), Trigger)
ACTION_GRANTS = Kind(_kind("actiongrants", "ActionGrant"), ActionGrant)
DEAD_LETTERS = Kind(_kind("deadletters", "DeadLetter"), DeadLetter)
