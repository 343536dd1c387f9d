"""What partners' workloads have here at this moment, counted against the quotas of their policies; and the RuntimeClass
that these policies demand.

One for all controllers of a control plane: tasks and deployments of a partner share its quota. Who starts something
claims first, without awaiting anything in between, so two that start at once cannot both take the last place.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.kube.client.informers import Informers
from coterie.kuscia.api.domain_ownership import is_own, master_of
from coterie.kuscia.api.partner_policy import Usage, over_quota, quota_of
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES, PartnerPolicy


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    sentence: str
    lasting: bool
    """It would not fit even if nothing else ran."""


class PartnerQuotas:
    def __init__(self, informers: Informers) -> None:
        self.policies = informers.get(PARTNER_POLICIES)
        self.domains = informers.get(DOMAINS)
        self._claims: dict[str, tuple[str, Usage]] = {}

    def is_partner(self, initiator: str) -> bool:
        """Whoever is not ours; also a domain that is not known any more."""
        return not is_own(self.domains.cache.get(initiator))

    def policy_of(self, initiator: str) -> PartnerPolicy | None:
        """The initiator's own, else that of the control plane that hosts it."""
        found = self.policies.cache.get(initiator)
        if found is not None:
            return found
        return self.policies.cache.get(master_of(initiator, self.domains.cache.get(initiator)))

    def runtime_class_of(self, initiator: str) -> str:
        """The RuntimeClass that pods of what this domain began must have; empty: none is demanded."""
        policy = self.policy_of(initiator) if self.is_partner(initiator) else None
        return policy.spec.runtime_class if policy is not None else ""

    def concerned(self, policy: PartnerPolicy, initiator: str) -> bool:
        name = policy.metadata.name
        return name in (initiator, master_of(initiator, self.domains.cache.get(initiator)))

    # Claims.

    def knows(self, uid: str) -> bool:
        return uid in self._claims

    def note(self, uid: str, initiator: str, usage: Usage) -> None:
        """It runs already, whatever the quota says."""
        self._claims[uid] = (initiator, usage)

    def claim(self, uid: str, initiator: str, usage: Usage) -> QuotaRefusal | None:
        """Takes it, or says why not. What the same workload had before is given back first, unless it is refused."""
        policy = self.policy_of(initiator)
        quota = quota_of(policy.spec if policy is not None else None)
        if sentence := over_quota(quota, Usage(), usage, initiator):
            return QuotaRefusal(sentence, lasting=True)
        if sentence := over_quota(quota, self.used_by(initiator, besides=uid), usage, initiator):
            return QuotaRefusal(sentence, lasting=False)
        self._claims[uid] = (initiator, usage)
        return None

    def used_by(self, initiator: str, besides: str = "") -> Usage:
        """What counts against the same quota at this moment, without one workload."""
        shared = self._quota_name(initiator)
        used = Usage()
        for uid, (whose, amount) in self._claims.items():
            if uid != besides and self._quota_name(whose) == shared:
                used += amount
        return used

    def release(self, uid: str) -> None:
        self._claims.pop(uid, None)

    def _quota_name(self, initiator: str) -> str:
        policy = self.policy_of(initiator)
        return policy.metadata.name if policy is not None else initiator
