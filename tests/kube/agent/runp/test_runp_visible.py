"""What host environments see of the machine: the environments of their programs, wherever they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coterie.kube.agent.images.model import HOST, ROOTFS, StoredImage
from coterie.kube.agent.images.store import builtin_images
from coterie.kube.agent.runtimes.runp import visible


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that is nobody's home, with an interpreter, and a virtual environment of it elsewhere."""
    (tmp_path / "python-3.11.7" / "bin").mkdir(parents=True)
    (tmp_path / "python-3.11.7" / "bin" / "python3.11").touch(mode=0o755)
    (tmp_path / "python").symlink_to("python-3.11.7")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(tmp_path / "python" / "bin" / "python3.11")
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"home = {tmp_path}/python/bin\nversion = 3.11.7\n")
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "engine").touch(mode=0o755)
    return tmp_path


def host(program: str, **fields: object) -> StoredImage:
    return StoredImage("engine:1", "", HOST, entrypoint=(program,), **fields)  # type: ignore[arg-type]


def targets(image: StoredImage, *hidden: Path) -> list[str]:
    return sorted(target for _, target in visible.paths(image, hidden))


def test_a_virtual_environment_and_its_interpreter_also_by_the_name_of_a_link(place: Path) -> None:
    found = visible.paths(host(f"{place}/venv/bin/python"))
    real = f"{place}/python-3.11.7"
    assert found == [(real, f"{place}/python"), (real, real), (f"{place}/venv", f"{place}/venv")]


def test_an_environment_with_a_copied_interpreter(place: Path) -> None:
    (place / "venv" / "bin" / "python").unlink()
    (place / "venv" / "bin" / "python").touch(mode=0o755)
    assert targets(host(f"{place}/venv/bin/python")) == [
        f"{place}/python",
        f"{place}/python-3.11.7",
        f"{place}/venv",
    ]


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("{}/tool/engine", ["{}/tool"]),
        ("{}/missing/bin/python", []),
        ("/usr/bin/env", []),
        ("/bin/sh", []),
        ("sh", []),
    ],
)
def test_other_programs(place: Path, program: str, shown: list[str]) -> None:
    assert targets(host(program.format(place))) == [each.format(place) for each in shown]


def test_a_program_in_a_home_directory_does_not_show_the_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place / "tool"))
    assert targets(host(f"{place}/tool/engine")) == [f"{place}/tool/engine"]


def test_a_program_beside_the_agents_root_shows_neither(place: Path) -> None:
    root = place / "tool" / "coterie"
    root.mkdir()
    assert targets(host(f"{place}/tool/engine"), root) == [f"{place}/tool/engine"]


def test_a_program_in_the_agents_root_is_not_shown_even_by_a_link(place: Path) -> None:
    (place / "elsewhere").symlink_to("tool")
    assert targets(host(f"{place}/elsewhere/engine"), place / "tool") == []


def test_named_paths_are_shown_and_what_is_hidden_in_them_covered(place: Path) -> None:
    (place / "models" / "root").mkdir(parents=True)
    (place / "link").symlink_to("models")
    shown = visible.paths(host("sh", visible=(f"{place}/link",)), [place / "models" / "root"])
    assert shown == [(f"{place}/models", f"{place}/link"), (f"{place}/models", f"{place}/models")]
    assert visible.covers(shown, [place / "link" / "root"]) == [f"{place}/link/root", f"{place}/models/root"]


def test_what_the_image_names_is_found(place: Path) -> None:
    (place / "main.py").touch()
    image = host("/usr/bin/env", cmd=(f"{place}/main.py", "--fast"), env=(("PYTHONPATH", f"{place}/tool:relative"),))
    assert targets(image) == [f"{place}/main.py", f"{place}/tool"]


def test_built_in_images_have_our_interpreter_and_our_package() -> None:
    for image in builtin_images():
        found = targets(image)
        for path in (sys.prefix, sys.base_prefix, str(Path(visible.coterie.__file__).parents[1])):
            assert path.startswith("/usr") or any(visible._below(path, target) for target in found)


def test_a_file_system_of_its_own_sees_nothing(place: Path) -> None:
    assert visible.paths(StoredImage("i:1", "", ROOTFS, entrypoint=(f"{place}/tool/engine",))) == []
