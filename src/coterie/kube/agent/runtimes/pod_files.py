"""The files of a pod's own that all its containers see in /etc."""

from __future__ import annotations

from pathlib import Path

from coterie.kube.agent.runtimes.protocol import PodSandbox


def write_etc_files(directory: Path, sandbox: PodSandbox) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("hosts", sandbox.hosts),
        ("resolv.conf", sandbox.resolv_conf),
        ("hostname", sandbox.hostname + "\n"),
    ):
        # In place: containers that run have this very file mounted.
        (directory / name).write_text(text)
