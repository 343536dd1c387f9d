"""The connection to the partners, and seeing that they are still there.

Partners are called by name through the gateway: brpc's HTTP with pooled connections, the only one of its protocols that
keeps the name, and with bodies as they are: the usual ones are base64 in JSON. The library waits for a message as long
as it takes, for a partner may be busy with its own rows for long. Whether it still lives is asked beside: its port
answers while it works, whatever it works on.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from coterie.engines.psi.task import Party, Task

COMING = 60
"""Seconds for a partner to come."""
SILENCE = 60.0
"""Seconds without any answer after which a partner is lost."""
_EVERY = 5.0
_NOBODY_THERE = (502, 503, 504)
_FOR_EVER_MS = 24 * 3600 * 1000


class PartnerLost(Exception):
    """The sentence goes to the log."""


def connect(library: Any, task: Task) -> Any:
    desc = library.Desc() if hasattr(library, "Desc") else library.ContextDesc()
    desc.id = task.id
    for party in task.parties:
        desc.add_party(party.name, f"0.0.0.0:{task.port}" if party is task.own else f"http://{party.endpoint}")
    desc.brpc_channel_protocol = "http:proto"
    desc.brpc_channel_connection_type = "pooled"
    desc.connect_retry_interval_ms = 100
    desc.connect_retry_times = COMING * 10
    desc.recv_timeout_ms = _FOR_EVER_MS
    desc.http_timeout_ms = 120 * 1000
    desc.retry_opts.retry_interval_ms = 100
    desc.retry_opts.retry_interval_incr_ms = 500
    desc.retry_opts.max_retry = 12
    try:
        return library.create_brpc(desc, task.rank)
    except RuntimeError as problem:
        names = " and ".join(each.name for each in task.partners)
        raise PartnerLost(f"{names} could not be reached within {COMING} s of the start") from problem


def report_to_all(link: Any, value: Any) -> list[Any]:
    """What each party says, by rank."""
    try:
        return [json.loads(each) for each in link.all_gather(json.dumps(value))]
    except RuntimeError as problem:
        raise PartnerLost("the connection to the partners broke") from problem


class PartnerWatch:
    """Calls `lost` with a sentence when a partner does not answer any more."""

    def __init__(
        self, task: Task, lost: Callable[[str], None], silence: float = SILENCE, every: float = _EVERY
    ) -> None:
        self._task = task
        self._lost = lost
        self._silence = silence
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> PartnerWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        last_answer = {each.name: time.monotonic() for each in self._task.partners}
        while not self._over.wait(self._every):
            for partner in self._task.partners:
                if answers(partner, self._every):
                    last_answer[partner.name] = time.monotonic()
                elif time.monotonic() - last_answer[partner.name] > self._silence and not self._over.is_set():
                    self._lost(f"{partner.name} has not answered for {self._silence:g} s")
                    return


def answers(partner: Party, timeout: float) -> bool:
    """Whatever it says; only the gateway's word that nobody is there counts as no."""
    proxy = os.environ.get("http_proxy", "").removeprefix("http://").rstrip("/")
    call = http.client.HTTPConnection(proxy or partner.endpoint, timeout=timeout)
    try:
        call.request("GET", f"http://{partner.endpoint}/health" if proxy else "/health")
        return call.getresponse().status not in _NOBODY_THERE
    except (OSError, http.client.HTTPException):
        return False
    finally:
        call.close()
