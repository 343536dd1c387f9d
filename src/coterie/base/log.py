"""Logging: a constant sentence, then facts as key=value, bound once to the thing they are about.

    log = logger("controllers.kusciajob").bind(job="alice/job-1")
    log.info("Phase changed", old="Pending", new="Running")

    2026-01-02T03:04:05.678Z info  controllers.kusciajob: Phase changed job=alice/job-1 old=Pending new=Running

Facts that concern all lines of a piece of work, such as its job and task, are set around it (`log_context`).

It rides on the standard library's logging, so that records of asyncio or aiohttp come out in the same shape. Secrets
are kept back three times: a `SecretValue` prints as stars, so does any value whose key names a credential, and text that
looks like a bearer token or a private key is cut out wherever it stands.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO

from coterie.base.secret import STARS, SecretValue

ROOT = "coterie"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SHORT = {10: "debug", 20: "info", 30: "warn", 40: "error", 50: "fatal"}
_COLOURS = {10: "\x1b[2m", 20: "\x1b[36m", 30: "\x1b[33m", 40: "\x1b[31m", 50: "\x1b[35m"}
_DIM, _OFF = "\x1b[2m", "\x1b[0m"
_FIELDS = "coterie_fields"
_LONGEST_VALUE = 2048

_SECRET_KEY = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|private_?key|authorization|cookie", re.IGNORECASE
)
_HARMLESS_KEYS = frozenset({"secret_name", "token_id", "token_expires", "secret_namespace"})
# "eyJ" opens every JSON object in base64, so every JWT.
_SECRET_TEXT = re.compile(
    r"(?i:bearer\s+)[\w.~+/=-]{8,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_PLAIN_VALUE = re.compile(r"[^\s\"=\x00-\x1f\x7f]+")


Facts = Callable[[], Mapping[str, Any]]
_CONTEXT: ContextVar[Facts | None] = ContextVar("log_context", default=None)


@contextmanager
def log_context(facts: Facts) -> Iterator[None]:
    """Every line that is written inside, also by tasks that are started there, has these facts. They are asked for only when
    a line is written; what the line says itself goes first."""
    before = _CONTEXT.set(facts)
    try:
        yield
    finally:
        _CONTEXT.reset(before)


class Logger:
    """A named logger with facts attached. Binding is cheap; a disabled level costs one dictionary look-up."""

    __slots__ = ("_fields", "_logger")

    def __init__(self, target: logging.Logger, fields: dict[str, Any] | None = None) -> None:
        self._logger = target
        self._fields = fields or {}

    @property
    def name(self) -> str:
        return self._logger.name

    def bind(self, **fields: Any) -> Logger:
        """The same logger, with more facts on each line."""
        return Logger(self._logger, {**self._fields, **fields})

    def enabled(self, level: int) -> bool:
        return self._logger.isEnabledFor(level)

    def debug(self, sentence: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(10):
            self._emit(10, sentence, fields)

    def info(self, sentence: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(20):
            self._emit(20, sentence, fields)

    def warning(self, sentence: str, *, error: BaseException | None = None, **fields: Any) -> None:
        if self._logger.isEnabledFor(30):
            self._emit(30, sentence, fields, error)

    def error(self, sentence: str, *, error: BaseException | None = None, trace: bool = False, **fields: Any) -> None:
        """`error` is shown as type and message; `trace` adds where it came from (for what should not happen)."""
        if self._logger.isEnabledFor(40):
            self._emit(40, sentence, fields, error, trace)

    def _emit(
        self,
        level: int,
        sentence: str,
        fields: dict[str, Any],
        error: BaseException | None = None,
        trace: bool = False,
    ) -> None:
        merged = {**self._fields, **fields} if self._fields else fields
        if (context := _CONTEXT.get()) is not None:
            merged = {**merged, **{key: value for key, value in context().items() if key not in merged}}
        if error is not None:
            merged["error"] = f"{type(error).__name__}: {error}"
        info = (type(error), error, error.__traceback__) if trace and error is not None else None
        record = logging.LogRecord(self._logger.name, level, "", 0, sentence, None, info)
        record.__dict__[_FIELDS] = merged
        self._logger.handle(record)


def logger(name: str) -> Logger:
    """The logger of a module, e.g. `logger("apiserver.audit")`."""
    return Logger(logging.getLogger(f"{ROOT}.{name}" if name else ROOT))


def format_value(key: str, value: Any) -> str:
    """A value as it may be printed."""
    if isinstance(value, SecretValue) or (key not in _HARMLESS_KEYS and _SECRET_KEY.search(key)):
        return STARS
    if isinstance(value, str):
        text = value
    elif value is None or isinstance(value, (bool, int)):
        return "null" if value is None else str(value).lower()
    elif isinstance(value, float):
        return f"{value:.6g}"
    elif isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"  # bytes are bodies and keys: never text for a log
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{k}: {format_value(str(k), v)}" for k, v in value.items()) + "}"
    elif isinstance(value, (list, tuple, set, frozenset)):
        text = "[" + ", ".join(format_value(key, item) for item in value) + "]"
    else:
        text = str(value)
    return redact(text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "...")


def redact(text: str) -> str:
    """The text without anything that looks like a bearer token or a private key."""
    if "eyJ" in text or "PRIVATE KEY" in text or "earer " in text or "EARER " in text:
        return _SECRET_TEXT.sub(STARS, text)
    return text


def _quoted(text: str) -> str:
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


class _Formatter(logging.Formatter):
    """Shared by both shapes: the time of the record, its facts, its sentence."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._prefix = ""

    def stamp(self, created: float) -> str:
        second = int(created)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._prefix}.{int((created - second) * 1000):03d}Z"

    @staticmethod
    def parts(record: logging.LogRecord) -> tuple[str, str, dict[str, Any], str]:
        """(logger, sentence, facts, trace)"""
        name = record.name.removeprefix(ROOT + ".")
        fields: dict[str, Any] = record.__dict__.get(_FIELDS) or {}
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        return name, redact(record.getMessage()), fields, redact(trace)


