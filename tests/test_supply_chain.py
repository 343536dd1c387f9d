"""What is installed is what was pinned: every package has hashes, the build backend has a version, the SBOM names all of it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
LOCKED = [
    ROOT / "requirements.txt",
    ROOT / "scripts" / "s3-server.txt",
    ROOT / "scripts" / "lakes.txt",
    ROOT / "scripts" / "warehouses.txt",
    ROOT / "scripts" / "gcs-emulator.txt",
    *sorted(ROOT.glob("src/coterie/engines/*/requirements.txt")),
]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(path: Path) -> dict[str, str]:
    found = (PIN.match(line) for line in path.read_text().splitlines())
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in found if match}


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_pinned_package_has_hashes(path: Path) -> None:
    found = script("write_sbom").hashes_in(path)
    assert found and not [name for name, digests in found.items() if not digests]
    lines = path.read_text().splitlines()
    assert all(line.startswith(("#", "    --hash=sha256:")) or PIN.match(line) for line in lines)


def test_the_locked_versions_are_those_of_the_constraints() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (backend,) = project["build-system"]["requires"]
    name, _, version = backend.partition("==")
    assert version, "the build backend is pinned"
    assert pins(ROOT / "requirements.txt") == {**pins(ROOT / "constraints.txt"), name: version}
    extras = project["project"]["optional-dependencies"]
    for wanted in (*project["project"]["dependencies"], *extras["dev"], *extras["kafka"], *extras["guests"]):
        short, _, pinned = wanted.partition("==")
        locked = pins(ROOT / "requirements.txt")[re.sub(r"[-_.]+", "-", short).lower()]
        assert not pinned or pinned == locked


def test_setup_installs_nothing_without_a_hash() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if "pip install" in line]
    assert installs and all(
        "--require-hashes" in line or "--no-deps --no-build-isolation -e ." in line for line in installs
    )


def test_the_sbom_names_everything_and_no_index() -> None:
    made = script("write_sbom").sbom()
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    named = {(each["name"], each["version"]) for each in made["components"]}
    for path in (ROOT / "requirements.txt", *ROOT.glob("src/coterie/engines/*/requirements.txt")):
        assert set(pins(path).items()) <= named
    assert all(each["properties"] for each in made["components"])
    text = str(made)
    assert "http://" not in text and "https://" not in text
    (own,) = made["dependencies"]
    assert "pkg:pypi/cryptography" in " ".join(own["dependsOn"])
    scopes = {each["name"]: each["scope"] for each in made["components"]}
    assert (scopes["cryptography"], scopes["cffi"], scopes["pytest"], scopes["spu"]) == (
        "required", "required", "excluded", "optional",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("aiosignal-1.4.0-py3-none-any.whl", True),
        ("aiosignal-1.4.0.tar.gz", True),
        ("aiosignal-1.4.1-py3-none-any.whl", False),
        ("aiosignal_x-1.4.0-py3-none-any.whl", False),
        ("aiosignal-1.4.0-cp312-cp312-manylinux_2_17_aarch64.whl", True),
        ("aiosignal-1.4.0-cp310-cp310-manylinux_2_17_aarch64.whl", False),
        ("aiosignal-1.4.0-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("aiosignal-1.4.0-cp313-cp313-win_amd64.whl", False),
        ("aiosignal-1.4.0-cp313-cp313-macosx_11_0_arm64.whl", False),
    ],
)
def test_which_files_of_a_version_are_listed(file: str, wanted: bool) -> None:
    pytest.importorskip("pip._internal.commands.download")
    assert script("pin_hashes").belongs(file, "aiosignal", "1.4.0") is wanted
