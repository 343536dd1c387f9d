"""All that is wrong with a job at this control plane. Pure.

What may only be missing because objects arrive in any order (domains, engines) is kept apart from what is wrong for
good: the controller waits a moment before it holds the first against a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.kuscia.api.bandwidth_capacity import DomainBandwidth, unmet_requests
from coterie.kuscia.api.jobs.references import reference_problems
from coterie.kuscia.api.jobs.validation import job_problems
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import AppImage, KusciaJob

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Faults:
    wrong: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        found = (*self.wrong, *self.missing)
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return "; ".join(found[:_SHOWN]) + more


def faults(
    job: KusciaJob,
    domains: Mapping[str, Domain],
    images: Mapping[str, AppImage],
    bandwidth: Mapping[str, DomainBandwidth] | None = None,
) -> Faults:
    """`domains`, `images`: those that exist here. `bandwidth`: what our domains have of it."""
    references = reference_problems(job.spec, domains, images)
    unmet = unmet_requests(job.spec, bandwidth or {}, images)
    wrong = (*job_problems(job.metadata.name, job.spec), *references.wrong, *unmet)
    return Faults(tuple(map(str, wrong)), tuple(map(str, references.missing)))
