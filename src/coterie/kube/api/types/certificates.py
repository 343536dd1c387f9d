"""CertificateSigningRequests: `certificates.k8s.io/v1`."""

from __future__ import annotations

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind, builtin


class CertificateSigningRequestSpec(Model, frozen=True, kw_only=True):
    request: str = ""
    """PEM, in base64."""
    signer_name: str = ""
    expiration_seconds: int | None = None
    usages: tuple[str, ...] | None = None
    username: str = ""
    """Of whoever created the object; set by the server, as the next three."""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...]] | None = None


class CertificateSigningRequestCondition(Model, frozen=True, kw_only=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class CertificateSigningRequestStatus(Model, frozen=True, kw_only=True):
    conditions: tuple[CertificateSigningRequestCondition, ...] | None = None
    certificate: str = ""
    """PEM, in base64."""


class CertificateSigningRequest(ApiObject, frozen=True, kw_only=True):
    spec: CertificateSigningRequestSpec = CertificateSigningRequestSpec()
    status: CertificateSigningRequestStatus = CertificateSigningRequestStatus()

    def condition(self, kind: str) -> CertificateSigningRequestCondition | None:
        return next((each for each in self.status.conditions or () if each.type == kind), None)


CERTIFICATE_SIGNING_REQUESTS = Kind(
    builtin("certificatesigningrequests", "certificates.k8s.io"), CertificateSigningRequest
)
