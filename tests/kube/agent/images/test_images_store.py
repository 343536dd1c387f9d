"""The image store: loading archives, refusing hostile ones, names and the collection of layers."""

from __future__ import annotations

import bz2
import fcntl
import gzip
import io
import lzma
import os
import stat
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from image_kit import config, docker, entry, folder, link, oci, sha, tar

from coterie.kube.agent.images import archive, layers
from coterie.kube.agent.images.flatten import flatten
from coterie.kube.agent.images.model import ImageError
from coterie.kube.agent.images.store import ACTOR_IMAGE, HOST_IMAGE, PYTHON_IMAGE, ImageStore
from coterie.kube.agent.images.unpack import LayerMember, is_opaque, is_whiteout, unpack

BASE = tar([folder("etc"), entry("etc/passwd", b"old"), entry("etc/gone", b"x"), folder("var"), entry("var/a", b"a")])
TOP = tar(
    [
        folder("etc"),
        entry("etc/passwd", b"new"),
        entry("etc/.wh.gone"),
        folder("var"),
        entry("var/.wh..wh..opq"),
        entry("var/b", b"b"),
    ]
)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def load(store: ImageStore, data: bytes, name: str = ""):
    return archive.load(store, io.BytesIO(data), name)


@pytest.mark.parametrize("make", [oci, docker], ids=["oci", "docker"])
def test_archive_is_loaded(store, make):
    (image,) = load(
        store,
        make(
            [BASE, TOP],
            "Team/app:9".lower(),
            Entrypoint=["/bin/run"],
            Cmd=["x"],
            Env=["A=b=c"],
            WorkingDir="/w",
            User="7:8",
        ),
    )
    assert image == store.find("team/app:9")
    assert (image.entrypoint, image.cmd, image.env) == (("/bin/run",), ("x",), (("A", "b=c"),))
    assert (image.workdir, image.user, image.kind) == ("/w", "7:8", "rootfs")
    assert image.layers == (sha(BASE), sha(TOP)) and image.size == 3 + 1 + 1 + 3 + 1
    top, base = store.layer_paths(image)
    assert (base / "etc/passwd").read_text() == "old" and (top / "etc/passwd").read_text() == "new"
    assert is_whiteout(str(top / "etc/gone")) and is_opaque(str(top / "var")) and not is_opaque(str(top / "etc"))


def test_layers_are_shared_and_merge(store, tmp_path):
    (one,) = load(store, oci([BASE], "one:1"))
    (two,) = load(store, docker([BASE, TOP], "two:1"))
    assert len([path for path in store.layers.iterdir() if not path.name.startswith(".")]) == 2
    flatten([path for path in reversed(store.layer_paths(two))], tmp_path / "flat")
    assert (tmp_path / "flat/etc/passwd").read_text() == "new"
    assert sorted(p.name for p in (tmp_path / "flat/var").iterdir()) == ["b"]
    assert not (tmp_path / "flat/etc/gone").exists()
    store.remove("two:1")
    assert store.layer(one.layers[0]).exists() and not store.layer(two.layers[1]).exists()


def test_layer_in_use_stays_until_it_is_free(store):
    (image,) = load(store, oci([BASE]))
    layer = store.layer(image.layers[0])
    with open(layer / "lock") as user:
        fcntl.flock(user, fcntl.LOCK_SH)
        store.remove(image.name)
        assert layer.exists() and store.find(image.name) is None
    store.collect()
    assert not layer.exists()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry("../evil", b"x")], "leads out"),
        ([entry("a/../../evil", b"x")], "leads out"),
        ([link("a", "/etc"), entry("a/evil", b"x")], "not a directory"),
        ([link("a", ".."), folder("a/b")], "not a directory"),
        ([link("a", "../../secret", tarfile.LNKTYPE)], "leads out"),
        ([link("a", "secret", tarfile.LNKTYPE)], "lacks"),
        ([entry(".wh...", b"")], "removes nothing"),
        ([folder("a"), entry("a", b"x")], "both"),
    ],
    ids=[
        "up",
        "up-inside",
        "through-link",
        "directory-through-link",
        "hard-link-out",
        "hard-link-missing",
        "whiteout-up",
        "kinds",
    ],
)
def test_hostile_layers_are_refused_and_leave_nothing(store, tmp_path, entries, words):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ImageError, match=words):
        load(store, oci([tar(entries)]))
    assert not (tmp_path / "evil").exists() and not Path("/etc/evil").exists()
    assert list(store.layers.iterdir()) == [] and store.find("team/app:1") is None


