"""Which directories of this machine can be a local data source. Links are followed before anything is compared."""

from __future__ import annotations

import os
from pathlib import Path

OUTSIDE_ANNOTATION = "coterie.io/outside-data-directory"
"""Of a DomainDataSource of a lite, set at its control plane by the operator: its path may lie outside of the lite's data
directory. What may set it is an admission step (kuscia/extensions/data_sources.py)."""


def directory_fault(path: str, home: Path) -> str:
    """Why a source cannot lie there; empty: it can. `home`: of the domain, beside which other domains may have theirs."""
    if not os.path.isabs(path):
        return f"the path {path!r} of the source is not absolute; write it from the root"
    real = Path(os.path.realpath(path))
    if real == Path("/"):
        return "the whole machine cannot be a data source; name a directory with data only"
    own = Path(os.path.realpath(home))
    if within_data(path, home):
        return ""
    for each in _homes(own):
        if real.is_relative_to(each) or each.is_relative_to(real):
            return f"{path} holds files of domain {each.name}, keys among them; name a directory with data only"
    return ""


def within_data(path: str, home: Path) -> bool:
    """Whether it is the domain's own data directory, or below."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(home / "var" / "storage" / "data"))


def _homes(own: Path) -> list[Path]:
    """Of the domain itself and of those with the same root."""
    try:
        beside = [each for each in own.parent.iterdir() if (each / "var" / "certs").is_dir()]
    except OSError:
        beside = []
    return [own, *(Path(os.path.realpath(each)) for each in beside)]
