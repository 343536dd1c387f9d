"""Programs of host environments are found wherever they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.kube.agent.images.model import HOST, StoredImage
from coterie.kube.agent.images.store import PYTHON_IMAGE
from coterie.kube.agent.runtimes.runp.request import program_homes


@pytest.mark.parametrize(
    ("program", "homes"),
    [
        ("/tmp/{}/venv/bin/python", ["/tmp/{}/venv"]),
        ("/tmp/{}/engine", ["/tmp/{}"]),
        ("/usr/bin/python3", []),
        ("/tmp/{}/missing/bin/python", []),
    ],
)
def test_homes_below_private_directories(tmp_path: Path, program: str, homes: list[str]) -> None:
    if not str(tmp_path).startswith("/tmp/"):
        pytest.skip("temporary files lie elsewhere here")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    place = str(tmp_path).removeprefix("/tmp/")
    image = StoredImage("engine:1", "", HOST, entrypoint=(program.format(place),))
    assert program_homes(image) == [Path(home.format(place)) for home in homes]


def test_an_image_without_a_program_has_no_home() -> None:
    assert program_homes(StoredImage(PYTHON_IMAGE, "", HOST)) == []
