"""AppImages at the API server.

Who writes one whose `image.id` names no image is told that nothing is required by it. A version of an engine that a deployment, or a job which has not ended, is pinned to
can neither be removed nor changed: a new version is added beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.apiserver.admission.chain import AdmissionRequest, Step
from coterie.kube.apiserver.state.collection import Collection
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN

if TYPE_CHECKING:
    from coterie.kuscia.api import engine_template, engine_versions
else:
    engine_template = lazy_import("coterie.kuscia.api.engine_template")
    engine_versions = lazy_import("coterie.kuscia.api.engine_versions")

FindCollection = Callable[[str], Collection | None]
JOBS_KEY: Final = "/registry/kuscia.secretflow/kusciajobs"
DEPLOYMENTS_KEY: Final = "/registry/kuscia.secretflow/kusciadeployments"
_SHOWN = 3
_VERSION_MARKS: Final = (
    labels.COTERIE_ENGINE,
    labels.COTERIE_ENGINE_VERSION,
    labels.COTERIE_SPEAKS,
    labels.COTERIE_PROTOCOLS,
)


def warn_of_image_id(attempt: AdmissionRequest) -> None:
    if attempt.resource.kind != "AppImage" or attempt.verb == "delete" or attempt.subresource:
        return
    written = ((attempt.obj.get("spec") or {}).get("image") or {}).get("id") or ""
    if written and engine_template.is_placeholder(written):
        attempt.warn(
            f'spec.image.id: "{written[:40]}" is no digest, so any image of that name is started; '
            "`coterie image ls -o json` shows the id that pins it"
        )
    annotations = (attempt.obj.get("metadata") or {}).get("annotations") or {}
    if any(key in annotations for key in _VERSION_MARKS):
        for fault in engine_versions.annotation_faults(annotations):
            attempt.warn(f"metadata.annotations: {fault}; the AppImage counts as one without a version")


class PinnedEngineAdmission:
    """Refuses to change what a pinned version runs."""

    def __init__(self, find: FindCollection) -> None:
        self._find = find

    def __call__(self, attempt: AdmissionRequest) -> None:
        if not _is_app_image(attempt) or attempt.verb == "delete" or attempt.old is None or attempt.subresource:
            return
        if _content(attempt.old) == _content(attempt.obj):
            return
        if users := pinned_workloads(self._find, attempt.name):
            raise _refused(attempt, users, "add the new version under another name")


def pinned_deletion_steps(find: FindCollection) -> Mapping[tuple[str, str], Step]:
    def check(attempt: AdmissionRequest) -> None:
        if users := pinned_workloads(find, attempt.name):
            raise _refused(attempt, users, "remove it when they have ended, or stop them")

    return {(APP_IMAGES.resource.group, APP_IMAGES.resource.plural): check}


def _is_app_image(attempt: AdmissionRequest) -> bool:
    resource = APP_IMAGES.resource
    return (attempt.resource.group, attempt.resource.plural) == (resource.group, resource.plural)


def _content(image: Object) -> tuple[object, ...]:
    annotations = (image.get("metadata") or {}).get("annotations") or {}
    return image.get("spec"), *(annotations.get(key) for key in _VERSION_MARKS)


def _refused(attempt: AdmissionRequest, users: Mapping[str, list[str]], step: str) -> Forbidden:
    named = " and ".join(_listed(kind, names) for kind, names in users.items())
    several = sum(len(names) for names in users.values()) > 1
    return Forbidden(
        f'appimages.{APP_IMAGES.resource.group} "{attempt.name}" is forbidden: '
        f"{named} {'are' if several else 'is'} pinned to it; {step}"
    )


def _listed(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names[:_SHOWN])}{more}"


def pinned_workloads(find: FindCollection, name: str) -> dict[str, list[str]]:
    """Jobs and deployments that are pinned to this AppImage as a version of an engine, by `job` and `deployment`."""
    found = {"job": pinning_jobs(find, name), "deployment": pinning_deployments(find, name)}
    return {kind: names for kind, names in found.items() if names}


class _Pin(msgspec.Struct, frozen=True, rename="camel"):
    version: str = ""
    app_image: str = ""


class _PinnedStatus(msgspec.Struct, frozen=True, rename="camel"):
    completion_time: str | None = None
    engine_pins: dict[str, dict[str, _Pin]] | None = None


class _PinnedJob(msgspec.Struct, frozen=True):
    status: _PinnedStatus = _PinnedStatus()


_decode_job = msgspec.json.Decoder(_PinnedJob).decode


def pinning_jobs(find: FindCollection, name: str) -> list[str]:
    """Jobs that have not ended and are pinned to this AppImage as a version of an engine, by name."""
    found = find(JOBS_KEY)
    out = []
    for entry in found.entries(CROSS_DOMAIN) if found is not None else ():
        status = _decode_job(entry.raw).status
        if status.completion_time is None and any(
            pin.app_image == name and pin.version
            for parties in (status.engine_pins or {}).values()
            for pin in parties.values()
        ):
            out.append(entry.name)
    return sorted(out)


class _MarkedMeta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _MarkedDeployment(msgspec.Struct, frozen=True):
    metadata: _MarkedMeta = _MarkedMeta()


_decode_deployment = msgspec.json.Decoder(_MarkedDeployment).decode


def pinning_deployments(find: FindCollection, name: str) -> list[str]:
    """Deployments of which a party of ours is pinned to this AppImage, by name."""
    found = find(DEPLOYMENTS_KEY)
    out = []
    for entry in found.entries(CROSS_DOMAIN) if found is not None else ():
        pins = engine_versions.deployed_engines(_decode_deployment(entry.raw).metadata.annotations)
        if any(pin.app_image == name for pin in pins.values()):
            out.append(entry.name)
    return sorted(out)
