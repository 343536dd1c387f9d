"""Archives of strangers: only files come out, below the directory, and not more than allowed."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile

import pytest

from coterie.base.archives import ArchivedFile, ArchiveLimits, InvalidFiles, checked_path, read_archive, write_archive

LIMITS = ArchiveLimits(packed=100_000, unpacked=1 << 20, files=20)


def tar_of(*members: tuple[str, bytes, bytes]) -> bytes:
    """(name, type, content or target of a link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, kind, data in members:
            head = tarfile.TarInfo(name)
            head.type = kind
            if kind == tarfile.REGTYPE:
                head.size = len(data)
            else:
                head.linkname = data.decode()
            archive.addfile(head, io.BytesIO(data))
    return out.getvalue()


def zip_of(*members: tuple[str, bytes, int]) -> bytes:
    """(name, content, mode)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in members:
            head = zipfile.ZipInfo(name)
            head.external_attr = mode << 16
            head.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(head, data)
    return out.getvalue()


FILE = tarfile.REGTYPE
MODE = stat.S_IFREG | 0o644


@pytest.mark.parametrize(
    "packed",
    [
        tar_of(("a.py", FILE, b"1"), ("lib", tarfile.DIRTYPE, b""), ("./lib/b.py", FILE, b"2")),
        zip_of(("a.py", b"1", MODE), ("lib/", b"", stat.S_IFDIR | 0o755), ("lib/b.py", b"2", 0)),
    ],
    ids=["tar", "zip"],
)
def test_both_forms_give_the_same_files(packed: bytes) -> None:
    files = read_archive(packed, LIMITS, strict=True)
    assert files == {"a.py": ArchivedFile(b"1"), "lib/b.py": ArchivedFile(b"2")}
    ours = write_archive(files, LIMITS)
    assert (
        read_archive(ours, LIMITS, strict=True) == files
        and write_archive(dict(reversed(files.items())), LIMITS) == ours
    )


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (tar_of(("/etc/passwd", FILE, b"x")), "is not a path below"),
        (tar_of(("../x", FILE, b"x")), "is not a path below"),
        (tar_of(("a/../../x", FILE, b"x")), "is not a path below"),
        (tar_of(("l", tarfile.SYMTYPE, b"/etc/passwd")), "'l' is a link to '/etc/passwd'"),
        (tar_of(("l", tarfile.LNKTYPE, b"a")), "is a link to 'a'"),
        (tar_of(("null", tarfile.CHRTYPE, b"")), "is a device"),
        (tar_of(("pipe", tarfile.FIFOTYPE, b"")), "is a device"),
        (tar_of(("a", FILE, b"1"), ("a", FILE, b"2")), "in the archive twice"),
        (tar_of(("a", FILE, b"1"), ("a/b", FILE, b"2")), "is a file and a directory"),
        (tar_of(("zeros", FILE, bytes(3 << 20))), "more than"),
        (tar_of(*((f"f{n}", FILE, b"") for n in range(21))), "more than 20 files"),
        (tar_of(("a", FILE, b"1" * 1000))[:-9], "cut off"),
        (b"garbage", "cannot be read"),
        (b"\x1f\x8bgarbage", "cannot be decompressed"),
        (b"x" * 100_001, "100000 are allowed"),
        (zip_of(("../x", b"x", MODE)), "is not a path below"),
        (zip_of(("/x", b"x", MODE)), "is not a path below"),
        (zip_of(("l", b"/etc/passwd", stat.S_IFLNK | 0o777)), "'l' is a link or a device"),
        (zip_of(("zeros", bytes(3 << 20), MODE)), "more than"),
        (zip_of(*((f"f{n}", b"", MODE) for n in range(21))), "more than 20 files"),
        (zip_of(*((f"d{n}/", b"", stat.S_IFDIR) for n in range(41))), "more than 40 entries"),
        (zip_of(("a", b"1", MODE))[:-30], "cannot be read"),
        (b"PK\x03\x04garbage", "cannot be read"),
    ],
)
def test_what_is_refused(packed: bytes, why: str) -> None:
    with pytest.raises(InvalidFiles, match=why.replace("(", r"\(")):
        read_archive(packed, LIMITS, strict=True)


def test_a_zip_that_lies_about_a_size_is_refused() -> None:
    packed = bytearray(zip_of(("a", b"1" * 1000, MODE)))
    for at in (packed.find(b"PK\x03\x04") + 22, packed.find(b"PK\x01\x02") + 24):
        packed[at : at + 4] = (10).to_bytes(4, "little")
    with pytest.raises(InvalidFiles):
        read_archive(bytes(packed), LIMITS, strict=True)


def test_zips_with_a_password_or_another_compression_are_refused() -> None:
    packed = bytearray(zip_of(("a", b"1", MODE)))
    packed[packed.find(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(InvalidFiles, match="encrypted"):
        read_archive(bytes(packed), LIMITS, strict=True)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", b"1" * 1000)
    with pytest.raises(InvalidFiles, match="deflate"):
        read_archive(out.getvalue(), LIMITS, strict=True)


@pytest.mark.parametrize("path", ["", "/a", "a/", "..", "a/../b", "a\0b", "a\nb", "x" * 2000, "\udc80"])
def test_paths(path: str) -> None:
    with pytest.raises(InvalidFiles):
        checked_path(path)
