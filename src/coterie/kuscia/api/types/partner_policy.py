"""What a partner may begin at our domains without being asked about each time: `kuscia.secretflow/v1alpha1` PartnerPolicy.

Ours, Kuscia has no such kind. One object for each partner, cluster-scoped, named after the partner's domain. The rules
are in `partner_policy.py`.
"""

from __future__ import annotations

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import QuantityText
from coterie.kuscia.api.types.domain import kuscia_resource

ASK, REFUSE = "Ask", "Refuse"
JOB, DEPLOYMENT = "Job", "Deployment"
ANY = "*"
RECORD, REQUIRE = "Record", "Require"


class PartnerQuota(Model, frozen=True, kw_only=True):
    """Of everything together that the partner's workloads have here at one time. What is not said has a default."""

    tasks: int | None = None
    pods: int | None = None
    cpu: QuantityText | None = None
    memory: QuantityText | None = None
    disk: QuantityText | None = None
    gpus: int | None = None


class PartnerLogPolicy(Model, frozen=True, kw_only=True):
    """Which LogRequests of the partner are answered without a person, and what is cut out of every answer to it."""

    sources: tuple[str, ...] | None = None
    """None and empty: every request waits for approval."""
    max_lines: int | None = None
    max_bytes: int | None = None
    keep_seconds: int | None = None
    only_failed: bool = False
    per_day: int | None = None
    redact: tuple[str, ...] | None = None
    """Regular expressions."""
    open_requests: int | None = None
    """Requests that may wait at once; also of those that a person decides on."""


class PartnerPolicySpec(Model, frozen=True, kw_only=True):
    app_images: tuple[str, ...] | None = None
    """`NAME[:VERSION][@ID]`, where NAME may be a pattern. None and empty: nothing is approved automatically."""
    kinds: tuple[str, ...] | None = None
    components: tuple[str, ...] | None = None
    tables: tuple[str, ...] | None = None
    cpu: QuantityText | None = None
    memory: QuantityText | None = None
    bandwidth: int | None = None
    gpus: int | None = None
    priority: int | None = None
    retries: int | None = None
    """How often a task may be begun again."""
    hours: tuple[str, ...] | None = None
    time_zone: str = ""
    outside: str = ASK
    runtime_class: str = ""
    """RuntimeClass of all pods of what the partner began; empty: the node's default."""
    witness: str = RECORD
    """Tasks with the partner start without its cosignature of our evidence log (Record), or do not (Require)."""
    quota: PartnerQuota | None = None
    logs: PartnerLogPolicy | None = None
    dry_run: str = ""
    """How much of a plan the partner is told (`PlanDetail`); empty: a summary."""


class PartnerPolicy(ApiObject, frozen=True, kw_only=True):
    spec: PartnerPolicySpec = PartnerPolicySpec()


PARTNER_POLICIES = Kind(kuscia_resource("partnerpolicies", "PartnerPolicy", namespaced=False), PartnerPolicy)
