"""What a forked child of another process needs to become a container, sent to it over a socket: descriptors, and a file in memory.

Nothing of it passes through the process that is forked: what a pod's environment holds is never in the memory of the next pod.
"""

from __future__ import annotations

import json
import os
import socket

from coterie.kube.agent.runtimes.runp import wire
from coterie.kube.agent.runtimes.runp.child import ChildSetup
from coterie.kube.agent.runtimes.runp.filesystem import Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENDS = ("stdin", "stdout", "stderr", "status", "go", "mapped", "init", "note", "nothing")


class HandoverFailed(Exception):
    """What came is not whole: the sender is gone."""


def send(channel: socket.socket, setup: ChildSetup) -> None:
    """Raises OSError."""
    handles: list[int] = []

    def place(handle: int) -> int:
        """Its number in the message; -1: there is none."""
        if handle < 0:
            return -1
        handles.append(handle)
        return len(handles) - 1

    about = {
        "spec": setup.spec,
        "powers": setup.powers,
        "tty": setup.tty,
        "owner": setup.owner,
        "filter": setup.filter_program.decode("latin-1"),
        "ends": {name: place(getattr(setup, name)) for name in _ENDS},
        "cgroup": [place(handle) for handle in setup.cgroup],
        "sources": None if setup.sources is None else setup.sources.to_wire(place),
    }
    text = os.memfd_create("coterie-container", os.MFD_CLOEXEC)
    try:
        data = json.dumps(about).encode("ascii")
        while data:
            data = data[os.write(text, data) :]
        handles.append(text)
        for i in range(0, len(handles), wire.MOST_HANDLES):
            socket.send_fds(channel, [b"."], handles[i : i + wire.MOST_HANDLES])
    finally:
        os.close(text)


def receive(channel: socket.socket) -> ChildSetup:
    """Raises HandoverFailed, OSError."""
    handles: list[int] = []
    while True:
        data, given = wire.receive(channel)
        if not data:
            break
        handles += given
    if not handles:
        raise HandoverFailed
    text = handles.pop()
    with open(text, "rb") as file:
        file.seek(0)
        about: dict[str, Any] = json.loads(file.read())

    def take(number: int) -> int:
        return handles[number] if number >= 0 else -1

    ends = {name: take(number) for name, number in about["ends"].items()}
    streams = (ends["stdin"], ends["stdout"], ends["stderr"])
    setup = ChildSetup(about["spec"], about["powers"], streams, tty=about["tty"])
    for name in _ENDS[3:]:
        setattr(setup, name, ends[name])
    setup.cgroup = [take(number) for number in about["cgroup"]]
    user, group = about["owner"]
    setup.owner = (user, group)
    setup.filter_program = about["filter"].encode("latin-1")
    setup.sources = None if about["sources"] is None else Sources.from_wire(about["sources"], take)
    return setup
