"""The semver library of Kubernetes: semantic versions 2.0.0, with normalization on request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, function, method
from coterie.kube.api.cel.types import BOOL, INT, SEMVER, STRING
from coterie.kube.api.cel.values import KINDS, UINT64_MAX

_LONGEST: Final = 1024
_VERSION: Final = re.compile(
    r"(0|[1-9]\d{0,19})\.(0|[1-9]\d{0,19})\.(0|[1-9]\d{0,19})"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)
_SortKey = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]


@dataclass(frozen=True, slots=True)
class SemanticVersion:
    major: int
    minor: int
    patch: int
    pre_release: str = ""
    build: str = ""

    @property
    def order(self) -> _SortKey:
        """A release comes after its pre-releases, numbers before words; the build does not count."""
        parts = tuple(
            (False, int(part), "") if part.isdigit() else (True, 0, part)
            for part in self.pre_release.split(".")
            if self.pre_release
        )
        return self.major, self.minor, self.patch, not self.pre_release, parts

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        text += f"-{self.pre_release}" if self.pre_release else ""
        return text + (f"+{self.build}" if self.build else "")


KINDS[SemanticVersion] = "kubernetes.Semver"


def _parse(text: str, normalize: bool = False) -> SemanticVersion:
    found = _VERSION.fullmatch(_normalized(text) if normalize else text) if len(text) <= _LONGEST else None
    if found is None:
        raise CelError(f'"{text[:80]}" is not a semantic version')
    major, minor, patch = int(found[1]), int(found[2]), int(found[3])
    if max(major, minor, patch) > UINT64_MAX:
        raise CelError(f'"{text[:80]}" is not a semantic version')
    return SemanticVersion(major, minor, patch, found[4] or "", found[5] or "")


def _normalized(text: str) -> str:
    """Without `v` in front and leading zeros, and with the numbers that were left out."""
    parts = text.removeprefix("v").split(".", 2)
    for place, part in enumerate(parts):
        if len(part) > 1:
            bare = part.lstrip("0")
            parts[place] = bare if bare[:1].isdigit() else "0" + bare
    if len(parts) < 3 and any(char in parts[-1] for char in "+-"):
        raise CelError("short version cannot contain PreRelease/Build meta data")
    return ".".join([*parts, "0", "0"][:3])


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        _parse(text, normalize)
    except CelError:
        return False
    return True


def _compare(left: SemanticVersion, right: SemanticVersion) -> int:
    return (left.order > right.order) - (left.order < right.order)


LIBRARY: Final[Library] = (
    function("semver", (STRING,), SEMVER, _parse),
    function("semver", (STRING, BOOL), SEMVER, _parse),
    function("isSemver", (STRING,), BOOL, _is_semver),
    function("isSemver", (STRING, BOOL), BOOL, _is_semver),
    method("major", (SEMVER,), INT, lambda version: version.major),
    method("minor", (SEMVER,), INT, lambda version: version.minor),
    method("patch", (SEMVER,), INT, lambda version: version.patch),
    method("isGreaterThan", (SEMVER, SEMVER), BOOL, lambda left, right: left.order > right.order),
    method("isLessThan", (SEMVER, SEMVER), BOOL, lambda left, right: left.order < right.order),
    method("compareTo", (SEMVER, SEMVER), INT, _compare),
)
