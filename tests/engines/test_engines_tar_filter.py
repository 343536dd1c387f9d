"""`filter` of extractall where Python does not have it: the archive is unpacked, and nothing leaves the destination."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from coterie.engines import tar_filter


class Archive(tarfile.TarFile):
    """As of a Python without `filter`; one that has it is asked for what was always done."""

    def extractall(self, path=".", members=None, *, numeric_owner=False):  # type: ignore[no-untyped-def, override]
        more = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
        super().extractall(path, members, numeric_owner=numeric_owner, **more)


def packed(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o4777) -> io.BytesIO:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname = kind, mode, "/etc/passwd"
    member.size = 4 if kind == tarfile.REGTYPE else 0
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(member, io.BytesIO(b"data"))
    out.seek(0)
    return out


def extract(archive: io.BytesIO, path: Path) -> None:
    class Repaired(Archive):
        pass

    tar_filter.repair(Repaired)
    with Repaired.open(fileobj=archive) as opened:
        opened.extractall(path, filter="data")


def test_files_are_unpacked_without_special_modes(tmp_path: Path) -> None:
    extract(packed("model/weights"), tmp_path)
    assert (tmp_path / "model" / "weights").read_bytes() == b"data"
    assert (tmp_path / "model" / "weights").stat().st_mode & 0o7022 == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("/outside", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("link", tarfile.LNKTYPE),
        ("device", tarfile.CHRTYPE),
    ],
)
def test_nothing_else_is(tmp_path: Path, name: str, kind: bytes) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(tarfile.ExtractError):
        extract(packed(name, kind), tmp_path / "in")
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]
