"""Which runtimes a node has: processes (RunP, with its own OCI driver) and containerd.

How `runtime: runc` and the handler runc are served, by agent.containerRuntime:

    auto, with containerd and root    containerd; for what partners begin our own driver, whose pods have users of their own
    auto, otherwise                   our own driver on runc, or on crun where only that is installed
    containerd                        containerd; without it the node does not start
    runc, crun                        our own driver on this program
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kube.agent.runtimes.by_handler import RuntimesByHandler
from coterie.kube.agent.runtimes.cri import daemon
from coterie.kube.agent.runtimes.cri.daemon import PROGRAM_PLACES, RUNC
from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.node.config import AgentConfig, ConfigError, NodeSettings

if TYPE_CHECKING:
    from coterie.kube.agent.runtimes.cri import runtime as cri_runtime
else:
    cri_runtime = lazy_import("coterie.kube.agent.runtimes.cri.runtime")  # two megabytes, and few nodes have containerd

RUNP, CRUN = "runp", "crun"
AUTO, CONTAINERD = "auto", "containerd"


def installed(program: str) -> bool:
    path = ":".join((os.environ.get("PATH", os.defpath), *PROGRAM_PLACES))
    return shutil.which(program, path=path) is not None


def uses_containerd(chosen: AgentConfig, has: Callable[[str], bool], *, root: bool) -> bool:
    """Whether the handler runc is containerd's. `has`: whether a program is installed."""
    if chosen.container_runtime == CONTAINERD:
        return True
    return chosen.container_runtime == AUTO and root and has(CONTAINERD)


def default_handler(chosen: AgentConfig, has: Callable[[str], bool], *, root: bool) -> str:
    """Of pods that name no RuntimeClass."""
    if chosen.runtime == RUNP:
        return RUNP
    if chosen.container_runtime == CRUN:
        return CRUN
    only_crun = chosen.container_runtime == AUTO and has(CRUN) and not has(RUNC)
    return CRUN if only_crun and not uses_containerd(chosen, has, root=root) else RUNC


def problem_of(chosen: AgentConfig, has: Callable[[str], bool], *, root: bool) -> str:
    """Why the node cannot do what its configuration asks for; empty: it can."""
    if chosen.container_runtime != CONTAINERD:
        return ""
    if not root:
        return "containerd needs root; run the node as root, or leave agent.containerRuntime out"
    missing = [name for name in (CONTAINERD, RUNC) if not has(name)]
    if missing:
        return (
            f"{' and '.join(missing)} is not installed on this machine; install it, or leave agent.containerRuntime out"
        )
    return ""


def make(settings: NodeSettings, chosen: AgentConfig, runp: RunpRuntime, directory: Path) -> RuntimesByHandler:
    """All runtimes of the node. `directory`: RunP's."""
    root = os.getuid() == 0
    if problem := problem_of(chosen, installed, root=root):
        raise ConfigError(f"agent.containerRuntime: {problem}")
    if not root or not installed(CONTAINERD):
        return RuntimesByHandler((runp,), missing=daemon.handlers(daemon.ContainerPrograms(root=root)))
    cri = cri_runtime.CriRuntime(_cri_settings(settings, chosen, directory), runp)
    preferred = {RUNC: cri} if uses_containerd(chosen, installed, root=root) else {}
    # Pods on containerd have no users of their own.
    return RuntimesByHandler((runp, cri), preferred, guests_too=chosen.container_runtime == CONTAINERD)


def _cri_settings(settings: NodeSettings, chosen: AgentConfig, directory: Path) -> CriSettings:
    rotation, group = settings.logrotate, group_of(chosen.node_name, directory)
    base = CriSettings.below(settings.paths.run, chosen.node_name, group)
    return replace(
        base,
        images=settings.paths.images,
        log_file=settings.paths.log("containerd"),
        default=default_handler(chosen, installed, root=True) == RUNC,
        log_bytes=(rotation.max_file_mb or 0) << 20 or base.log_bytes,
        log_files=rotation.max_files,
    )
