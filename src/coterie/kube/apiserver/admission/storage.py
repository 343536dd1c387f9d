"""Admission of volumes and claims: protection finalizers, the default class, and who may grow."""

from __future__ import annotations

from typing import Any

from coterie.kube.api import errors
from coterie.kube.api.labels import DEFAULT_STORAGE_CLASS, FINALIZER_PV_PROTECTION, FINALIZER_PVC_PROTECTION
from coterie.kube.api.quantity import QuantityError
from coterie.kube.api.quantity import parse as parse_quantity
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.state.collection import Collection

Object = dict[str, Any]
_CLAIM, _VOLUME = "PersistentVolumeClaim", "PersistentVolume"
_FINALIZERS = {_CLAIM: FINALIZER_PVC_PROTECTION, _VOLUME: FINALIZER_PV_PROTECTION}
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"


class StorageAdmission:
    """Kubernetes' StorageObjectInUseProtection, DefaultStorageClass and PersistentVolumeClaimResize."""

    def __init__(self, classes: Collection) -> None:
        self._classes = classes

    def __call__(self, attempt: AdmissionRequest) -> None:
        if attempt.resource.group or attempt.subresource or attempt.resource.kind not in _FINALIZERS:
            return
        if attempt.verb == "create":
            self._protect(attempt)
            if attempt.resource.kind == _CLAIM:
                self._choose_class(attempt.obj)
        elif attempt.old is not None and attempt.resource.kind == _CLAIM:
            self._check_growth(attempt, attempt.old)

    def _protect(self, attempt: AdmissionRequest) -> None:
        meta = attempt.obj.setdefault("metadata", {})
        finalizer = _FINALIZERS[attempt.resource.kind]
        if finalizer not in (meta.get("finalizers") or ()):
            meta["finalizers"] = [*(meta.get("finalizers") or ()), finalizer]

    def _choose_class(self, claim: Object) -> None:
        spec = claim.setdefault("spec", {})
        if spec.get("storageClassName") is not None or (claim["metadata"].get("annotations") or {}).get(_OLD_CLASS):
            return
        found = [entry.load()["metadata"] for entry in self._classes if DEFAULT_STORAGE_CLASS.encode() in entry.raw]
        found = [meta for meta in found if (meta.get("annotations") or {}).get(DEFAULT_STORAGE_CLASS) == "true"]
        if found:
            found.sort(key=lambda meta: str(meta["name"]))
            newest = max(found, key=lambda meta: str(meta.get("creationTimestamp") or ""))
            spec["storageClassName"] = newest["name"]

    def _check_growth(self, attempt: AdmissionRequest, old: Object) -> None:
        if _size(attempt.obj) <= _size(old):
            return
        if (old.get("status") or {}).get("phase") != "Bound":
            raise _forbidden(attempt, "Only bound persistent volume claims can be expanded")
        entry = self._classes.get("", (old.get("spec") or {}).get("storageClassName") or "")
        if entry is None or not entry.load().get("allowVolumeExpansion"):
            raise _forbidden(
                attempt,
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must "
                "support resize",
            )


def _size(claim: Object) -> int:
    requests = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
    try:
        return parse_quantity(requests.get("storage") or "0").nanos
    except QuantityError:
        return 0  # validation says what is wrong with it


def _forbidden(attempt: AdmissionRequest, why: str) -> errors.Forbidden:
    return errors.Forbidden(
        f'persistentvolumeclaims "{attempt.name}" is forbidden: {why}', name=attempt.name, kind="persistentvolumeclaims"
    )
