"""Telling how far the task is, at most once a second. A courtesy: a task that cannot tell it goes on all the same.

Most protocols of the library do not say how far they are, but each of their stages leaves a file.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

STAGES = (
    ("*/*sorted_input.csv", 0.35),
    ("*/*key_info.csv", 0.45),
    ("*/intersection_indices*", 0.7),
    ("found.csv", 0.75),
)
"""What is there when so much is done."""
_EVERY = 1.0
_TIMEOUT = 5.0


class ProgressReporter:
    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory
        self._wanted = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report_stages, name="progress", daemon=True)
        if url:
            self._thread.start()

    def report(self, value: float) -> None:
        self._wanted = max(self._wanted, min(value, 1.0))

    def part(self, low: float, high: float, value: float) -> None:
        self.report(low + (high - low) * value)

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT)

    def _report_stages(self) -> None:
        reported = 0.0
        while not self._over.wait(_EVERY):
            for pattern, done in STAGES:
                if next(self._directory.glob(pattern), None) is not None:
                    self.report(done)
            if self._wanted > reported:
                reported = self._wanted
                self._post(reported)

    def _post(self, value: float) -> None:
        body = json.dumps({"progress": round(value, 3)}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                answer.read()
        except (urllib.error.URLError, OSError) as problem:
            print(f"the progress could not be reported: {problem}", file=sys.stderr, flush=True)
            self._over.set()
