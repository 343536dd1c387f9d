"""The argument `filter` of `TarFile.extractall` for Python before 3.11.4, such as Debian 12's: SecretFlow gives it.

Loaded at the start of every interpreter of such an environment, so it imports little until somebody unpacks an archive.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from typing import Any


def repair(archive_class: Any = tarfile.TarFile) -> None:
    original = archive_class.extractall

    def extractall(
        self: Any,
        path: str | os.PathLike[str] = ".",
        members: Iterable[tarfile.TarInfo] | None = None,
        *,
        numeric_owner: bool = False,
        filter: str | None = None,
    ) -> None:
        chosen = list(self.getmembers() if members is None else members)
        if filter in ("data", "tar"):
            chosen = [plain(each, os.fspath(path)) for each in chosen]
        elif filter not in (None, "fully_trusted"):
            raise ValueError(f"filter {filter!r} not found")
        original(self, path, chosen, numeric_owner=numeric_owner)

    archive_class.extractall = extractall


def plain(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """The member if it is a file or a directory below `path`, without special modes and owners; else ExtractError. Stricter
    than Python's filter `data`: links are refused."""
    root = os.path.realpath(path)
    place = os.path.realpath(os.path.join(root, member.name))
    if os.path.isabs(member.name) or os.path.commonpath([root, place]) != root:
        raise tarfile.ExtractError(f"{member.name!r} would be extracted outside of the destination")
    if not (member.isreg() or member.isdir()):
        raise tarfile.ExtractError(f"{member.name!r} is neither a file nor a directory")
    member.mode &= 0o755
    member.mode |= 0o700 if member.isdir() else 0o600
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    return member


if not hasattr(tarfile, "data_filter"):
    repair()
