"""Runs one node until it is told to stop. Which parts a mode has is declared in `node/parts/registry.py`.

The first part that fails stops the rest, and its error is what `run` raises. Pods go on: the next start finds them.
"""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import sys
from functools import partial
from pathlib import Path

from coterie.base import child_logging
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import LogSettings, configure, logger, set_level
from coterie.base.service_notice import READY, STOPPING, ServiceNotice
from coterie.kube.control.leader import LeaderElected
from coterie.kube.control.manager import Manager, Runnable
from coterie.node.config import NodeSettings
from coterie.node.config.gateway import UNPRIVILEGED_SENTENCE
from coterie.node.housekeeping import Housekeeper
from coterie.node.log_files import log_files
from coterie.node.parts import registry
from coterie.node.reloading import ConfigWatch, LogsAtLevel

log = logger("node")


async def run(
    settings: NodeSettings, clock: Clock = SYSTEM_CLOCK, *, file: Path | None = None, root: Path | None = None
) -> None:
    """Run a node until SIGTERM or SIGINT. `file`, `root`: what `settings` were loaded from, to be watched."""
    service = ServiceNotice.taken()
    configure(_logging(settings, settings.log_level))
    for notice in settings.notices:
        if settings.agent is not None and notice.sentence == UNPRIVILEGED_SENTENCE:
            continue  # these ports are opened in the pod network, where all of them are free; without one that is told
        more = {name: text for name, text in (("value", notice.value), ("do", notice.advice)) if text}
        log.bind(**more).warning(notice.sentence, key=notice.key)
    settings.paths.prepare()
    child_logging.write(settings.paths.logging, _logging(settings, settings.log_level))
    # A lite waits for its master for as long as that takes: its pods go on, and the link says what is wrong.
    start_timeout = math.inf if settings.gateway.master is not None else 60.0
    # Logs first: a start that fails again and again fills them too.
    parts: list[list[Runnable]] = [[log_files(settings, clock)], *registry.build(settings, clock), [Housekeeper(clock)]]
    watch = ConfigWatch(file, root, settings, partial(_log_at, settings, parts), clock) if file is not None else None
    if watch is not None:
        parts[0].append(watch)
    manager = Manager(parts, name=settings.domain, ready_timeout=start_timeout, clock=clock)
    elected = [part for group in parts for part in group if isinstance(part, LeaderElected)]

    def stop() -> None:
        manager.stop()
        # Before everything else: another member goes on while this one still stops.
        for each in elected:
            each.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # From a terminal that is closed it means what it always did, but in order.
    from_terminal = sys.stdin.isatty() or sys.stderr.isatty()
    loop.add_signal_handler(signal.SIGHUP, stop if watch is None or from_terminal else watch.reload)
    _spare_the_collector()
    telling = asyncio.ensure_future(_tell_ready(manager, service))
    try:
        await manager.run()
    finally:
        telling.cancel()
        service.send(STOPPING)
    log.info("The node stopped", domain=settings.domain)


async def _tell_ready(manager: Manager, service: ServiceNotice) -> None:
    await manager.ready.wait()
    service.send(READY)


def _logging(settings: NodeSettings, level: str) -> LogSettings:
    return LogSettings(level=level, format="json" if settings.log_json else "plain")


def _log_at(settings: NodeSettings, parts: list[list[Runnable]], level: str) -> None:
    """Here, in child processes, and in parts that have a log of another kind."""
    set_level(level)
    try:
        child_logging.write(settings.paths.logging, _logging(settings, level))
    except OSError as problem:
        log.warning("Child processes keep their log level", error=problem)
    for part in (each for group in parts for each in group):
        if isinstance(part, LogsAtLevel):
            part.log_at(level)


def _spare_the_collector() -> None:
    """What was loaded at start lives as long as the process, and caches hold many small objects that have no cycles:
    looking at all of them again and again would cost more than it could ever free."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
