"""Signals for programs in a gVisor sandbox, which are no processes of the machine: runsc delivers them."""

from __future__ import annotations

import os

from coterie.kube.agent.runtimes.oci import bundle, shim
from coterie.kube.agent.runtimes.runp import child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OWN_THREADS = 256
"""Threads and processes of a sandbox itself, which count to the limit of its container's processes."""


def needed(spec: dict[str, Any]) -> bool:
    tool = spec.get("tool")
    return tool is not None and tool["handler"] == bundle.GVISOR


def own_threads(pod: dict[str, Any]) -> int:
    """What the runtime of a pod adds to the number of its processes."""
    return OWN_THREADS if pod.get("handler") == bundle.GVISOR else 0


def kill_exec(nothing: int, spec: dict[str, Any], powers: dict[str, Any], leader: int, waiting: int) -> None:
    """The process of an exec, which does not end with the command `waiting` for it: rather the other way. Does not wait."""
    if not os.fork():
        shim.kill_exec(_setup(nothing, spec, powers), leader, waiting)


def send(
    nothing: int, spec: dict[str, Any], powers: dict[str, Any], leader: int, number: int, *, everyone: bool
) -> None:
    """To the container's program, or to everyone in the sandbox of which `leader` is the shim. Does not wait."""
    if not os.fork():
        words = ["kill", "--all"] if everyone else ["kill"]
        shim.run_program(_setup(nothing, spec, powers), leader, [*words, shim.name_of(leader), str(number)])


def _setup(nothing: int, spec: dict[str, Any], powers: dict[str, Any]) -> child.ChildSetup:
    setup = child.ChildSetup(spec, powers, (nothing, nothing, nothing), tty=False)
    setup.status = nothing
    return setup
