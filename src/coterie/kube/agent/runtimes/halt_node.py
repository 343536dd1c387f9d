"""End all pods of a node whose agent is gone, whichever runtime they are on: `coterie down`."""

from __future__ import annotations

from pathlib import Path

from coterie.kube.agent.runtimes.cri import halt as cri_halt
from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.runp import halt as runp_halt
from coterie.kube.agent.runtimes.runp.client import group_of


async def halt_node(run: Path, node: str, grace: float, *, forget: bool = False) -> int:
    """Stop what runs; answers how many pods ran. `run`: the node's directory of sockets; `forget` drops records as well.

    Raises RuntimeFailure when pods could not be stopped.
    """
    runp = run / "runp"
    on_containerd = await cri_halt.halt(CriSettings.below(run, node, group_of(node, runp)), runp, grace, forget=forget)
    return on_containerd + await runp_halt.halt(runp, node, grace, forget=forget)