def test_absolute_names_and_links_stay_inside(store):
    (image,) = load(store, oci([tar([entry("/etc/inside", b"x"), link("etc/out", "/etc/shadow")])]))
    (layer,) = store.layer_paths(image)
    assert (layer / "etc/inside").read_text() == "x" and os.readlink(layer / "etc/out") == "/etc/shadow"


def test_devices_are_not_made_and_hard_links_are(store):
    entries = [entry("f", b"1"), link("g", "f", tarfile.LNKTYPE), entry("sda", type=tarfile.BLKTYPE, devmajor=8)]
    (layer,) = store.layer_paths(load(store, oci([tar(entries)]))[0])
    assert (layer / "g").samefile(layer / "f") and not (layer / "sda").exists()


def test_a_bomb_is_stopped(tmp_path):
    data = io.BytesIO(tar([entry("zeros", b"\0" * 5000)]))
    with tarfile.open(fileobj=data) as inner, pytest.raises(ImageError, match="larger"):
        unpack(inner, tmp_path, most_bytes=4000)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_layer_that_is_packed_far_too_tightly_is_stopped(store, monkeypatch, pack):
    """The disk has room for what it becomes; it would still take the node's time and the room of others."""
    monkeypatch.setattr(layers, "_RATIO_FROM", 1 << 20)
    inner = tar([entry("zeros", bytes(16 << 20))])
    packed = pack(inner)
    assert len(inner) / len(packed) > 200
    with pytest.raises(ImageError, match="bomb"):
        layers.install_layer(store, sha(inner), lambda: io.BytesIO(packed))
    assert list(store.layers.iterdir()) == []
    tight = tar([entry(f"f{n}", os.urandom(2000) + bytes(100_000)) for n in range(20)])
    layers.install_layer(store, sha(tight), lambda: io.BytesIO(pack(tight)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"Env": ["A=" + "x" * (128 << 10)]}, "more or longer"),
        ({"Env": [f"A{n}=" + "x" * 1000 for n in range(1100)]}, "more or longer"),
        ({"Env": ["A=1"] * 9000}, "more or longer"),
        ({"Cmd": ["x" * (2 << 20)]}, "more or longer"),
        ({"Env": [1]}, "not text"),
        ({"Env": ["A=\0"]}, "not text"),
        ({"Entrypoint": {"a": 1}, "User": 5}, "not text"),
        ({"WorkingDir": ["/"]}, "not text"),
        ({"Cmd": 5}, "not an image"),
    ],
)
def test_configurations_that_no_program_can_be_started_with_are_refused(store, settings, words):
    with pytest.raises(ImageError, match=words):
        load(store, oci([BASE], **settings))
    assert store.find("team/app:1") is None


def test_archives_that_take_memory_or_the_stack_are_refused(store, monkeypatch):
    nested = b'[{"Config": ' + b"[" * 100_000
    with pytest.raises(ImageError, match="not an image"):
        load(store, tar([entry("manifest.json", nested)]))
    with pytest.raises(ImageError, match="too large"):
        load(store, raw_member(tarfile.XHDTYPE, 1 << 20, bytes(1 << 20)) + END)
    with pytest.raises(ImageError, match="impossible size"):
        load(store, tar([entry("a")])[:512] + raw_member(tarfile.REGTYPE, -512) + END)
    monkeypatch.setattr(archive, "_MOST_MEMBERS", 50)
    with pytest.raises(ImageError, match="more files than an image has"):
        load(store, tar([entry(f"f{n}") for n in range(60)]))


