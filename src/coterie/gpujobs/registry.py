"""The controller of GPU jobs: see `kube/control/registry.py`. The node provides `gpu_jobs` (its settings)."""

from __future__ import annotations

from coterie.gpujobs.types import GPU_JOBS
from coterie.kube.control.registry import ControllerSpec

CONTROLLERS = (
    ControllerSpec(
        "gpujob",
        "coterie.gpujobs.controller",
        wakes_for=(GPU_JOBS,),
        events="gpujob-controller",
        needs={"settings": "gpu_jobs"},
    ),
)
