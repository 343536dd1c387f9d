"""What the supervisor must not forget: pods and runs, one small JSON file each, replaced whole.

    <directory>/state/<pod uid>/pod.json
    <directory>/state/<pod uid>/<container>.<attempt>.json
    <directory>/state/<pod uid>/<container>.<attempt>.{out,err}    pipes that carry its output
    <directory>/state/<pod uid>/<container>.<attempt>.exit         how it ended, written by its init

An exit is flushed to disk before anybody hears of it. A start is not: what a power cut takes from the disk, it also
takes from the processor. A full disk does not stop anything; what could not be written is written later.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Records:
    def __init__(self, directory: str) -> None:
        self._directory = f"{directory}/state"
        self._late: dict[str, dict[str, Any]] = {}
        os.makedirs(self._directory, mode=0o700, exist_ok=True)

    def path(self, uid: str, name: str) -> str:
        return f"{self._directory}/{uid}/{name}"

    def load(self) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Pods by uid, each with its runs, oldest first. What cannot be read is passed over: it was never finished."""
        found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        for uid in os.listdir(self._directory):
            pod: dict[str, Any] | None = None
            runs: list[dict[str, Any]] = []
            for name in os.listdir(f"{self._directory}/{uid}"):
                if not name.endswith(".json"):
                    continue
                try:
                    with open(self.path(uid, name)) as file:
                        record = json.load(file)
                except (OSError, ValueError):
                    continue
                if name == "pod.json":
                    pod = record
                else:
                    runs.append(record)
            if pod is not None:
                runs.sort(key=lambda run: (run["started_at"], run["attempt"]))
                found[uid] = (pod, runs)
        return found

    def save(self, uid: str, name: str, record: dict[str, Any], *, flush: bool) -> None:
        """Raises OSError when the disk will not take it."""
        path = self.path(uid, f"{name}.json")
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        aside = path + ".tmp"
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            data = json.dumps(record, separators=(",", ":")).encode("ascii")
            if os.write(handle, data) < len(data):
                raise OSError(28, "No space left on device", path)
            if flush:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(aside, path)
        self._late.pop(path, None)

    def save_soon(self, uid: str, name: str, record: dict[str, Any]) -> bool:
        """As `save`, but a disk that will not take it is asked again by `retry`. False: not yet on disk."""
        try:
            self.save(uid, name, record, flush=True)
        except OSError:
            self._late[self.path(uid, f"{name}.json")] = {"uid": uid, "name": name, "record": record}
            return False
        return True

    def retry(self) -> bool:
        """Whether all is on disk now."""
        entries = list(self._late.values())
        return all(self.save_soon(entry["uid"], entry["name"], entry["record"]) for entry in entries)

    def forget(self, uid: str, name: str) -> None:
        for ending in ("json", "out", "err", "exit"):
            path = self.path(uid, f"{name}.{ending}")
            self._late.pop(path, None)
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue

    def forget_pod(self, uid: str) -> None:
        """Also one of which only a part is left, or nothing."""
        if not uid:
            raise ValueError("a pod has a uid")
        prefix = self.path(uid, "")
        for path in [path for path in self._late if path.startswith(prefix)]:
            del self._late[path]
        try:
            for name in os.listdir(prefix):
                os.unlink(prefix + name)
            os.rmdir(prefix)
        except FileNotFoundError:
            return
