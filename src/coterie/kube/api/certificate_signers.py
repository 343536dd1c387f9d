"""The signers of `kubernetes.io` and what each of them may be asked for. Pure.

    kubernetes.io/kube-apiserver-client           client certificates of users
    kubernetes.io/kube-apiserver-client-kubelet   client certificates of nodes
    kubernetes.io/kubelet-serving                 server certificates of nodes
    kubernetes.io/legacy-unknown                  never signed

All three are signed by the authority whose certificates the API accepts. Therefore a request must not lead to an identity that
another signer, or nobody, may give: see `subject_refused`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.base.certificate_requests import RequestedCertificate

GROUP = "certificates.k8s.io"
API_CLIENT = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING = "kubernetes.io/kubelet-serving"
LEGACY_UNKNOWN = "kubernetes.io/legacy-unknown"
SIGNED_HERE = (API_CLIENT, KUBELET_CLIENT, KUBELET_SERVING)

APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
NODE_USER_PREFIX = "system:node:"
NODES_GROUP = "system:nodes"
MASTERS_GROUP = "system:masters"
AGENT_CLIENT_USER = "kube-apiserver-kubelet-client"
"""As whom the API server calls node agents: they let this user run commands in pods, without asking RBAC."""
_PERMITTED = {
    API_CLIENT: frozenset(("digital signature", "key encipherment", "client auth")),
    KUBELET_CLIENT: frozenset(("digital signature", "key encipherment", "client auth")),
    KUBELET_SERVING: frozenset(("digital signature", "key encipherment", "server auth")),
}


def subject_refused(signer: str, common_name: str, organizations: Collection[str]) -> str:
    """Why nobody may ask this signer for this subject; empty: somebody may. Checked at creation and before signing."""
    if signer != API_CLIENT:
        return ""
    for group in (MASTERS_GROUP, NODES_GROUP):
        if group in organizations:
            return f"use of {API_CLIENT} signer with {group} group is not allowed"
    if common_name == AGENT_CLIENT_USER or common_name.startswith(NODE_USER_PREFIX):
        return f'use of {API_CLIENT} signer for user "{common_name}" is not allowed'
    return ""


def request_refused(signer: str, wanted: RequestedCertificate, usages: Collection[str]) -> str:
    """Why this signer does not sign the request; empty: it may. Addresses of nodes are checked by the caller."""
    if why := subject_refused(signer, wanted.common_name, wanted.organizations):
        return why
    if signer == API_CLIENT:
        return _client_usages(usages) or ("" if wanted.common_name else "subject common name is required")
    if signer in (KUBELET_CLIENT, KUBELET_SERVING):
        return _node_subject(wanted) or _node_names(signer, wanted) or _node_usages(signer, usages)
    return f"no signer for {signer}"


def _client_usages(usages: Collection[str]) -> str:
    for usage in usages:
        if usage not in _PERMITTED[API_CLIENT]:
            return f"invalid usage for client certificate: {usage}"
    return "" if "client auth" in usages else "missing required usage for client certificate: client auth"


def _node_subject(wanted: RequestedCertificate) -> str:
    if tuple(wanted.organizations) != (NODES_GROUP,):
        return f"subject organization is not {NODES_GROUP}"
    if not wanted.common_name.startswith(NODE_USER_PREFIX) or wanted.common_name == NODE_USER_PREFIX:
        return f"subject common name does not begin with {NODE_USER_PREFIX}"
    return ""


def _node_names(signer: str, wanted: RequestedCertificate) -> str:
    if wanted.emails:
        return "Email subjectAltNames are not allowed"
    if wanted.uris:
        return "URI subjectAltNames are not allowed"
    if signer == KUBELET_SERVING:
        return "" if wanted.dns_names or wanted.addresses else "DNS or IP subjectAltName is required"
    if wanted.dns_names:
        return "DNS subjectAltNames are not allowed"
    return "IP subjectAltNames are not allowed" if wanted.addresses else ""


def _node_usages(signer: str, usages: Collection[str]) -> str:
    """Exactly these; an ECDSA key need not encipher keys."""
    permitted = _PERMITTED[signer]
    if set(usages) in (permitted, permitted - {"key encipherment"}):
        return ""
    return f"usages did not match {sorted(permitted)}"
