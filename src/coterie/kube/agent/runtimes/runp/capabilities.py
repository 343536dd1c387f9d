"""Which capabilities a container has: a few by default, some more by name, none that would have no effect.

A container has a user namespace of its own. Capabilities count there only: for its files, processes and IPC. Its network
namespace belongs to the node, so those of the network, of devices, of the clock and of the kernel would have no effect, and
are refused rather than accepted in silence.
"""

from __future__ import annotations

from coterie.kube.agent.runtimes.runp.linux import CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ALL = "ALL"
ADDABLE = {"DAC_READ_SEARCH": 2, "IPC_OWNER": 15, "SYS_CHROOT": 18, "SYS_PTRACE": 19, "SETFCAP": 31}
"""Beyond the default ones: what works inside a user namespace and reaches nothing outside of it."""
WITHOUT_EFFECT = frozenset(
    (
        "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "IPC_LOCK", "LEASE",
        "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BROADCAST", "NET_RAW", "PERFMON",
        "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME",
        "SYS_TTY_CONFIG", "WAKE_ALARM",
    )
)  # fmt: skip
NUMBERS = {**CAPABILITIES, **ADDABLE}


class CapabilityRefused(Exception):
    """A container asks for what it cannot have."""


def kept(add: Iterable[str], drop: Iterable[str], *, own_users: bool) -> list[str]:
    """The names of those that a container keeps. `own_users`: whether it has a user namespace of its own."""
    added, dropped = _names(add), _names(drop)
    unknown = sorted({*added, *dropped} - {*NUMBERS, *WITHOUT_EFFECT, ALL})
    if unknown:
        raise CapabilityRefused(f"there is no capability {', '.join(unknown)}")
    useless = [name for name in added if name == ALL or name in WITHOUT_EFFECT]
    if useless:
        raise CapabilityRefused(
            f"capabilities.add: {', '.join(useless)} cannot be given: containers have user namespaces of their own, "
            f"in which only {', '.join(sorted(NUMBERS))} have an effect"
        )
    more = [name for name in added if name in ADDABLE]
    if more and not own_users:
        raise CapabilityRefused(
            f"capabilities.add: {', '.join(more)} needs a user namespace, which this node cannot give to containers"
        )
    chosen = {*added} if ALL in dropped else {*CAPABILITIES, *added}
    return sorted(chosen - {*dropped})


def mask(names: Sequence[str] | None) -> int:
    """As bits; None: the default ones."""
    return sum(1 << NUMBERS[name] for name in (CAPABILITIES if names is None else names))


def _names(given: Iterable[str]) -> list[str]:
    return [name.upper().removeprefix("CAP_") for name in given]
