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


def take_the_recorder_away() -> None:
    """AttributeError when the control plane gets it in another way than this knows: else both networks would record."""
    for name, instead in (
        ("evidence_recording", SimpleNamespace(recording_parts=_nothing)),
        ("api_writes", SimpleNamespace(EvidenceGate=_no_gate)),
    ):
        getattr(control_plane, name)
        setattr(control_plane, name, instead)


if __name__ == "__main__":
    take_the_recorder_away()
    background.FORKING = "benchmarks.unrecorded_node"
    words = sys.argv[1:]
    sys.exit(forking.main(words) if words[:1] == ["--modes"] else main(words))
