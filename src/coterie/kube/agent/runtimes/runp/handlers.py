"""Which runtime handlers RunP has on this machine: found out when the runtime opens, by trying each once.

A handler that is not available says why and what to do: nodes tell it in their description, and pods that ask for it.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

from coterie import __version__
from coterie.kube.agent.runtimes.protocol import RuntimeFailure, RuntimeHandler
from coterie.kube.agent.runtimes.runp.request import BUBBLEWRAP

RUNP = RuntimeHandler("runp", True, version=__version__)
_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of the machine, not of the agent's environment: the supervisor executes what is found here."""
_VERSION_SECONDS = 5.0


def program(name: str) -> str:
    """Where a program of the machine is; empty: it is not installed."""
    return shutil.which(name, path=_SEARCH_PATH) or ""


async def version_of(path: str) -> str:
    """What a program says its version is; empty when it does not."""
    process = await asyncio.create_subprocess_exec(
        path, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, env={}
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _VERSION_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return ""
    found = _VERSION.search(output.decode(errors="replace"))
    return found[0] if found else ""


async def bubblewrap(powers: dict[str, Any], attempt: Callable[[str], Awaitable[str]]) -> tuple[RuntimeHandler, str]:
    """The handler and its program. `attempt` starts a program in it once and says what went wrong."""
    path = program("bwrap")
    if not path:
        return _without("bwrap is not installed; install the package bubblewrap"), ""
    if not powers.get("namespaces"):
        return _without("namespaces are not available here; run the node as root or allow user namespaces"), ""
    try:
        problem = await attempt(path)
    except RuntimeFailure as failure:
        problem = failure.message
    if problem:
        return _without(f"a trial of {path} failed ({problem}); check that user namespaces may be nested"), ""
    return RuntimeHandler(BUBBLEWRAP, True, version=await version_of(path)), path


def _without(why: str) -> RuntimeHandler:
    return RuntimeHandler(BUBBLEWRAP, False, why=why)
