"""Build an OCI image of the environment of SecretFlow (`make secretflow`) from what is on this machine, without a registry.

    python scripts/build_secretflow_image.py OUT.tar

The image has the virtual environment (/opt/secretflow), the interpreter (/opt/python), a shell with a few programs, and the
libraries that all of these need. Its name is that of the host environment, so loading it replaces the environment for pods.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from coterie.cli.app import App
from coterie.cli.engine_environment import SECRETFLOW
from coterie.kube.agent.images import export
from coterie.kube.agent.images.store import ImageStore

PROGRAMS = ("sh", "bash", "sort", "env", "cat", "ls", "mkdir", "rm", "uname", "sleep", "id", "head", "tail")
ENVIRONMENT, PYTHON = "opt/secretflow", "opt/python"
_LIBRARY = re.compile(r"(?:=> )?(/[^ ]+) \(0x")
_AT_ONCE = 100
_SKIPPED = shutil.ignore_patterns("__pycache__", "test", "tests", "idlelib", "turtledemo", "*.a", "Activate.ps1")


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def build(root: Path, environment: Path) -> None:
    interpreter = Path(os.path.realpath(environment / "bin" / "python"))
    prefix = interpreter.parents[1]
    shutil.copytree(environment, root / ENVIRONMENT, symlinks=True, copy_function=link_or_copy)
    for part in ("bin", "lib"):
        if prefix == Path("/usr"):
            raise SystemExit("the environment's Python is that of the system; use one with a directory of its own")
        shutil.copytree(
            prefix / part, root / PYTHON / part, symlinks=True, copy_function=link_or_copy, ignore=_SKIPPED,
            ignore_dangling_symlinks=True,
        )  # fmt: skip
    shutil.rmtree(next((root / PYTHON / "lib").glob("python3*/site-packages")))
    for name in ("python", "python3", interpreter.name):
        (root / ENVIRONMENT / "bin" / name).unlink(missing_ok=True)
        (root / ENVIRONMENT / "bin" / name).symlink_to(f"/{PYTHON}/bin/{interpreter.name}")
    settings = root / ENVIRONMENT / "pyvenv.cfg"
    version = ".".join(str(each) for each in sys.version_info[:3])
    settings.unlink()  # a link to the environment's own file
    settings.write_text(f"home = /{PYTHON}/bin\ninclude-system-site-packages = false\nversion = {version}\n")
    add_system(root)
    add_libraries(root)


def add_system(root: Path) -> None:
    for name in ("etc", "tmp", "proc", "sys", "dev", "root", "work", "usr/bin", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    # Arrow reads time zones from there.
    zones = Path("/usr/share/zoneinfo")
    shutil.copytree(zones, root / "usr/share/zoneinfo", symlinks=True, ignore=shutil.ignore_patterns("posix", "right"))
    (root / "etc/localtime").symlink_to("../usr/share/zoneinfo/Etc/UTC")
    for name in PROGRAMS:
        found = shutil.which(name)
        if found:
            shutil.copy2(os.path.realpath(found), root / "usr/bin" / name)


def add_libraries(root: Path) -> None:
    """What the dynamic linker would load from the machine, at the same place in the image."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path)]
    search = {**os.environ, "LD_LIBRARY_PATH": str(root / PYTHON / "lib")}
    found: set[str] = set()
    for at in range(0, len(files), _AT_ONCE):
        words = ["ldd", *(str(path) for path in files[at : at + _AT_ONCE])]
        done = subprocess.run(words, env=search, capture_output=True, text=True, check=False)
        found |= set(_LIBRARY.findall(done.stdout))
    for name in sorted(found):
        if not name.startswith((str(root), str(Path(sys.base_prefix)))):
            target = root / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy2(os.path.realpath(name), target)


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def main(out: Path) -> None:
    environment = SECRETFLOW.directory(App.standard())
    if not SECRETFLOW.installed(environment):
        sys.exit("the environment of SecretFlow is not there: make secretflow")
    with tempfile.TemporaryDirectory(prefix="secretflow-image-", dir=out.parent) as work:
        root = Path(work) / "root"
        root.mkdir(mode=0o755)
        build(root, environment)
        store = ImageStore(Path(work) / "store")
        variables = (
            ("PATH", f"/{ENVIRONMENT}/bin:/usr/bin:/bin"),
            ("LD_LIBRARY_PATH", f"/{PYTHON}/lib"),
            ("LANG", "C.UTF-8"),
        )
        image = store.add_rootfs(SECRETFLOW.image, root, env=variables)
        with out.open("wb") as file:
            (saved,) = export.save(store, [image], file)
    print(f"{out}: {saved.name} {saved.id}, {out.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).absolute())
