"""Coterie's network plugin for containerd (CNI): connects a network namespace to the node's pod network.

    containerd ── CNI_COMMAND=ADD, CNI_NETNS, pod uid ──> this program ── "connect" ──> the pod supervisor ──> veth, address, rules

The agent has told the supervisor before which address and rules the pod has. Nothing is to do for DEL: the devices go with the
namespace, the rules when the agent removes the pod. Called as `loopback`, it has nothing to do either: the supervisor sets up `lo`.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from coterie.kube.agent.runtimes.runp import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "coterie"
VERSIONS = ["0.3.1", "0.4.0", "1.0.0"]
_TRY_AGAIN, _FAILED = 11, 100
_SECONDS = 20.0


def main() -> int:
    command = os.environ.get("CNI_COMMAND", "")
    if command == "VERSION":
        return _answer({"cniVersion": VERSIONS[-1], "supportedVersions": VERSIONS})
    config = json.load(sys.stdin)
    version = config.get("cniVersion", VERSIONS[0])
    if command != "ADD":
        return 0
    if config.get("type") != NAME:
        return _answer({"cniVersion": version, "interfaces": [{"name": "lo"}]})
    try:
        address = connect(config["supervisor"], _pod_uid(), os.environ["CNI_NETNS"])
    except OSError as problem:
        return _refuse(version, _TRY_AGAIN, f"the pod supervisor cannot be reached: {problem}")
    except ConnectRefused as problem:
        return _refuse(version, _FAILED, str(problem))
    device = os.environ.get("CNI_IFNAME", "eth0")
    return _answer(
        {
            "cniVersion": version,
            "interfaces": [{"name": device, "sandbox": os.environ["CNI_NETNS"]}],
            "ips": [{"version": "4", "address": f"{address}/32", "interface": 0}],
        }
    )


class ConnectRefused(Exception):
    """The supervisor does not connect it."""


def connect(directory: str, uid: str, netns: str) -> str:
    """The address that the pod has. Raises OSError and ConnectRefused."""
    return str(request(directory, {"op": "connect", "uid": uid, "netns": netns}))


def request(directory: str, message: dict[str, Any]) -> Any:
    """The supervisor's answer. Raises OSError and ConnectRefused."""
    name, handle = wire.address(directory)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_SECONDS)
        connection.connect(name)
        connection.sendall(wire.encode({"id": 1, **message}))
        inbox = wire.Inbox()
        while True:
            data, handles = wire.receive(connection)
            if not data:
                raise ConnectionResetError("it went away")
            for answer, _ in inbox.feed(data, handles):
                if answer.get("id") == 1:
                    if "error" in answer:
                        raise ConnectRefused(answer["error"][1])
                    return answer["ok"]
    finally:
        connection.close()
        os.close(handle)


def _pod_uid() -> str:
    pairs = dict(pair.partition("=")[::2] for pair in os.environ.get("CNI_ARGS", "").split(";"))
    return pairs.get("K8S_POD_UID", "")


def _answer(result: dict[str, Any]) -> int:
    sys.stdout.write(json.dumps(result))
    return 0


def _refuse(version: str, code: int, text: str) -> int:
    sys.stdout.write(json.dumps({"cniVersion": version, "code": code, "msg": text}))
    return 1


if __name__ == "__main__":
    sys.exit(main())
