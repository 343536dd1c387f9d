"""capabilities.add and .drop, as a container has them."""

from __future__ import annotations

import pytest
from runp_kit import RunpHarness

from coterie.kube.agent.runtimes.protocol import RuntimeFailure, Security
from coterie.kube.agent.runtimes.runp import capabilities
from coterie.kube.agent.runtimes.runp.capabilities import CapabilityRefused, kept, mask
from coterie.kube.agent.runtimes.runp.linux import CAPABILITIES

SHOW = "grep -E 'CapBnd|CapEff' /proc/self/status"
TRACE = """python3 -c '
import ctypes, os, time
child = os.fork()
if not child:
    time.sleep(20)
time.sleep(0.2)
libc = ctypes.CDLL(None, use_errno=True)
print("attached" if libc.ptrace(16, child, 0, 0) == 0 else os.strerror(ctypes.get_errno()))
os.kill(child, 9)
'"""


@pytest.mark.parametrize(
    ("add", "drop", "expected"),
    [
        ((), (), set(CAPABILITIES)),
        (("SYS_CHROOT",), (), {*CAPABILITIES, "SYS_CHROOT"}),
        (("cap_sys_chroot",), ("KILL", "CAP_SETUID"), {*CAPABILITIES, "SYS_CHROOT"} - {"KILL", "SETUID"}),
        ((), ("ALL",), set()),
        (("NET_BIND_SERVICE", "CHOWN"), ("ALL",), {"NET_BIND_SERVICE", "CHOWN"}),
        (("CHOWN",), ("CHOWN",), set(CAPABILITIES) - {"CHOWN"}),
        ((), ("NET_RAW",), set(CAPABILITIES)),
    ],
)
def test_what_is_kept(add: tuple[str, ...], drop: tuple[str, ...], expected: set[str]) -> None:
    assert set(kept(add, drop, own_users=True)) == expected


@pytest.mark.parametrize(
    ("add", "own_users", "why"),
    [
        (("NET_ADMIN",), True, "NET_ADMIN cannot be given"),
        (("ALL",), True, "ALL cannot be given"),
        (("SYS_ADMIN", "CHOWN"), True, "SYS_ADMIN cannot be given"),
        (("MAGIC",), True, "no capability MAGIC"),
        (("SYS_PTRACE",), False, "needs a user namespace"),
    ],
)
def test_what_would_have_no_effect_is_refused(add: tuple[str, ...], own_users: bool, why: str) -> None:
    with pytest.raises(CapabilityRefused, match=why):
        kept(add, (), own_users=own_users)


def test_every_capability_of_the_kernel_has_a_place() -> None:
    assert len(capabilities.NUMBERS) + len(capabilities.WITHOUT_EFFECT) == 41
    assert not set(capabilities.NUMBERS) & capabilities.WITHOUT_EFFECT
    assert mask(None) == 0x5FB and mask([]) == 0


async def test_a_container_has_what_it_asks_for(runp: RunpHarness) -> None:
    if not runp.powers["namespaces"]:
        pytest.skip("needs user namespaces")
    assert "CapBnd:\t0000000000000000\n" in await runp.output(SHOW, security=Security(drop_capabilities=("ALL",)))
    security = Security(run_as_user=0, add_capabilities=("SYS_CHROOT",), drop_capabilities=("ALL",))
    if not (runp.powers["users"] or runp.powers["namespaces"] == "user"):
        with pytest.raises(RuntimeFailure, match="needs a user namespace"):
            await runp.output(SHOW, security=security)
        return
    text = await runp.output(SHOW, security=security)
    assert "CapBnd:\t0000000000040000" in text and "CapEff:\t0000000000040000" in text
    with pytest.raises(RuntimeFailure, match="NET_ADMIN cannot be given"):
        await runp.start("true", "refused", security=Security(add_capabilities=("NET_ADMIN",)))


async def test_debuggers_need_sys_ptrace(runp: RunpHarness) -> None:
    if not (runp.powers["users"] or runp.powers["namespaces"] == "user"):
        pytest.skip("needs user namespaces")
    assert "Operation not permitted" in await runp.output(TRACE)
    assert "attached" in await runp.output(TRACE, security=Security(add_capabilities=("SYS_PTRACE",)))
