"""Actions, Triggers and ActionGrants at the API server: what their schema cannot say.

An action is refused when it names an action that does not exist, when the declared calls would form a cycle, when its archive cannot be
unpacked safely, or when its traffic names unknown versions. Code that Python cannot load is refused when the action is created; in an
update it is a warning, because the actors go on with the code they have and the Action says so (condition ReloadFailed).

In the namespace of a lite, or of a partner, nobody would run them: they are refused, as are lites in `next` and as grantees. So they are where no
node of the domain has a network for pods: actors listen at a fixed port of addresses of their own.

What is being written is held until it is in the store: of two writes that together form a cycle the second is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import FieldError, Forbidden, invalid_object
from coterie.kube.api.meta import Model, Object
from coterie.kube.api.types.nodes import NETWORK_UNAVAILABLE, SHARED_NETWORK
from coterie.kube.apiserver.admission.chain import AdmissionRequest, Step
from coterie.kube.apiserver.state.collection import Collection
from coterie.kuscia.api.domain_ownership import is_partner_lite
from coterie.kuscia.api.functions import graph, rules
from coterie.kuscia.api.functions.partners import declared_partners
from coterie.kuscia.api.functions.types import (
    ACTION_GRANTS,
    ACTIONS,
    GROUP,
    TRIGGERS,
    ActionGrantSpec,
    ActionSpec,
    HttpTrigger,
    TriggerSpec,
)
from coterie.kuscia.api.labels import KUSCIA_NODE_NAMESPACE
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.extensions.agent_trust import DOMAINS_KEY
from coterie.kuscia.extensions.job_approvals import CONTROLLERS

if TYPE_CHECKING:
    from coterie.base import archives
    from coterie.kuscia.api.functions import code
else:
    # Reading archives and Python source is seldom needed.
    archives = lazy_import("coterie.base.archives")
    code = lazy_import("coterie.kuscia.api.functions.code")

ACTIONS_KEY: Final = f"/registry/{GROUP}/actions"
DOMAIN_DATAS_KEY: Final = "/registry/kuscia.secretflow/domaindatas"
NODES_KEY: Final = "/registry/core/nodes"
TRIGGERS_KEY: Final = f"/registry/{GROUP}/triggers"

LITES: Final = "functions run in domains with a control plane of their own (mode autonomy)"

FindCollection = Callable[[str], Collection | None]
S = TypeVar("S", bound=Model)
V = TypeVar("V")


class _Edges(msgspec.Struct):
    next: list[str] | None = None


class _StoredMeta(msgspec.Struct, rename="camel"):
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class _StoredAction(msgspec.Struct):
    """As little as is needed: an action may hold a megabyte of code."""

    metadata: _StoredMeta
    spec: _Edges = msgspec.field(default_factory=_Edges)


class _StoredTriggerSpec(msgspec.Struct):
    action: str = ""
    http: HttpTrigger | None = None


class _StoredTrigger(msgspec.Struct):
    spec: _StoredTriggerSpec = msgspec.field(default_factory=_StoredTriggerSpec)


class _StoredCondition(msgspec.Struct):
    type: str = ""
    reason: str = ""


class _StoredNodeStatus(msgspec.Struct):
    conditions: list[_StoredCondition] | None = None


class _StoredNode(msgspec.Struct):
    metadata: _StoredMeta
    status: _StoredNodeStatus = msgspec.field(default_factory=_StoredNodeStatus)


_read_action = msgspec.json.Decoder(_StoredAction).decode
_read_domain = msgspec.json.Decoder(Domain).decode
_read_node = msgspec.json.Decoder(_StoredNode).decode
_read_trigger = msgspec.json.Decoder(_StoredTrigger).decode


def is_lite(domain: Domain) -> bool:
    """It has no control plane of its own but ours."""
    return not domain.partner and domain.spec.auth_center is not None


class ActionAdmission:
    def __init__(self, find: FindCollection) -> None:
        self._find = find
        self._pending_edges: dict[tuple[str, str], list[str]] = {}
        self._pending_paths: dict[tuple[str, str], HttpTrigger] = {}
        self._checks: Mapping[str, Callable[[AdmissionRequest], None]] = {
            ACTIONS.resource.plural: self._action,
            TRIGGERS.resource.plural: self._trigger,
            ACTION_GRANTS.resource.plural: self._grant,
        }

    def __call__(self, attempt: AdmissionRequest) -> None:
        if attempt.resource.group != GROUP or attempt.subresource or attempt.verb == "delete":
            return
        check = self._checks.get(attempt.resource.plural)
        if check is None or (attempt.obj.get("metadata") or {}).get("deletionTimestamp"):
            return
        if attempt.old is None:
            self._check_where(attempt)
        if attempt.old is None or (attempt.old.get("spec") or {}) != attempt.obj.get("spec"):
            check(attempt)

    def _check_where(self, attempt: AdmissionRequest) -> None:
        domain, namespace = self._domain(attempt.namespace), attempt.namespace
        if domain is None:
            attempt.warn(f"no domain has the namespace {namespace}: functions run in namespaces of domains only")
        elif domain.partner:
            raise Forbidden(f"the domain {namespace} is a partner: its functions are made at its own control plane")
        elif is_lite(domain):
            raise Forbidden(f"the domain {namespace} is a lite: {LITES}")
        elif self._without_pod_networks(namespace):
            raise Forbidden(
                f"the pods of the domain {namespace} have no network of their own (NotFenced), and functions need one: "
                "`coterie status` names the setting of the machine to change"
            )

    def _without_pod_networks(self, domain: str) -> bool:
        """No node of the domain has any. One that has not said so yet may have one."""
        nodes = self._find(NODES_KEY)
        found = [_read_node(entry.raw) for entry in (nodes.entries("") if nodes is not None else ())]
        own = [each for each in found if (each.metadata.labels or {}).get(KUSCIA_NODE_NAMESPACE) == domain]
        return bool(own) and all(
            any(
                each.type == NETWORK_UNAVAILABLE and each.reason == SHARED_NETWORK
                for each in node.status.conditions or ()
            )
            for node in own
        )

    def _domain(self, name: str) -> Domain | None:
        domains = self._find(DOMAINS_KEY)
        entry = domains.get("", name) if domains is not None else None
        return _read_domain(entry.raw) if entry is not None else None

    def _partner_faults(self, field: str, names: Iterable[str]) -> list[FieldError]:
        """A domain that is not known here yet may become one."""
        known = [each for each in map(self._domain, sorted(names)) if each is not None]
        return [
            FieldError(
                field, "FieldValueInvalid", f'Invalid value: "{each.metadata.name}": the domain is a lite: {LITES}'
            )
            for each in known
            if is_lite(each) or is_partner_lite(each)
        ]

    def _action(self, attempt: AdmissionRequest) -> None:
        spec = _spec(attempt.obj, ActionSpec)
        if spec is None:
            return
        old = _spec(attempt.old, ActionSpec)
        edges = {**stored_edges(self._find, attempt.namespace), **self._held(self._pending_edges, attempt)}
        faults = rules.next_faults(attempt.name, spec.targets, old.targets if old else (), edges)
        added = declared_partners(spec.targets) - declared_partners(old.targets if old else ())
        faults += self._partner_faults("spec.next", added)
        self._warn_of_tables(attempt, spec)
        faults += _code_faults(attempt, spec, old)
        _refuse(attempt, faults)
        self._hold(self._pending_edges, attempt, list(spec.targets))

    def _warn_of_tables(self, attempt: AdmissionRequest, spec: ActionSpec) -> None:
        known = self._find(DOMAIN_DATAS_KEY)
        there = known.names(attempt.namespace) if known is not None else {}
        for each in sorted(set(spec.tables or ()) - set(there)):
            attempt.warn(f"spec.tables: there is no DomainData {each} in {attempt.namespace} yet")

    def _trigger(self, attempt: AdmissionRequest) -> None:
        spec = _spec(attempt.obj, TriggerSpec)
        if spec is None:
            return
        others = {**_stored_paths(self._find, attempt.namespace), **self._held(self._pending_paths, attempt)}
        others.pop(attempt.name, None)
        actions = stored_edges(self._find, attempt.namespace)
        _refuse(attempt, rules.trigger_faults(spec, actions, others, _spec(attempt.old, TriggerSpec)))
        if spec.http is not None:
            self._hold(self._pending_paths, attempt, spec.http)

    def _grant(self, attempt: AdmissionRequest) -> None:
        spec = _spec(attempt.obj, ActionGrantSpec)
        if spec is not None and attempt.old is None:
            faults = rules.grant_faults(spec, attempt.namespace, stored_edges(self._find, attempt.namespace))
            _refuse(attempt, [*faults, *self._partner_faults("spec.grantDomain", [spec.grant_domain])])

    @staticmethod
    def _held(pending: Mapping[tuple[str, str], V], attempt: AdmissionRequest) -> dict[str, V]:
        """What other writes of the namespace hold at the moment."""
        return {
            name: value
            for (namespace, name), value in pending.items()
            if namespace == attempt.namespace and name != attempt.name
        }

    @staticmethod
    def _hold(pending: dict[tuple[str, str], V], attempt: AdmissionRequest, value: V) -> None:
        if attempt.dry_run:
            return
        key = (attempt.namespace, attempt.name)
        pending[key] = value
        attempt.release.append(lambda: _drop(pending, key, value))


def _drop(pending: dict[tuple[str, str], V], key: tuple[str, str], value: V) -> None:
    if pending.get(key) is value:
        del pending[key]


def _code_faults(attempt: AdmissionRequest, spec: ActionSpec, old: ActionSpec | None) -> list[FieldError]:
    """Of code and traffic. Code is looked at when it changes, versions when the traffic does."""
    faults: list[FieldError] = []
    same_code = old is not None and _code_of(old) == _code_of(spec)
    traffic = spec.traffic or ()
    if same_code and old is not None and (old.traffic or ()) == traffic:
        return faults
    field = "spec.archive" if spec.archive else "spec.script"
    try:
        files = code.code_files(spec)
    except archives.InvalidFiles as error:
        return [FieldError(field, "FieldValueInvalid", f"Invalid value: {error}")]
    if not same_code and (fault := code.code_fault(files, spec)):
        if old is None:
            faults.append(FieldError(field, "FieldValueInvalid", f"Invalid value: {fault}"))
        else:
            attempt.warn(f"{field}: {fault}; the actors go on with the code that they have")
    if traffic and not files:
        why = "calls can be split between versions of a script or an archive, not of an image that has the code"
        faults.append(FieldError("spec.traffic", "FieldValueForbidden", f"Forbidden: {why}"))
    elif traffic:
        stored = ((attempt.old or {}).get("status") or {}).get("versions") or ()
        versions = {str(each.get("name")) for each in stored if isinstance(each, dict)}
        faults += rules.traffic_faults(traffic, versions | {code.version_of_files(files, spec)})
    return faults


def _code_of(spec: ActionSpec) -> tuple[object, ...]:
    return (spec.script, spec.archive, spec.handler, spec.image, spec.command)


def _spec(obj: Object | None, kind: type[S]) -> S | None:
    """None when there is none, or when it has the wrong types: the schema says so afterwards."""
    try:
        return msgspec.convert((obj or {}).get("spec"), kind)
    except msgspec.ValidationError:
        return None


def _refuse(attempt: AdmissionRequest, faults: list[FieldError]) -> None:
    if faults:
        raise invalid_object(attempt.resource.kind, attempt.resource.group, attempt.name, faults)


def stored_edges(find: FindCollection, namespace: str) -> dict[str, list[str]]:
    """Targets of each action of a namespace that is not being deleted."""
    found = find(ACTIONS_KEY)
    out = {}
    for entry in found.entries(namespace) if found is not None else ():
        action = _read_action(entry.raw)
        if not action.metadata.deletion_timestamp:
            out[entry.name] = action.spec.next or []
    return out


def _stored_paths(find: FindCollection, namespace: str) -> dict[str, HttpTrigger]:
    found = find(TRIGGERS_KEY)
    triggers = {entry.name: _read_trigger(entry.raw).spec for entry in (found.entries(namespace) if found else ())}
    return {name: spec.http for name, spec in triggers.items() if spec.http is not None}


def deletion_steps(find: FindCollection) -> Mapping[tuple[str, str], Step]:
    def check(attempt: AdmissionRequest) -> None:
        # The namespace is being deleted, or the owner: there is nobody who could delete the callers first.
        if attempt.user.name in CONTROLLERS:
            return
        if callers := graph.callers(stored_edges(find, attempt.namespace), attempt.name):
            raise Forbidden(
                f'actions.{GROUP} "{attempt.name}" is forbidden: it is named in spec.next of {", ".join(callers)}; '
                "change or delete them first"
            )
        found = find(TRIGGERS_KEY)
        for entry in found.entries(attempt.namespace) if found is not None else ():
            if _read_trigger(entry.raw).spec.action == attempt.name:
                attempt.warn(f"Trigger {entry.name} calls this action; its calls are refused until it exists again")

    return {(GROUP, ACTIONS.resource.plural): check}
