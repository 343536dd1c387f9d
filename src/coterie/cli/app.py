"""What a command may use of the world around it: streams, environment, colour, and how servers are reached.

Commands get an `App` instead of reaching for `sys` and `os`, so a test hands them its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from coterie.kube.client.kubeconfig import ClusterConnection
    from coterie.kube.client.transport import Transport

INTERRUPTED = 130
"""The status after Ctrl-C."""
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class CliError(Exception):
    """A failure that is told to the user as it stands: what is wrong and what to do next. Exit status 1."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)


class UsageError(CliError):
    """What was typed cannot be understood. Exit status 2."""


@dataclass(frozen=True)
class App:
    out: TextIO
    err: TextIO
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    cwd: Path = field(default_factory=Path.cwd)
    connect: Callable[[ClusterConnection], Transport] | None = None
    """How a server is reached; None: over HTTP."""

    @classmethod
    def standard(cls) -> App:
        return cls(sys.stdout, sys.stderr)

    @property
    def colour(self) -> bool:
        return self.colour_on(self.out)

    def colour_on(self, stream: TextIO) -> bool:
        """On a terminal only, and never when the user said no (https://no-color.org)."""
        if self.environ.get("NO_COLOR") or self.environ.get("TERM") == "dumb":
            return False
        return stream.isatty()

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.colour else text

    def say(self, text: str = "") -> None:
        """One line, or several, to the user's output; at once, because a watch or a demo is read while it runs."""
        self.out.write(text + "\n")
        self.out.flush()

    def write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()

    def warn(self, text: str) -> None:
        self.out.flush()
        self.err.write(text + "\n")
        self.err.flush()

    @property
    def home(self) -> Path:
        named = self.environ.get("HOME")
        return Path(named) if named else Path.home()


def exit_status(app: App, work: Callable[[], int]) -> int:
    """Do the work; failures become one sentence and an exit status."""
    try:
        return work()
    except UsageError as error:
        app.warn(f"Error: {error}")
        return 2
    except CliError as error:
        app.warn(str(error))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
