"""Who may send a GpuJob where: the writer needs the verb `use` of each SlurmCluster that the job may take, and of each DomainData.

Clusters and their SSH keys lie in the job's own namespace, so a job can never use another namespace's. A job that names no
cluster may be sent to any of its namespace: its writer needs `use` of all of them.
"""

from __future__ import annotations

from coterie.kube.api.meta import Object
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.auth.rules import Attributes
from coterie.kuscia.api.definitions.crds import GROUP

_COTERIE = "coterie.io"


class GpuJobUse:
    def __init__(self, authorizer: RbacAuthorizer) -> None:
        self._authorizer = authorizer

    def __call__(self, attempt: AdmissionRequest) -> None:
        if (attempt.resource.group, attempt.resource.plural) != (_COTERIE, "gpujobs") or attempt.subresource:
            return
        spec = attempt.obj.get("spec") or {}
        if attempt.verb == "delete" or (attempt.old is not None and (attempt.old.get("spec") or {}) == spec):
            return
        for asked in uses(spec, attempt.namespace):
            self._authorizer.check(attempt.user, asked)


def uses(spec: Object, namespace: str) -> list[Attributes]:
    """What the writer of this spec must be allowed to. Pure."""
    found = []
    if (spec.get("backend") or ("Pod" if spec.get("image") else "Slurm")) == "Slurm":
        for name in (spec.get("slurm") or {}).get("clusters") or ("",):
            found.append(Attributes("use", _COTERIE, "slurmclusters", "", namespace, "", name))
    for source in spec.get("files") or ():
        if named := source.get("domainData"):
            found.append(Attributes("use", GROUP, "domaindatas", "", namespace, "", str(named.get("name") or "")))
    return found
