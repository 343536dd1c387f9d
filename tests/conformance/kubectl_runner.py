"""Which kubectl binaries this machine has, and running them: bounded in time, with a home and a cache of their own."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / ".tools" / "kubectl"
ALL_VARIABLE = "COTERIE_ALL_KUBECTL"
_NAME = re.compile(r"kubectl-(\d+)\.(\d+)")


def minor(version: str) -> tuple[int, int]:
    """`1.27` as something that compares."""
    major, small = version.split(".")
    return int(major), int(small)


def found() -> dict[str, Path]:
    """Version -> binary, oldest first."""
    matches = {path: _NAME.fullmatch(path.name) for path in (TOOLS.iterdir() if TOOLS.is_dir() else ())}
    versions = {f"{m[1]}.{m[2]}": path for path, m in matches.items() if m and path.exists()}
    return dict(sorted(versions.items(), key=lambda item: minor(item[0])))


def chosen() -> list[str]:
    """The versions tests run with: the oldest (JSON) and the newest (protobuf), or all when asked for."""
    versions = list(found())
    if os.environ.get(ALL_VARIABLE) == "1" or len(versions) <= 2:
        return versions
    return [versions[0], versions[-1]]


def poll_pause(waited: float, cost: float, least: float = 0.05) -> float:
    """Seconds before the next look, of one that has waited so long and whose last look took so long. A look is
    often a process of kubectl: looking without pause would take a core from the tests beside. Nothing ends more than a tenth later than it could."""
    return max(least, min(2 * cost, waited / 10))


@dataclass(frozen=True, slots=True)
class Result:
    args: tuple[str, ...]
    rc: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"$ kubectl {' '.join(self.args)}\nstatus {self.rc}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Kubectl:
    """One kubectl version with one kubeconfig, working in one directory. `others`: of further API servers, which commands go to in turn."""

    def __init__(
        self, version: str, kubeconfig: Path, directory: Path, home: Path, others: Sequence[Path] = ()
    ) -> None:
        self.version = version
        self.kubeconfig = kubeconfig
        self.directory = directory
        self._binary = str(found()[version])
        self._environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(home),
            "KUBECACHEDIR": str(home / "cache"),
            "KUBECONFIG": str(kubeconfig),
            "TZ": "UTC",
            "GOGC": "off",  # it ends before collecting garbage pays
        }
        self._turns = itertools.cycle((kubeconfig, *others))
        # Older ones know no variable for their cache and keep it below HOME.
        (home / ".kube").mkdir(parents=True, exist_ok=True)

    def run(
        self, *args: str, stdin: str = "", timeout: float = 40.0, environment: Mapping[str, str] | None = None
    ) -> Result:
        try:
            done = subprocess.run(
                [self._binary, *args],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout,
                cwd=self.directory,
                env=self._of_turn(args, environment),
            )
        except subprocess.TimeoutExpired as late:
            out, err = (_text(part) for part in (late.stdout, late.stderr))
            return Result(args, -1, out, f"{err}\n(still running after {timeout} s)")
        return Result(args, done.returncode, done.stdout, done.stderr)

    def start(self, *args: str, environment: Mapping[str, str] | None = None) -> Running:
        return Running(args, [self._binary, *args], self.directory, self._of_turn(args, environment))

    def _of_turn(self, args: Sequence[str], more: Mapping[str, str] | None) -> dict[str, str]:
        # What changes the file itself is seen there only.
        chosen = self.kubeconfig if args[:1] == ("config",) else next(self._turns)
        return {**self._environment, "KUBECONFIG": str(chosen), **(more or {})}


def _text(part: bytes | str | None) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part or ""


class Running:
    """A kubectl that does not end by itself (a watch, a followed log, a port-forward)."""

    def __init__(self, args: Sequence[str], command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._args = tuple(args)
        self._out: list[str] = []
        self._err: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=environment,
        )
        streams = ((self._process.stdout, self._out), (self._process.stderr, self._err))
        self._readers = [threading.Thread(target=_collect, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    def wait_for(self, pattern: str, timeout: float = 20.0) -> re.Match[str] | None:
        """The first match in what it printed so far, or None when none came in time."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self._process.poll() is not None
            match = re.search(pattern, "".join(self._out), re.MULTILINE)
            if match or ended or time.monotonic() > deadline:
                return match
            time.sleep(0.02)

    def stop(self) -> Result:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join()
        return Result(self._args, self._process.returncode, "".join(self._out), "".join(self._err))


def _collect(stream: object, into: list[str]) -> None:
    with stream:  # type: ignore[attr-defined]
        for line in stream:  # type: ignore[attr-defined]
            into.append(line)
