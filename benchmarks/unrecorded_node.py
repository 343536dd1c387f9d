"""`coterie up` whose nodes record nothing: no gate before writes, no events of jobs, no cosignatures, no statements of tasks.

    python -m benchmarks.unrecorded_node up --topology p2p --domains alice,bob --root DIR

For comparison with nodes that do; there is no such setting. The log itself is opened, and stays as it is.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

from coterie.cli import background, forking
from coterie.cli.main import main
from coterie.kube.control.manager import Runnable
from coterie.node.parts import control_plane
from coterie.node.parts.controllers import Recording


def _nothing(*_: object) -> tuple[Recording, list[Runnable]]:
    return Recording(), []


def _no_gate(_: object) -> None:
    return None


if __name__ == "__main__":
    control_plane._evidence = _nothing
    control_plane.api_writes = SimpleNamespace(EvidenceGate=_no_gate)  # type: ignore[assignment]
    background.FORKING = "benchmarks.unrecorded_node"
    words = sys.argv[1:]
    sys.exit(forking.main(words) if words[:1] == ["--modes"] else main(words))
