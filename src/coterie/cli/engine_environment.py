"""Environments of engines that are too large to come along: made once for a machine, known to the domains from then on.

    make psi, coterie engine add psi ──pip──> <tools>/psi (a virtual environment) ──> image coterie/psi in every domain
                                                                                  └─> AppImage psi in every control plane

Their libraries are pinned apart from Coterie's own requirements, so each engine has an interpreter to itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml

import coterie
from coterie.base.files import write_atomic
from coterie.cli import node_health
from coterie.cli.app import App, CliError
from coterie.cli.progress import working
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.client.kubeconfig import KubeconfigError
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api import labels
from coterie.kuscia.engine import builtin_appimages
from coterie.node.config import NodeSettings

VARIABLE = "COTERIE_TOOLS"
_STAMP = "coterie-installed"
_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Environment:
    """An engine that needs one. Its requirements stand in `coterie/engines/<name>/requirements.txt`, all of them: what
    they would bring along is not installed."""

    name: str
    made: Callable[[], Object]
    """Gives the AppImage."""
    size: str
    """What is fetched, for people."""
    pythons: tuple[tuple[int, int], tuple[int, int]] = ((3, 10), (3, 11))
    """First and last version of Python that its packages are made for."""
    ours: bool = False
    """Coterie's engines are copied into it, and nothing else of Coterie: a pod may not see the place where it lies."""

    @property
    def app_image(self) -> str:
        return str(self.made()["metadata"]["name"])

    @property
    def image(self) -> str:
        image = self.made()["spec"]["image"]
        return f"{image['name']}:{image['tag']}"

    @property
    def version(self) -> str:
        """That this Coterie brings."""
        return str(self.made()["metadata"]["annotations"][labels.COTERIE_ENGINE_VERSION])

    def directory(self, app: App) -> Path:
        """Where this version is, or goes: another one that is there already stays, since jobs may be using it."""
        place = self._first_directory(app)
        stamp = place / _STAMP
        if stamp.is_file() and stamp.read_text() != self._stamp():
            return place.with_name(f"{self.name}-{self.version}")
        return place

    def _first_directory(self, app: App) -> Path:
        """$COTERIE_TOOLS/<name>, else below the repository that Coterie runs from, else in the user's cache."""
        named = app.environ.get(VARIABLE)
        if named:
            return (app.cwd / Path(named).expanduser()).absolute() / self.name
        repository = Path(coterie.__file__).parents[2]
        if (repository / "pyproject.toml").is_file() and os.access(repository, os.W_OK):
            return repository / ".tools" / self.name
        cache = app.environ.get("XDG_CACHE_HOME")
        return (Path(cache) if cache else app.home / ".cache") / "coterie" / self.name

    def installed(self, place: Path) -> bool:
        """Whether it is there as this version wants it."""
        stamp = place / _STAMP
        return stamp.is_file() and stamp.read_text() == self._stamp() and (place / "bin" / "python").exists()

    def install(self, app: App) -> Path:
        """The environment, made where it is missing. CliError when it cannot be had."""
        place = self.directory(app)
        if self.installed(place):
            self._copy_engines(place)
            _repair(place)
            return place
        first, last = self.pythons
        if not first <= sys.version_info[:2] <= last:
            raise CliError(
                f"Error: the packages of the engine {self.name} run on Python {first[0]}.{first[1]} to "
                f"{last[0]}.{last[1]}, and this is {sys.version_info[0]}.{sys.version_info[1]}; run Coterie on "
                "Python 3.11 for it"
            )
        app.warn(f"Installing the environment of the engine {self.name} in {place} (about {self.size} to fetch) ...")
        with working(app, f"engine {self.name}", "installing packages", done="installed"):
            self._make(place, app)
        return place

    def _make(self, place: Path, app: App) -> None:
        shutil.rmtree(place, ignore_errors=True)
        try:
            venv.create(place, with_pip=True, symlinks=True)
            _pip(place, self._requirements(), app)
            self._copy_engines(place)
            _repair(place)
            (place / _STAMP).write_text(self._stamp())
        except (OSError, subprocess.SubprocessError) as problem:
            shutil.rmtree(place, ignore_errors=True)
            raise CliError(
                f"Error: the environment of the engine {self.name} could not be installed: {_reason(problem)}; "
                f"check the network and the package index of pip, then try again: coterie engine add {self.name}"
            ) from problem

    def _copy_engines(self, place: Path) -> None:
        """What this version's engines are made of; only files that differ are written, since pods may be running from
        there."""
        if not self.ours:
            return
        source = Path(coterie.__file__).parent
        target = next((place / "lib").glob("python3*/site-packages")) / source.name
        files = (path for path in sorted((source / "engines").rglob("*")) if path.suffix in (".py", ".toml", ".json"))
        for path in (source / "__init__.py", *files):
            copy = target / path.relative_to(source)
            content = path.read_bytes()
            if not copy.is_file() or copy.read_bytes() != content:
                copy.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(copy, content, mode=0o644, durable=False)

    def _requirements(self) -> str:
        return resources.files("coterie.engines").joinpath(self.name, "requirements.txt").read_text()

    def _stamp(self) -> str:
        """What the stamp says: the requirements. Hashes do not change what is installed."""
        pinned = [line.rstrip(" \\") for line in self._requirements().splitlines() if "--hash=" not in line]
        text = "".join(f"{line}\n" for line in pinned) + f"{sys.version_info[:2]}"
        return hashlib.sha256(text.encode()).hexdigest()

    async def register(self, nodes: Sequence[NodeSettings], place: Path) -> None:
        """Make the engine known to all nodes of a network: the image where pods run, the AppImage in the control
        planes."""
        beside = place.name != self.name  # another version has the plain name
        for node in nodes:
            if node.agent is not None:
                self.add_image(node.paths.images, place, self._beside_image() if beside else self.image)
        for node in nodes:
            if node.mode == "lite":
                continue
            try:
                async with node_health.client_of(node) as client:
                    await builtin_appimages.ensure_engines(client, (self._beside() if beside else self.made(),))
            except (ApiError, TransportError, KubeconfigError) as problem:
                raise CliError(
                    f"Error: {node.domain} could not be given the engine {self.name}: {problem}; "
                    "is it up? `coterie up` starts it"
                ) from problem

    def _beside(self) -> Object:
        """The AppImage of this version where another one has the plain name: `psi-0.9.5`, with `coterie/psi:0.9.5`."""
        made = self.made()
        image = {**made["spec"]["image"], "tag": self.version}
        return {
            **made,
            "metadata": {**made["metadata"], "name": f"{self.app_image}-{self.version}"},
            "spec": {**made["spec"], "image": image},
        }

    def _beside_image(self) -> str:
        return f"{self.made()['spec']['image']['name']}:{self.version}"

    def add_image(self, images: Path, place: Path, name: str = "") -> None:
        path = f"{place / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        ImageStore(images).add_host(name or self.image, (str(place / "bin" / "python"),), env=(("PATH", path),))


