"""Mode master: the control plane alone."""

from __future__ import annotations

from coterie.base.clock import Clock
from coterie.control.manager import Runnable
from coterie.node.config import NodeSettings
from coterie.node.control import control_groups
from coterie.node.owndomain import prepared


def groups(settings: NodeSettings, clock: Clock) -> list[list[Runnable]]:
    with prepared(settings, clock):
        made, _, _ = control_groups(settings, clock)
    return made
