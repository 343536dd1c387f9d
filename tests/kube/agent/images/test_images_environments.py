"""The id of a host environment covers its code, and costs a look at its files."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.base.clock import VirtualClock
from coterie.kube.agent.images import environment, environment_ids
from coterie.kube.agent.images.environment import environment_id
from coterie.kube.agent.images.environment_ids import EnvironmentIds
from coterie.kube.agent.images.model import ID_MISMATCH, ImageRefused, RequiredImage, StoredImage, id_problem
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.images.sources import PullSettings
from coterie.kube.agent.images.store import ACTOR_IMAGE, HOST_IMAGE, PYTHON_IMAGE, ImageStore

_LONG_AGO = (1_000_000_000, 1_000_000_000)


def make_environment(place: Path, *, code: str = "print(1)\n", home: str = "/opt/python/bin") -> Path:
    """As `python -m venv` and pip leave it."""
    files = {
        "pyvenv.cfg": f"home = {home}\nversion = 3.11.2\n",
        "bin/python": "#!/bin/sh\n",
        "bin/engine": f"#!{place}/bin/python\nimport engine\n",
        "bin/activate": f"VIRTUAL_ENV={place}\n",
        "lib/python3.11/site-packages/engine/__init__.py": code,
        "lib/python3.11/site-packages/engine/__pycache__/__init__.pyc": str(place),
        "lib/python3.11/site-packages/engine-1.dist-info/RECORD": f"../../../bin/engine,sha256={place},1\n",
        "lib/python3.11/site-packages/engine-1.dist-info/METADATA": "Name: engine\n",
    }
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.startswith("bin/") else 0o644)
        os.utime(path, _LONG_AGO)
    (place / "lib64").symlink_to("lib")
    (place / "bin" / "python3").symlink_to(Path(home) / "python3")
    return place


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def add(store: ImageStore, place: Path, **fields: object) -> StoredImage:
    return store.add_host("engine:1", (str(place / "bin" / "python"),), **fields)  # type: ignore[arg-type]


def test_the_same_code_in_another_place_has_the_same_id(store: ImageStore, tmp_path: Path) -> None:
    here = add(store, make_environment(tmp_path / "a"), env=(("PATH", "/x"),))
    there = add(store, make_environment(tmp_path / "other" / "b", home="/home/me/py/bin"), env=(("PATH", "/y"),))
    assert here.id == there.id
    assert here.id != add(store, tmp_path / "a", args=("-v",)).id
    assert here.id != add(store, tmp_path / "a", env=(("THREADS", "4"),)).id


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lib/python3.11/site-packages/engine/__init__.py", True),
        ("lib/python3.11/site-packages/engine/more.py", True),
        ("bin/engine", True),
        ("pyvenv.cfg", True),
        ("lib/python3.11/site-packages/engine/__pycache__/__init__.pyc", False),
        ("lib/python3.11/site-packages/engine-1.dist-info/RECORD", False),
    ],
)
def test_changed_code_is_another_id(store: ImageStore, tmp_path: Path, name: str, changes: bool) -> None:
    place = make_environment(tmp_path / "a")
    image = add(store, place)
    with (place / name).open("a") as file:
        file.write("version = 3.12.0\n")
    assert (environment_id(image, store.environments) != image.id) is changes


def test_a_change_that_keeps_size_and_mtime_is_seen(store: ImageStore, tmp_path: Path) -> None:
    place = make_environment(tmp_path / "a")
    image = add(store, place)
    module = place / "lib/python3.11/site-packages/engine/__init__.py"
    module.write_text("print(2)\n")
    os.utime(module, _LONG_AGO)
    assert environment_id(image, store.environments) != image.id


def test_scripts_search_paths_and_visible_code_count(store: ImageStore, tmp_path: Path) -> None:
    place, script = make_environment(tmp_path / "a"), tmp_path / "run.py"
    library, models = tmp_path / "library", tmp_path / "models"
    for path in (script, library / "x.py", models / "weights.bin", models / "plugin.so"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("1")
    image = add(store, place, args=(str(script),), env=(("PYTHONPATH", str(library)),), visible=(str(models),))
    seen = [image.id]
    for path, counts in (
        (script, True),
        (library / "x.py", True),
        (models / "plugin.so", True),
        (models / "weights.bin", False),
    ):
        path.write_text("22")
        now = environment_id(image, store.environments)
        assert (now != seen[-1]) is counts, path
        seen.append(now)


def test_unchanged_files_are_not_read_again(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    content = environment._content
    monkeypatch.setattr(environment, "_SETTLED_NS", -(10**18))
    monkeypatch.setattr(environment, "_content", lambda file, top: read.append(file.name) or content(file, top))
    place = make_environment(tmp_path / "a")
    image = add(store, place)
    assert len(read) == 7  # pip's records, bytecode and activate are not
    read.clear()
    (place / "bin" / "engine").write_text("#!/bin/sh\n")
    assert environment_id(image, store.environments) != image.id
    assert read == ["bin/engine"]


def test_a_program_of_the_system_is_itself_alone(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = store.add_host("shell:1", ("/usr/bin/env",))
    assert environment.code_sources(shell) == ["/usr/bin/env"]


def test_built_in_images(store: ImageStore) -> None:
    host, python = store.find(HOST_IMAGE), store.find(PYTHON_IMAGE)
    assert host is not None and python is not None
    assert environment_id(host, store.environments) == host.id
    assert environment_id(python, store.environments) == environment_id(python, store.environments) != python.id


async def test_a_node_reports_the_code_of_built_in_images_when_it_looked_at_it(store: ImageStore) -> None:
    clock = VirtualClock()
    images = NodeImages(store, PullSettings(), clock)
    host, python = store.find(HOST_IMAGE), store.find(PYTHON_IMAGE)
    assert host is not None and python is not None
    assert store.content_digest(python) == "", "nobody looked"
    digest = environment_id(python, store.environments)
    assert (await images.verified(PYTHON_IMAGE, RequiredImage(digest))) == replace(python, id=digest)
    assert store.content_digest(python) == digest
    assert await images.verified(HOST_IMAGE) == host and store.content_digest(host) == "", "only its name is known"
    with pytest.raises(ImageRefused, match="is required"):
        await images.verified(PYTHON_IMAGE, RequiredImage(f"sha256:{'0' * 64}"))
    await images.close()


async def test_a_node_sees_new_code_at_once_where_an_id_is_required(store: ImageStore, tmp_path: Path) -> None:
    clock = VirtualClock()
    images = NodeImages(store, PullSettings(), clock)
    place = make_environment(tmp_path / "a")
    image = add(store, place)
    assert await images.verified("engine:1", RequiredImage(image.id)) == image
    assert await images.verified("engine:2", RequiredImage(image.id)) is None
    (place / "bin" / "engine").write_text("changed")
    with pytest.raises(ImageRefused, match="is required") as refused:
        await images.verified("engine:1", RequiredImage(image.id))
    assert refused.value.reason == ID_MISMATCH
    # Without a requirement the start does not wait, and the id follows.
    changed = environment_id(image, store.environments)
    assert await images.verified("engine:1") == replace(image, id=changed)
    (place / "bin" / "engine").write_text("again")
    await clock.advance(11)
    assert await images.verified("engine:1") == replace(image, id=changed)
    for _ in range(500):
        await clock.advance(1)  # not while a container starts
        await asyncio.sleep(0.01)
        if (await images.verified("engine:1")).id != changed:  # type: ignore[union-attr]
            break
    assert (await images.verified("engine:1")).id == environment_id(image, store.environments)  # type: ignore[union-attr]
    await images.close()


async def test_the_first_container_finds_the_id_of_its_image_prepared(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    images = NodeImages(store, PullSettings(), clock)
    place = make_environment(tmp_path / "a")
    image = add(store, place)
    (place / "bin" / "engine").write_text("changed")
    preparing = asyncio.create_task(images.prepare())
    for _ in range(6000):
        if preparing.done():
            break
        await clock.advance(1)
        await asyncio.sleep(0.01)
    preparing.result()

    def never(*_: object) -> str:
        raise AssertionError("a container waits until files were looked at")

    monkeypatch.setattr(environment_ids, "environment_stamp", never)
    monkeypatch.setattr(environment_ids, "environment_id", never)
    for name in ("engine:1", PYTHON_IMAGE, ACTOR_IMAGE):
        found = await images.verified(name)
        assert found is not None and found.id == environment_id(found, store.environments)
    assert (await images.verified("engine:1")).id != image.id  # type: ignore[union-attr]
    await images.close()


async def test_a_container_that_comes_during_the_preparation_does_not_wait_for_its_rests(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_ids, "_WORK_SECONDS", 0.0)
    monkeypatch.setattr(environment_ids, "_REST_SECONDS", 3600.0)
    clock = VirtualClock()
    ids = EnvironmentIds(store.environments, clock)
    image, other = add(store, make_environment(tmp_path / "a")), store.find(PYTHON_IMAGE)
    assert other is not None
    preparing = asyncio.create_task(ids.prepare([image, other]))
    await asyncio.sleep(0)
    await clock.advance(1)
    assert image.name in ids._known and not preparing.done()
    assert await ids.id_of(image, exact=False) == image.id
    # The next one rests for an hour; whoever stops the agent does not wait for it.
    for _ in range(6000):
        if other.name in ids._known:
            break
        await asyncio.sleep(0.01)
    assert not preparing.done()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    await ids.close()


@pytest.mark.parametrize(
    ("required", "words"),
    [
        ("", ""),
        ("sha256:" + "1" * 64, ""),
        ("1" * 64, ""),
        ("sha256:" + "2" * 64, ""),
        ("sha256:" + "3" * 64, "has the id"),
        ("sha256:" + "1" * 63, "is not sha256"),
        ("1" * 12, "is not sha256"),
        ("abc", "is not sha256"),
    ],
)
def test_required_ids(required: str, words: str) -> None:
    image = StoredImage("a:1", "sha256:" + "1" * 64, "rootfs", manifest="sha256:" + "2" * 64)
    assert words in id_problem(image, required) and bool(words) is bool(id_problem(image, required))