@functools.cache
def _app_image(engine: str) -> Object:
    text = resources.files("coterie.engines").joinpath(engine, "appimage.yaml").read_text()
    manifest: Object = yaml.safe_load(text)
    return manifest


PSI = Environment("psi", lambda: builtin_appimages.PSI, "110 MB", ours=True)
SECRETFLOW = Environment("secretflow", lambda: _app_image("secretflow"), "400 MB")
MPYC = Environment("mpyc", lambda: _app_image("mpyc"), "1 MB", pythons=((3, 10), (3, 14)), ours=True)
FLOWER = Environment("flower", lambda: _app_image("flower"), "50 MB", pythons=((3, 11), (3, 13)), ours=True)
XGBOOST = Environment("xgboost", lambda: _app_image("xgboost"), "190 MB", pythons=((3, 11), (3, 13)), ours=True)
NVFLARE = Environment("nvflare", lambda: _app_image("nvflare"), "40 MB", pythons=((3, 11), (3, 13)), ours=True)
ENVIRONMENTS = {each.name: each for each in (PSI, SECRETFLOW, MPYC, FLOWER, XGBOOST, NVFLARE)}


def _pip(place: Path, text: str, app: App) -> None:
    requirements = place / "requirements.txt"
    requirements.write_text(text)
    words = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
        "-r",
        str(requirements),
    ]
    subprocess.run(
        [str(place / "bin" / "python"), *words],
        env={**os.environ, **app.environ},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )


def _repair(place: Path) -> None:
    """An environment of a Python that lacks what the engine's libraries use gets it: see `engines/tar_filter.py`."""
    if hasattr(tarfile, "data_filter"):
        return
    packages = next((place / "lib").glob("python3*/site-packages"))
    source = Path(coterie.__file__).parent / "engines" / "tar_filter.py"
    write_atomic(packages / "coterie_tar_filter.py", source.read_bytes(), mode=0o644, durable=False)
    write_atomic(packages / "coterie_tar_filter.pth", "import coterie_tar_filter\n", mode=0o644, durable=False)


def _reason(problem: Exception) -> str:
    if isinstance(problem, subprocess.CalledProcessError):
        lines = [line for line in str(problem.stderr).splitlines() if line.strip()]
        return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "pip failed")
    if isinstance(problem, subprocess.TimeoutExpired):
        return f"pip took more than {_SECONDS} s"
    return str(problem)


def main(environment: Environment) -> None:
    """For `make`: install it, say where it is."""
    try:
        print(environment.install(App.standard()))
    except CliError as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main(ENVIRONMENTS[sys.argv[1]])
