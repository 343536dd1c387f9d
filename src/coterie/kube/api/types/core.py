"""Read models of the core group: what the control kit and the first controllers look at, and no more."""

from __future__ import annotations

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.types.kind import Kind, builtin


class NamespaceSpec(Model, frozen=True, kw_only=True):
    finalizers: tuple[str, ...] | None = None


class NamespaceStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[Condition, ...] | None = None


class Namespace(ApiObject, frozen=True, kw_only=True):
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()

    @property
    def active(self) -> bool:
        return not self.metadata.deleting and self.status.phase in ("", "Active")


class ConfigMap(ApiObject, frozen=True, kw_only=True):
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None
    immutable: bool = False


class Secret(ApiObject, frozen=True, kw_only=True):
    """Values are base64 text, as on the wire."""

    type: str = ""
    data: dict[str, str] | None = None
    immutable: bool = False

    def __repr__(self) -> str:
        return f"Secret({self.key}, type={self.type!r}, keys={sorted(self.data or ())})"


class ObjectReference(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class ServiceAccount(ApiObject, frozen=True, kw_only=True):
    secrets: tuple[ObjectReference, ...] | None = None
    automount_service_account_token: bool | None = None


class EventSource(Model, frozen=True, kw_only=True):
    component: str = ""
    host: str = ""


class Event(ApiObject, frozen=True, kw_only=True):
    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    action: str = ""
    source: EventSource = EventSource()
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


class ScopeSelectorRequirement(Model, frozen=True, kw_only=True):
    scope_name: str
    operator: str
    values: tuple[str, ...] | None = None


class ScopeSelector(Model, frozen=True, kw_only=True):
    match_expressions: tuple[ScopeSelectorRequirement, ...] | None = None


class ResourceQuotaSpec(Model, frozen=True, kw_only=True):
    hard: dict[str, str | int | float] | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Model, frozen=True, kw_only=True):
    hard: dict[str, str | int | float] | None = None
    used: dict[str, str | int | float] | None = None


class ResourceQuota(ApiObject, frozen=True, kw_only=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


NAMESPACES = Kind(builtin("namespaces"), Namespace)
CONFIG_MAPS = Kind(builtin("configmaps"), ConfigMap)
SECRETS = Kind(builtin("secrets"), Secret)
SERVICE_ACCOUNTS = Kind(builtin("serviceaccounts"), ServiceAccount)
EVENTS = Kind(builtin("events"), Event)
RESOURCE_QUOTAS = Kind(builtin("resourcequotas"), ResourceQuota)
