"""The user's code as a function, and its replacement by another version in the same process.

`load` imports the new code into fresh modules and touches nothing of the old: calls that run keep the old function. Only one load runs at
a time. One that fails leaves `sys.path` and `sys.modules` as they were.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any

_PART = "archive."
"""An archive that did not fit into one object lies in the directory as archive.000, archive.001, ..."""
_MOST_TEXT = 1000


class CodeError(Exception):
    """The code cannot be used; the message has file, line and cause."""


class LoadedCode(NamedTuple):
    function: Callable[[Any], Any]
    handler: str
    version: str
    next: frozenset[str]


class CodeLoader:
    def __init__(self, directory: str, scratch: str) -> None:
        self._directory = directory
        self._scratch = scratch
        """Where archives are unpacked."""
        self._root = ""
        """Of the code that is in use."""
        self._unpacked = 0
        self._lock = threading.Lock()
        self._decision = threading.Lock()
        self._pending: threading.Thread | None = None
        """A load that ran out of time."""
        self._finished: threading.Thread | None = None
        """The last load that succeeded in time."""

    def load(self, handler: str, version: str, next: frozenset[str], archive: bytes | None = None) -> LoadedCode:
        """From the directory, or from an archive. CodeError when it cannot be used."""
        with self._lock:
            root = self._unpack(archive) if archive is not None else self._from_directory()
            return LoadedCode(self._import(root, handler), handler, version, next)

    def load_within(
        self, seconds: float, handler: str, version: str, next: frozenset[str], archive: bytes | None
    ) -> LoadedCode:
        """The same in a thread of its own; CodeError after `seconds`. A thread cannot be stopped: whatever it does is undone."""
        if self._pending is not None and self._pending.is_alive():
            raise CodeError("an import that ran out of time is still running; this actor has to be replaced")
        outcome: list[LoadedCode | BaseException] = []
        modules, path, root = dict(sys.modules), list(sys.path), self._root

        def run() -> None:
            try:
                outcome.append(self.load(handler, version, next, archive))
            except BaseException as problem:  # noqa: BLE001 (raised again by whoever waits)
                outcome.append(problem)

        thread = threading.Thread(target=run, name="load", daemon=True)
        thread.start()
        thread.join(seconds)
        with self._decision:
            late = thread.is_alive() and self._finished is not thread
            if late:
                self._pending = thread
        if late:
            where = _where_now(thread.ident, self._directory, self._scratch)
            new, self._root = self._root, root
            _restore(modules, path, new)
            raise CodeError(f"the import did not end within {seconds:g} s{where}")
        thread.join()
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _from_directory(self) -> str:
        try:
            parts = sorted(name for name in os.listdir(self._directory) if name.startswith(_PART))
        except OSError as problem:
            raise CodeError(f"{self._directory}: {problem.strerror}") from problem
        if not parts:
            return self._directory
        pieces = []
        for name in parts:
            with open(os.path.join(self._directory, name), "rb") as file:
                pieces.append(file.read())
        return self._unpack(b"".join(pieces))

    def _unpack(self, archive: bytes) -> str:
        uploads = upload_tools()
        self._unpacked += 1
        root = os.path.join(self._scratch, f"coterie-code-{os.getpid()}-{self._unpacked}")
        try:
            os.mkdir(root, 0o700)
            uploads.unpack(archive, root)
        except (OSError, uploads.ArchiveError) as problem:
            upload_tools().remove(root)
            raise CodeError(f"{problem}") from problem
        return root

    def _import(self, root: str, handler: str) -> Callable[[Any], Any]:
        modules, path, old = dict(sys.modules), list(sys.path), self._root
        for name, module in modules.items():
            if _is_below(module, root) or (old and _is_below(module, old)):
                del sys.modules[name]
        sys.path[:] = [root, *(entry for entry in path if entry not in (old, root))]
        importlib.invalidate_caches()
        self._root = root
        try:
            function = _function(root, handler)
            with self._decision:
                if self._pending is threading.current_thread():
                    raise CodeError("the import took too long")
                self._finished = threading.current_thread()
        except BaseException as problem:
            self._root = old
            _restore(modules, path, root)
            if root != self._directory:
                upload_tools().remove(root)
            if isinstance(problem, CodeError):
                raise
            raise CodeError(_described(problem, root)) from problem
        if old not in ("", root, self._directory):
            upload_tools().remove(old)
        return function


def upload_tools() -> Any:
    """The module `uploads`."""
    return importlib.import_module("coterie.engines.actor.uploads")


def _function(root: str, handler: str) -> Callable[[Any], Any]:
    module_name, _, name = handler.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in handler.split(".")):
        raise CodeError(f'handler "{handler}" is not module.function')
    absent = CodeError(f'handler "{handler}": there is no {module_name.replace(".", "/")}.py in the code')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name and f"{module_name}.".startswith(f"{problem.name}.") and not _where(problem, root):
            raise absent from None
        raise
    if not _is_below(module, root):
        raise absent
    function = getattr(module, name, None)
    if not callable(function):
        raise CodeError(f'handler "{handler}": {module_name} has no function "{name}"')
    found: Callable[[Any], Any] = function
    return found


def _is_below(module: ModuleType | None, root: str) -> bool:
    places = [getattr(module, "__file__", None) or ""]
    try:
        places += list(getattr(module, "__path__", None) or ())
    except Exception:  # noqa: BLE001 (a module may be anything)
        return False
    return any(isinstance(place, str) and place.startswith(root.rstrip("/") + "/") for place in places)


def _restore(modules: dict[str, ModuleType], path: list[str], root: str) -> None:
    """Modules of the code below `root` go, those that were there come back. What they imported of the environment stays."""
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if _is_below(module, root) and modules.get(name) is not module:
            del sys.modules[name]
    for name, module in modules.items():
        sys.modules.setdefault(name, module)


def _described(problem: BaseException, root: str) -> str:
    return f"{_where(problem, root)}{error_text(problem)}"


def error_text(problem: BaseException) -> str:
    """`ValueError: message`, within a bound. The message is made by code of the user."""
    name = type(problem).__name__
    try:
        message = problem.msg if isinstance(problem, SyntaxError) and problem.msg else str(problem)
    except BaseException:  # noqa: BLE001 (the code of the user, again)
        message = "(its message cannot be shown)"
    message = " ".join(message.split()) if len(message) < _MOST_TEXT else f"{message[:_MOST_TEXT]}..."
    return f"{name}: {message}" if message else name


def _where(problem: BaseException, root: str) -> str:
    if isinstance(problem, SyntaxError) and problem.filename and problem.filename.startswith(root.rstrip("/") + "/"):
        return f"{os.path.relpath(problem.filename, root)}:{problem.lineno}: "
    trace: TracebackType | None = problem.__traceback__
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(root.rstrip("/") + "/"):
            found = f"{os.path.relpath(file, root)}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return found


def _where_now(thread: int | None, *roots: str) -> str:
    """Where the code of the user is, in a thread that does not end."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None:
        file = frame.f_code.co_filename
        for root in roots:
            if root and file.startswith(root.rstrip("/") + "/"):
                return f"; it is at {os.path.relpath(file, root)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
