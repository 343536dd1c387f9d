"""The authorizer library of Kubernetes: may the user of the request, or a service account, do this?

The variable `authorizer` is an `AuthorizerValue` that holds the question itself as a function, so that nothing here
knows how access is decided. A check costs as much as thousands of other steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from coterie.kube.api import names
from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, method
from coterie.kube.api.cel.types import AUTHORIZER, BOOL, DECISION, GROUP_CHECK, PATH_CHECK, RESOURCE_CHECK, STRING
from coterie.kube.api.cel.values import KINDS

CHECK_COST: Final = 20_000
"""Of the budget of a whole policy: some dozens of checks are possible, thousands are not."""


class AccessDecision(NamedTuple):
    allowed: bool
    reason: str = ""


class AccessQuery(NamedTuple):
    service_account: tuple[str, str] | None
    """(namespace, name); None: the user of the request."""
    verb: str
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class AuthorizerValue:
    decide: Callable[[AccessQuery], AccessDecision]
    service_account: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PathCheck:
    authorizer: AuthorizerValue
    path: str


@dataclass(frozen=True, slots=True)
class GroupCheck:
    authorizer: AuthorizerValue
    group: str


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    authorizer: AuthorizerValue
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""


KINDS[AuthorizerValue] = AUTHORIZER.name
KINDS[PathCheck] = PATH_CHECK.name
KINDS[GroupCheck] = GROUP_CHECK.name
KINDS[ResourceCheck] = RESOURCE_CHECK.name
KINDS[AccessDecision] = DECISION.name


def _path(authorizer: AuthorizerValue, path: str) -> PathCheck:
    if not path.strip():
        raise CelError("path must not be empty")
    return PathCheck(authorizer, path)


def _service_account(authorizer: AuthorizerValue, namespace: str, name: str) -> AuthorizerValue:
    if names.dns_subdomain_faults(name):
        raise CelError("Invalid service account name")
    if names.dns_label_faults(namespace):
        raise CelError("Invalid service account namespace")
    return AuthorizerValue(authorizer.decide, (namespace, name))


def _resource(check: GroupCheck, resource: str) -> ResourceCheck:
    if not resource.strip():
        raise CelError("resource must not be empty")
    return ResourceCheck(check.authorizer, check.group, resource)


def _check_path(check: PathCheck, verb: str) -> AccessDecision:
    return check.authorizer.decide(AccessQuery(check.authorizer.service_account, verb, path=check.path))


def _check_resource(check: ResourceCheck, verb: str) -> AccessDecision:
    return check.authorizer.decide(
        AccessQuery(
            check.authorizer.service_account,
            verb,
            group=check.group,
            resource=check.resource,
            subresource=check.subresource,
            namespace=check.namespace,
            name=check.name,
        )
    )


def _unselected(check: ResourceCheck, selector: str) -> ResourceCheck:
    """RBAC does not look at selectors, here as in Kubernetes."""
    return check


LIBRARY: Final[Library] = (
    method("path", (AUTHORIZER, STRING), PATH_CHECK, _path),
    method("group", (AUTHORIZER, STRING), GROUP_CHECK, GroupCheck),
    method("serviceAccount", (AUTHORIZER, STRING, STRING), AUTHORIZER, _service_account),
    method("resource", (GROUP_CHECK, STRING), RESOURCE_CHECK, _resource),
    method("subresource", (RESOURCE_CHECK, STRING), RESOURCE_CHECK, lambda c, text: replace(c, subresource=text)),
    method("namespace", (RESOURCE_CHECK, STRING), RESOURCE_CHECK, lambda c, text: replace(c, namespace=text)),
    method("name", (RESOURCE_CHECK, STRING), RESOURCE_CHECK, lambda c, text: replace(c, name=text)),
    method("fieldSelector", (RESOURCE_CHECK, STRING), RESOURCE_CHECK, _unselected),
    method("labelSelector", (RESOURCE_CHECK, STRING), RESOURCE_CHECK, _unselected),
    method("check", (PATH_CHECK, STRING), DECISION, _check_path, CHECK_COST),
    method("check", (RESOURCE_CHECK, STRING), DECISION, _check_resource, CHECK_COST),
    method("allowed", (DECISION,), BOOL, lambda decision: decision.allowed),
    method("reason", (DECISION,), STRING, lambda decision: decision.reason),
    method("errored", (DECISION,), BOOL, lambda decision: False),
    method("error", (DECISION,), STRING, lambda decision: ""),
)
