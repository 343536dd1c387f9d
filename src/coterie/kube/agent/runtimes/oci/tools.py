"""The OCI runtime programs of this machine: which there are, and which handlers they make."""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.kube.agent.runtimes.oci.bundle import GVISOR
from coterie.kube.agent.runtimes.protocol import ContainerSpec, RuntimeFailure, RuntimeHandler
from coterie.kube.agent.runtimes.runp import handlers as programs

PROGRAMS: Mapping[str, str] = {"runc": "runc", "crun": "crun", GVISOR: "runsc"}
"""By handler."""
_FIRST_WITH_SYSTRAP = 20230904
_ARCHITECTURES = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True)
class OciTool:
    handler: str
    path: str
    """Empty: not installed."""
    version: str = ""

    def request(self) -> dict[str, Any]:
        """As the supervisor is told of it."""
        return {"handler": self.handler, "path": self.path, "platform": platform_of(self.version)}


async def find() -> list[OciTool]:
    """All of them, also those that are not there."""
    found = {handler: programs.program(name) for handler, name in PROGRAMS.items()}
    versions = await asyncio.gather(*(_version(path) for path in found.values()))
    return [OciTool(handler, path, version) for (handler, path), version in zip(found.items(), versions, strict=True)]


async def _version(path: str) -> str:
    try:
        return await programs.version_of(path) if path else ""
    except OSError:
        return ""


def platform_of(version: str) -> str:
    """How gVisor catches system calls: as well as this version can without hardware."""
    match = re.search(r"(20\d{6})", version)
    return "systrap" if match and int(match[1]) >= _FIRST_WITH_SYSTRAP else "ptrace"


def handlers(tools: Sequence[OciTool], powers: Mapping[str, Any]) -> list[RuntimeHandler]:
    return [handler_of(tool, powers) for tool in tools]


def handler_of(tool: OciTool, powers: Mapping[str, Any]) -> RuntimeHandler:
    why = ""
    program = PROGRAMS[tool.handler]
    if not tool.path:
        why = f"The program {program} is not installed on this machine; install its package and restart the node."
    elif not tool.version:
        why = f"{tool.path} does not run on this machine; reinstall the package of {program}."
    elif not powers.get("namespaces"):
        why = "Containers need namespaces, which this machine allows neither to root nor to the node's user."
    elif platform.machine() not in _ARCHITECTURES:
        why = f"Coterie has not been tried with {program} on {platform.machine()}; use the handler runp."
    return RuntimeHandler(tool.handler, not why, why, tool.version)


def refused(handler: str, spec: ContainerSpec) -> RuntimeFailure | None:
    """What a handler cannot do for a container, of what RunP can."""
    if handler == GVISOR:
        if spec.target:
            return _refusal(
                "containers in gVisor do not see the processes of others, so there can be no target container"
            )
        if spec.devices:
            return _refusal(
                f"gVisor has no devices of the machine, such as {spec.devices[0]}; use the handler runc or runp"
            )
        if spec.security.privileged:
            return _refusal("a privileged container has the machine's devices and kernel, which gVisor keeps away")
    return None


def _refusal(why: str) -> RuntimeFailure:
    return RuntimeFailure("CreateContainerConfigError", why)
