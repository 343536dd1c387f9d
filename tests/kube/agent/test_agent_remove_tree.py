"""Removing what images and overlays leave, and nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from coterie.kube.agent.images.store import remove_tree


def test_a_tree_without_rights_goes(tmp_path: Path) -> None:
    deep = tmp_path / "tree" / "closed" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    for directory in (deep, deep.parent):
        directory.chmod(0)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_what_lies_above_keeps_its_rights(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    remove_tree(shared / "was-never-there")
    (shared / "link").symlink_to(shared)
    remove_tree(shared / "link")
    assert stat.S_IMODE(os.stat(shared).st_mode) == 0o1777
