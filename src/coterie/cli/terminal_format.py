"""How states, shares and texts of others look on a terminal (pure): the same for jobs and for every other progress.

Marks and words are those of the console.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.cli.live_display import columns
from coterie.kuscia.api.jobs.job_state import progress_text

_MARKS = {
    "Succeeded": "✔",
    "Failed": "✘",
    "Running": "●",
    "Pending": "◌",
    "Waiting": "○",
    "Not run": "–",
}
_ASCII_MARKS = {
    "Succeeded": "+",
    "Failed": "x",
    "Running": "*",
    "Pending": "o",
    "Waiting": ".",
    "Not run": "-",
}
_STYLES = {
    "Succeeded": "32",
    "Failed": "31",
    "Running": "36",
    "Pending": "33",
    "Waiting": "2",
    "Not run": "2",
    "Suspended": "33",
    "AwaitingApproval": "33",
    "ApprovalReject": "31",
    "Cancelled": "31",
}
_BAR = 12


@dataclass(frozen=True, slots=True)
class TerminalFormat:
    """What is drawn on. `height` 0: as many lines as it takes."""

    width: int = 80
    height: int = 0
    colour: bool = False
    letters: bool = True
    """Beyond ASCII."""

    def paint(self, text: str, phase: str) -> str:
        code = _STYLES.get(phase, "")
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text else text

    def strong(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def faint(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.colour and text else text

    def mark(self, phase: str) -> str:
        return (_MARKS if self.letters else _ASCII_MARKS).get(phase, "?")

    def bar(self, share: float, width: int = _BAR) -> str:
        full = int(share * width + 1e-9)
        return "█" * full + "░" * (width - full) if self.letters else "#" * full + "." * (width - full)

    def meter(self, share: float) -> str:
        """A bar and the number, always of the same width."""
        return f"{self.bar(share)} {progress_text(share):>4}"

    @property
    def dots(self) -> str:
        return "…" if self.letters else "..."


# Width of text on a terminal.


def cut(text: str, width: int, dots: str = "…") -> str:
    if columns(text) <= width:
        return text
    room = width - len(dots)
    if room < 0:
        return dots[: max(0, width)]
    out = ""
    for char in text:
        if columns(out + char) > room:
            break
        out += char
    return out + dots


def padded(text: str, width: int) -> str:
    return text + " " * max(0, width - columns(text))


def safe(text: str) -> str:
    """The first line of a text from an object, with nothing in it that would steer the terminal."""
    line = text.strip().split("\n", 1)[0].rstrip().replace("\t", " ")
    return "".join(char if char.isprintable() else "�" for char in line)
