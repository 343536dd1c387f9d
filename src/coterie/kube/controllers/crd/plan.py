"""What a definition that is being deleted still needs; pure."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.resources import Resource

Object = dict[str, Any]
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def needs_cleanup(crd: Object) -> bool:
    metadata = crd["metadata"]
    return "deletionTimestamp" in metadata and CLEANUP in (metadata.get("finalizers") or ())


def stored_resource(crd: Object) -> Resource | None:
    """A served resource through which all objects of the definition can be reached; None when nothing is served."""
    spec = crd["spec"]
    conditions = {c["type"]: c["status"] for c in (crd.get("status") or {}).get("conditions") or ()}
    served = [version["name"] for version in spec["versions"] if version.get("served")]
    if not served or conditions.get("Established") != "True":
        return None
    names = spec["names"]
    return Resource(
        group=spec["group"],
        version=served[0],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        custom=True,
    )


def terminating(crd: Object, remaining: int, now: str) -> list[Object]:
    """The definition's conditions while its objects are being deleted."""
    reason, message = (
        ("InstanceDeletionInProgress", f"{remaining} objects are being deleted")
        if remaining
        else ("InstanceDeletionCompleted", "all objects have been deleted")
    )
    conditions = list((crd.get("status") or {}).get("conditions") or ())
    old = next((c for c in conditions if c["type"] == "Terminating"), None)
    since = (old.get("lastTransitionTime") or now) if old is not None and old["status"] == "True" else now
    new = {"type": "Terminating", "status": "True", "lastTransitionTime": since, "reason": reason, "message": message}
    return [*(c for c in conditions if c["type"] != "Terminating"), new]
