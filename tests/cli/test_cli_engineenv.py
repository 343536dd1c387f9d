"""Environments of engines: their manifests and requirements, and `coterie engine add` of one that cannot be had."""

from __future__ import annotations

import io
import re
import sys
from importlib import resources
from pathlib import Path

import pytest

from coterie.cli import engine_environment, engines
from coterie.cli.app import App
from coterie.cli.engine_environment import ENVIRONMENTS, SECRETFLOW, Environment
from coterie.cli.main import main

ALL = pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)


def app(tmp_path: Path) -> App:
    """Without a package index."""
    out = io.StringIO()
    environ = {
        engine_environment.VARIABLE: str(tmp_path / "tools"),
        "COTERIE_ROOT": str(tmp_path / "net"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
    }
    return App(out, out, environ, cwd=tmp_path)


@ALL
def test_its_app_image_can_be_used(environment: Environment) -> None:
    assert engines.faults(environment.made()) == []


@ALL
def test_all_it_needs_is_pinned(environment: Environment) -> None:
    text = resources.files("coterie.engines").joinpath(environment.name, "requirements.txt").read_text()
    entries = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert entries == sorted(entries, key=str.lower)
    pinned = r"[A-Za-z0-9_.-]+==[a-z0-9.]+(\s+--hash=sha256:[0-9a-f]{64})+\s*"
    assert [each for each in entries if not re.fullmatch(pinned, each)] == []


def borrowed_pip(place: Path, **_: object) -> None:
    """An environment whose pip is ours: installing pip into a new one takes longer than the rest of this file."""
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)


@ALL
def test_what_cannot_be_fetched_is_told_and_leaves_nothing(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_environment.venv, "create", borrowed_pip)
    here = app(tmp_path)
    assert main(["engine", "add", environment.name], here) == 1
    said = here.err.getvalue()  # type: ignore[attr-defined]
    assert f"then try again: coterie engine add {environment.name}" in said
    assert not environment.installed(environment.directory(here))
    assert not environment.directory(here).exists()


def test_where_it_is_installed_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = app(tmp_path)
    monkeypatch.setattr(Environment, "installed", lambda *_: True)
    assert main(["engine", "add", "secretflow"], here) == 0
    said = here.out.getvalue()  # type: ignore[attr-defined]
    assert f"The environment of the engine secretflow is in {SECRETFLOW.directory(here)}." in said
    assert "`coterie up` starts one" in said


def test_a_file_of_the_name_goes_before(tmp_path: Path) -> None:
    (tmp_path / "secretflow").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n")
    here = app(tmp_path)
    assert main(["engine", "add", "secretflow"], here) == 1
    assert "a Pod is no engine" in here.err.getvalue()  # type: ignore[attr-defined]


def test_secretflow_is_what_jobs_call_it() -> None:
    spec = SECRETFLOW.made()["spec"]
    (container,) = spec["deployTemplates"][0]["spec"]["containers"]
    scopes = {port["name"]: (port["protocol"], port["scope"]) for port in container["ports"]}
    assert (SECRETFLOW.app_image, SECRETFLOW.image) == ("secretflow-image", "coterie/secretflow:latest")
    assert container["command"] + container["args"] == [
        "sh", "-c", "python -m secretflow.kuscia.entry ./kuscia/task-config.conf",
    ]  # fmt: skip
    assert {name for name, port in scopes.items() if port[1] == "Cluster"} == {"spu", "fed", "inference"}
    assert scopes["global"] == ("GRPC", "Domain")


@ALL
def test_the_version_is_that_of_its_library(environment: Environment) -> None:
    text = resources.files("coterie.engines").joinpath(environment.name, "requirements.txt").read_text()
    others = {"psi": "spu", "secretflow": "secretflow-lite", "flower": "flwr"}
    library = others.get(environment.name, environment.name)
    assert f"\n{library}=={environment.version} " in text


def test_another_version_goes_beside_the_one_that_is_there(tmp_path: Path) -> None:
    here, environment = app(tmp_path), ENVIRONMENTS["psi"]
    first = tmp_path / "tools" / "psi"
    assert environment.directory(here) == first
    first.mkdir(parents=True)
    (first / "coterie-installed").write_text("of an older Coterie")
    assert environment.directory(here) == first.with_name(f"psi-{environment.version}")
    assert environment._beside()["metadata"]["name"] == f"psi-{environment.version}"
    assert environment._beside_image() == f"coterie/psi:{environment.version}"
    assert engines.faults(environment._beside()) == []
