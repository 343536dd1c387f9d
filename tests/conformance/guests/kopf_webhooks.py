"""kopf: an operator with admission webhooks, which it serves and registers itself.

Mutating: a Widget without parts gets some. Validating: no Widget of size 13, and none that is marked may be deleted.
"""

from __future__ import annotations

import os
from typing import Any

import kopf

GROUP = "hooks.example"


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.persistence.finalizer = f"{GROUP}/finalizer"
    settings.posting.enabled = False
    settings.admission.managed = f"managed.{GROUP}"
    settings.admission.server = kopf.WebhookServer(
        addr="127.0.0.1",
        host="127.0.0.1",
        certfile=os.environ["HOOK_CERTIFICATE"],
        pkeyfile=os.environ["HOOK_KEY"],
        cafile=os.environ["HOOK_CA"],
    )


@kopf.on.mutate(GROUP, "v1", "widgets", operations=["CREATE", "UPDATE"])
def filled(spec: kopf.Spec, patch: kopf.Patch, userinfo: kopf.UserInfo, **_: Any) -> None:
    if not spec.get("parts"):
        patch.spec["parts"] = {"made": "by-webhook", "for": str(userinfo["username"])}


@kopf.on.validate(GROUP, "v1", "widgets", operations=["CREATE", "UPDATE"])
def checked(spec: kopf.Spec, warnings: list[str], dryrun: bool, **_: Any) -> None:
    if spec.get("size") == 13:
        raise kopf.AdmissionError("thirteen is not a size", code=409)
    if spec.get("size", 0) > 50:
        warnings.append("dry run of a large widget" if dryrun else "a large widget")


@kopf.on.validate(GROUP, "v1", "widgets", operations=["DELETE"], labels={"keep": kopf.PRESENT})
def kept(name: str, **_: Any) -> None:
    raise kopf.AdmissionError(f"{name} is to be kept")
