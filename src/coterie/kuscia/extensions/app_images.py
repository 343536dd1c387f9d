"""Who writes an AppImage whose `image.id` names no image is told that nothing is required by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kube.apiserver.admission.chain import AdmissionRequest

if TYPE_CHECKING:
    from coterie.kuscia.api import engine_template
else:
    engine_template = lazy_import("coterie.kuscia.api.engine_template")


def warn_of_image_id(attempt: AdmissionRequest) -> None:
    if attempt.resource.kind != "AppImage" or attempt.verb == "delete" or attempt.subresource:
        return
    written = ((attempt.obj.get("spec") or {}).get("image") or {}).get("id") or ""
    if written and engine_template.is_placeholder(written):
        attempt.warn(
            f'spec.image.id: "{written[:40]}" is no digest, so any image of that name is started; '
            "`coterie image ls -o json` shows the id that pins it"
        )
