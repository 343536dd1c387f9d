"""The API server's way to the endpoints of Services."""

from __future__ import annotations

import socket

from coterie.node.parts.pod_dialler import PodDialler


class Sockets:
    def __init__(self) -> None:
        self.made = 0

    def stream(self) -> socket.socket:
        self.made += 1
        return socket.socket()


async def test_pods_are_dialled_from_their_network_and_all_else_from_the_machine() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    sockets, dial = Sockets(), PodDialler()
    try:
        (await dial("127.0.0.1", port)).close()
        dial.attach(sockets, "10.9.0.0/16")
        (await dial("127.0.0.1", port)).close()
        assert sockets.made == 0
        dial.attach(sockets, "10.9.0.0/16", "127.0.0.0/8")
        (await dial("127.0.0.1", port)).close()
        assert sockets.made == 1
    finally:
        listener.close()
