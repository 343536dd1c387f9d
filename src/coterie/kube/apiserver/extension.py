"""The extension point of the API server: what a product that stands on the platform adds to it.

    definitions   kinds (CustomResourceDefinitions) that are installed at start
    namespaces    namespaces that exist from the start
    roles         default roles, and rules that are added to `view`, `edit` and `admin`
    admission     steps after the platform's own
    deletion      steps before an object of certain kinds is deleted
    authorization steps that ask what else the caller may do
    node owners   the label that says to which namespace a Node belongs, whose account may then manage it
    agents        certificates of node agents that the platform's own authority did not sign

The platform runs with none of it; `ApiServer` is given a list of extensions in its settings.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from coterie.base.clock import Clock
from coterie.kube.apiserver.admission.chain import Step
from coterie.kube.apiserver.agent_connection import Check
from coterie.kube.apiserver.auth.default_roles import RoleRules
from coterie.kube.apiserver.auth.nodes import NodeOwnership
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer

if TYPE_CHECKING:
    from coterie.kube.apiserver.state.state import ResourceStorage

Object = dict[str, Any]


class DefinitionSource(Protocol):
    """CustomResourceDefinitions that come with a product. Reading them is expensive, comparing their digests is not."""

    hash_annotation: str
    """The annotation of a stored definition that holds the digest of what it was made from."""

    def hashes(self) -> Mapping[str, str]:
        """Digests by name."""

    def load(self, names: Collection[str]) -> Iterable[Object]:
        """The definitions of these names, with their digest as annotation."""


class AgentVerifier(Protocol):
    """Checks certificates of node agents that our own authority did not sign."""

    def tls(self) -> ssl.SSLContext | None:
        """Shows our client certificate; leaves the agent's certificate to `check`."""

    def check(self, owner: str) -> Check | None:
        """How to check the certificate of an agent whose node belongs to this namespace; None when it has no such agents."""


@dataclass(frozen=True, slots=True)
class ApiServerExtension:
    name: str
    namespaces: tuple[str, ...] = ()
    definitions: DefinitionSource | None = None
    roles: RoleRules = RoleRules()  # noqa: RUF009 - frozen
    admission: Callable[[ResourceStorage, Clock], Sequence[Step]] = field(default=lambda state, clock: ())
    deletion: Callable[[ResourceStorage], Mapping[tuple[str, str], Step]] = field(default=lambda state: {})
    """By group and plural: what may refuse the deletion of such an object."""
    authorization: Callable[[RbacAuthorizer], Sequence[Step]] = field(default=lambda authorizer: ())
    """More steps, which ask what the caller may do besides the write itself."""
    node_ownership: NodeOwnership | None = None
    metrics_annotations: tuple[tuple[str, str], ...] = ()
    """Pairs of annotations of a pod with the port and the path of its metrics, besides those of Prometheus."""
    configmap_annotations: tuple[str, ...] = ()
    """Annotations of a pod that name ConfigMaps which its node may read."""
    configmaps_for_nodes: tuple[str, ...] = ()
    """Names of ConfigMaps that a node may read in every namespace in which it has a pod."""
    stored_only: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(group, kind) of its kinds that nothing acts on: the warning for who writes one."""
    sensitive_resources: tuple[tuple[str, str, str], ...] = ()
    """(group, resource, sub-resource) whose bodies an audit policy records only where a rule names them."""
    agent_verifier: Callable[[ResourceStorage, Clock], AgentVerifier] | None = None