class PlainFormatter(_Formatter):
    """One line for people; a traceback, if any, follows indented."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        name, sentence, fields, trace = self.parts(record)
        # A line break in a message of somebody else's library must not look like a line of ours.
        sentence = sentence.replace("\r", "\\r").replace("\n", "\\n")
        level = _SHORT.get(record.levelno, record.levelname.lower())
        stamp = self.stamp(record.created)
        if self._colour:
            shade = _COLOURS.get(record.levelno, "")
            line = f"{_DIM}{stamp}{_OFF} {shade}{level:<5}{_OFF} {_DIM}{name}:{_OFF} {sentence}"
            facts = "".join(f" {_DIM}{key}={_OFF}{_quoted(format_value(key, value))}" for key, value in fields.items())
        else:
            line = f"{stamp} {level:<5} {name}: {sentence}"
            facts = "".join([f" {key}={_quoted(format_value(key, value))}" for key, value in fields.items()])
        if trace:
            return line + facts + "\n" + "\n".join("    " + part for part in trace.rstrip().splitlines())
        return line + facts


class JsonFormatter(_Formatter):
    """One JSON object per line: time, level, logger, message, then the facts."""

    def format(self, record: logging.LogRecord) -> str:
        name, sentence, fields, trace = self.parts(record)
        out: dict[str, Any] = {
            "time": self.stamp(record.created),
            "level": _SHORT.get(record.levelno, record.levelname.lower()),
            "logger": name,
            "message": sentence,
        }
        for key, value in fields.items():
            natural = value is None or isinstance(value, (bool, int))
            shown = format_value(key, value)
            out[f"field_{key}" if key in out else key] = value if natural and shown != STARS else shown
        if trace:
            out["trace"] = trace
        return json.dumps(out, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: str = "info"
    format: str = "plain"
    """`plain` or `json`."""
    colour: bool | None = None
    """None: when the stream is a terminal and NO_COLOR is not set."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """Levels of single parts, e.g. {"apiserver": "debug"}."""


def configure(settings: LogSettings | None = None, stream: TextIO | None = None) -> logging.Handler:
    """Send everything to one stream. Calling it again replaces what the last call set up."""
    settings = settings or LogSettings()
    stream = stream or sys.stderr
    if settings.format not in ("plain", "json"):
        raise ValueError(f"log format must be plain or json, not {settings.format!r}")
    colour = settings.colour
    if colour is None:
        colour = stream.isatty() and not os.environ.get("NO_COLOR")
    handler = logging.StreamHandler(stream)
    handler.set_name("coterie")
    handler.setFormatter(JsonFormatter() if settings.format == "json" else PlainFormatter(colour=colour))
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == "coterie"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # other people's libraries
    logging.getLogger(ROOT).setLevel(level_number(settings.level))
    for name, level in settings.levels.items():
        logging.getLogger(f"{ROOT}.{name}").setLevel(level_number(level))
    return handler


def set_level(name: str) -> None:
    """Of everything of ours that has no level of its own, from now on."""
    logging.getLogger(ROOT).setLevel(level_number(name))


def level_number(name: str) -> int:
    """`warn` and `WARNING` are the same."""
    wanted = name.lower()
    number = _LEVELS.get("warning" if wanted == "warn" else wanted)
    if number is None:
        raise ValueError(f"log level must be one of {', '.join(_LEVELS)}, not {name!r}")
    return number
