"""Telling how far the task is, at most once a second. A courtesy: a task that cannot tell it goes on all the same."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request

_EVERY = 1.0
_TIMEOUT = 5.0


class Progress:
    def __init__(self, url: str) -> None:
        self._url = url
        self._wanted = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="progress", daemon=True)
        if url:
            self._thread.start()

    def tell(self, value: float) -> None:
        self._wanted = max(self._wanted, min(value, 1.0))

    def part(self, low: float, high: float, value: float) -> None:
        self.tell(low + (high - low) * value)

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT)

    def _tell(self) -> None:
        told = 0.0
        while not self._over.wait(_EVERY):
            if self._wanted > told:
                told = self._wanted
                self._post(told)

    def _post(self, value: float) -> None:
        body = json.dumps({"progress": round(value, 3)}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                answer.read()
        except (urllib.error.URLError, OSError) as problem:
            print(f"the progress could not be told: {problem}", file=sys.stderr, flush=True)
            self._over.set()