def raw_member(type: bytes, size: int, data: bytes = b"") -> bytes:
    """One member, also with a size that is not that of its data."""
    info = tarfile.TarInfo("x")
    info.type, info.size = type, size
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def with_header(**headers: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.pax_headers = headers
        archive.addfile(info)
    return file.getvalue()


END = bytes(1024)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (raw_member(tarfile.XHDTYPE, 1 << 20, bytes(1 << 20)) + END, "too large"),
        (raw_member(tarfile.XGLTYPE, 1 << 33) + END, "too large"),
        (raw_member(tarfile.GNUTYPE_LONGNAME, 1 << 20, b"a" * (1 << 20)) + END, "too large"),
        (raw_member(tarfile.XGLTYPE, 9, b"9 a=bcde\n") * 2000 + END, "cannot be"),
        (raw_member(tarfile.GNUTYPE_SPARSE, 0) + END, "holes"),
        (with_header(size="-1"), "impossible size"),
        (with_header(uid="-5") if os.geteuid() == 0 else with_header(mtime="inf"), "cannot be"),
        (with_header(mtime="1e300"), "cannot be"),
        (with_header(path="d/" * 600), "too long"),
        (with_header(path="d" * 5000), "too long"),
        (tar([entry("f", b"")]) + bytes(17 << 20), "goes on after its end"),
    ],
    ids=["pax", "shared-pax", "long-name", "chain", "sparse", "negative", "owner", "time", "deep", "long", "padding"],
)
def test_layers_that_take_memory_or_time_are_refused(store, layer, words):
    """tarfile reads extended headers whole: eight megabytes, packed, took the node eight gigabytes of memory."""
    with pytest.raises(ImageError, match=words):
        load(store, oci([layer]))
    assert list(store.layers.iterdir()) == []


def test_members_are_not_kept(tmp_path):
    data = io.BytesIO(tar([entry(f"f{n}", b"") for n in range(100)]))
    with tarfile.open(fileobj=data, mode="r|", tarinfo=LayerMember) as inner:
        unpack(inner, tmp_path)
        assert len(inner.members) <= 1
    assert len(list(tmp_path.iterdir())) == 100


def test_a_layer_that_is_larger_than_the_disk_is_stopped(tmp_path, monkeypatch):
    """What is packed is small; how much it becomes is known only now."""
    small = os.statvfs(tmp_path)
    full = SimpleNamespace(f_bavail=(64 << 20) // small.f_frsize, f_frsize=small.f_frsize, f_files=9, f_favail=9)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    data = io.BytesIO(tar([entry("zeros", b"\0" * 100_000)]))
    with tarfile.open(fileobj=data) as inner, pytest.raises(ImageError, match="larger"):
        unpack(inner, tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (oci([BASE], forge=True), "digest says"),
        (oci([BASE], name=""), "no name"),
        (tar([entry("hello", b"x")]), "neither"),
        (b"not a tar" * 100, "cannot be read"),
        (oci([BASE])[:-9000], "cannot be read|lacks|neither|not an image"),
        (docker([BASE])[:600], "cannot be read|not an image|lacks"),
    ],
    ids=["forged", "nameless", "other-tar", "no-tar", "cut-off", "cut-off-docker"],
)
def test_wrong_archives_are_told(store, data, words):
    with pytest.raises(ImageError, match=words):
        load(store, data)
    assert not store.layers.exists() or list(store.layers.iterdir()) == []


def test_an_archive_without_a_name_may_be_given_one(store):
    load(store, oci([BASE], name=""), "given:5")
    assert store.find("given:5") is not None


def test_another_architecture_is_refused(store, monkeypatch):
    about = config([BASE], architecture="vax")
    files = [
        entry("c.json", about),
        entry("manifest.json", b'[{"Config":"c.json","RepoTags":["a:1"],"Layers":["l.tar"]}]'),
        entry("l.tar", BASE),
    ]
    with pytest.raises(ImageError, match="vax"):
        load(store, tar(files))


def test_names_ids_and_built_in_images(store, tmp_path):
    assert [image.name for image in store.images()] == [HOST_IMAGE, PYTHON_IMAGE, ACTOR_IMAGE]
    image = store.add_host("engine:1", ["/bin/true"], args=["-v"], env=[("A", "b")], workdir="/srv")
    assert store.find("registry.example:5000/engine:1") == image
    assert store.resolve(image.id[7:19]) == image
    assert store.find(f"engine:1@{image.id}") == image and store.find("engine:1@sha256:other") is None
    assert store.tag("engine:1", "engine").name == "engine:latest"
    (tmp_path / "root").mkdir()
    assert store.add_rootfs("tree:1", tmp_path / "root").directory == str(tmp_path / "root")
    store.remove("engine:1")
    assert sorted(i.name for i in store.images())[3:] == ["engine:latest", "tree:1"]
    for name in (HOST_IMAGE, PYTHON_IMAGE, ACTOR_IMAGE):
        with pytest.raises(ImageError, match="built in"):
            store.remove(name)
        with pytest.raises(ImageError, match="built in"):
            store.tag("engine", name)
    with pytest.raises(ImageError, match="no image"):
        store.remove("engine:1")
    assert stat.S_IMODE(next((store.directory / "refs").iterdir()).stat().st_mode) == 0o600
