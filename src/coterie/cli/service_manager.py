"""systemd, as far as a node's service needs it: asked with `systemctl`."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.base.files import write_atomic
from coterie.cli.app import App, CliError

_SYSTEM_UNITS = Path("/etc/systemd/system")
_ASK_SECONDS = 30.0
_START_SECONDS = 120.0
_POLL_SECONDS = 0.2
_BETWEEN = "auto-restart"
"""It ended by itself and is started again in a moment."""
_NOT_BOOTED = ("offline", "unknown", "")
_PROPERTIES = ("ActiveState", "SubState", "Result", "MainPID", "NRestarts", "UnitFileState", "ActiveEnterTimestamp")


@dataclass(frozen=True, slots=True)
class UnitState:
    active: str
    """active, activating, failed, inactive, deactivating."""
    sub: str
    result: str
    pid: int
    restarts: int
    enabled: bool
    since: str


class Systemd:
    def __init__(self, app: App, *, user: bool) -> None:
        self._app = app
        self._user = user
        self._program = shutil.which("systemctl", path=app.environ.get("PATH")) or ""

    @property
    def directory(self) -> Path:
        """Where units are written."""
        if not self._user:
            return _SYSTEM_UNITS
        named = self._app.environ.get("XDG_CONFIG_HOME") or ""
        return (Path(named) if named else self._app.home / ".config") / "systemd" / "user"

    def unit_file(self, unit: str) -> Path:
        return self.directory / unit

    @property
    def runs(self) -> bool:
        return bool(self._program) and self._ask("is-system-running", check=False).strip() not in _NOT_BOOTED

    def require(self) -> None:
        """Raises CliError where it does not run, or may not be used."""
        if not self.runs:
            who = "your own systemd (systemctl --user)" if self._user else "systemd"
            raise CliError(
                f"Error: {who} does not run here; `coterie service install --print` prints the unit for another machine, "
                "and `coterie start` runs a node without a service"
            )
        if not self._user and os.getuid() != 0 and self.directory == _SYSTEM_UNITS:
            raise CliError(
                "Error: services of the system need root; run this as root, or use --user for one of your own"
            )

    def text_of(self, unit: str) -> str | None:
        try:
            return self.unit_file(unit).read_text()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise CliError(f"Error: {self.unit_file(unit)} cannot be read: {problem.strerror}") from problem

    def write(self, unit: str, text: str) -> None:
        path = self.unit_file(unit)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text, mode=0o644)
        except OSError as problem:
            raise CliError(f"Error: {path} cannot be written: {problem.strerror}") from problem
        self._ask("daemon-reload")

    def remove(self, unit: str) -> None:
        self.unit_file(unit).unlink(missing_ok=True)
        self._ask("daemon-reload")
        self._ask("reset-failed", unit, check=False)

    def enable(self, unit: str) -> None:
        self._ask("enable", unit)

    def disable(self, unit: str) -> None:
        self._ask("disable", unit, check=False)

    def restart(self, unit: str) -> None:
        """Returns at once; `wait` tells how it went."""
        self._ask("reset-failed", unit, check=False)
        self._ask("restart", "--no-block", unit)

    def stop(self, unit: str) -> None:
        self._ask("stop", unit, seconds=_START_SECONDS)

    def state(self, unit: str) -> UnitState:
        found = dict(line.split("=", 1) for line in self._show(unit).splitlines() if "=" in line)
        return UnitState(
            active=found.get("ActiveState", "inactive"),
            sub=found.get("SubState", ""),
            result=found.get("Result", ""),
            pid=_number(found.get("MainPID", "")),
            restarts=_number(found.get("NRestarts", "")),
            enabled=found.get("UnitFileState", "") == "enabled",
            since=found.get("ActiveEnterTimestamp", ""),
        )

    def _show(self, unit: str) -> str:
        return self._ask("show", unit, f"--property={','.join(_PROPERTIES)}")

    def wait(
        self,
        unit: str,
        seconds: float,
        *,
        before: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> str:
        """Until the service is ready. Empty: it is; otherwise why not. `before`: the process that must be gone."""
        deadline = clock() + seconds
        while True:
            state = self.state(unit)
            if state.active == "active" and state.pid != before:
                return ""
            if state.active == "failed":
                return f"it failed ({state.result or 'no result'})"
            if state.sub == _BETWEEN:
                return f"it ended ({state.result or 'no result'})"
            if clock() >= deadline:
                return f"it was not ready within {seconds:g} s ({state.active})"
            sleep(_POLL_SECONDS)

    def _ask(self, *words: str, check: bool = True, seconds: float = _ASK_SECONDS) -> str:
        command = [self._program, *(["--user"] if self._user else []), "--no-pager", *words]
        try:
            done = subprocess.run(
                command, env=dict(self._app.environ), capture_output=True, text=True, timeout=seconds, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            if not check:
                return ""
            raise CliError(f"Error: `{' '.join(command)}` did not end well: {problem}") from problem
        if check and done.returncode:
            why = (done.stderr or done.stdout).strip().splitlines()
            raise CliError(
                f"Error: `{' '.join(command)}` failed: {why[-1] if why else f'exit status {done.returncode}'}"
            )
        return done.stdout


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
