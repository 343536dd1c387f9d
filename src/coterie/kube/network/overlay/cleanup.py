"""What the overlay has in the machine's network namespace, and how it is removed when the pod network goes.

The file `overlay.json` beside the supervisor's files says what there is. The domain's end of everything goes with the domain's
namespace.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from coterie.kube.network.overlay.outer_filter import OuterFilter
from coterie.kube.network.overlay.plan import host_device
from coterie.kube.network.pods import rtnetlink
from coterie.kube.network.pods.netlink import NETLINK_NETFILTER, NETLINK_ROUTE, NetlinkSocket

FILE = "overlay.json"


def recorded(directory: Path) -> int:
    """The VNI of what this node has on the machine; 0: nothing."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((directory / FILE).read_text())["vni"])
    return 0


def record(directory: Path, vni: int) -> None:
    """Before anything is made."""
    (directory / FILE).write_text(json.dumps({"vni": vni}))


def clean(directory: Path) -> None:
    """Remove the device and the rules of the node whose supervisor has this directory; nothing where there are none. The caller
    is in the machine's network namespace."""
    vni = recorded(directory)
    if not vni:
        return
    netlink = NetlinkSocket(NETLINK_ROUTE)
    try:
        with contextlib.suppress(OSError):  # it went with the domain's namespace
            netlink.request([rtnetlink.delete_device(host_device(vni))])
    finally:
        netlink.close()
    rules = NetlinkSocket(NETLINK_NETFILTER)
    try:
        with contextlib.suppress(PermissionError):  # an ordinary user made none
            OuterFilter(rules, vni).remove()
    finally:
        rules.close()
    (directory / FILE).unlink(missing_ok=True)
