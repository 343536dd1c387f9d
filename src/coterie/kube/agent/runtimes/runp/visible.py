"""What a host environment sees of the machine besides /usr: the directories that its programs live in.

    /srv/engine/venv/bin/python ──link──> /home/dev/.pyenv/versions/3.11.7/bin/python3.11
    └ /srv/engine/venv                    └ /home/dev/.pyenv/versions/3.11.7, and nothing else below /home

A directory that holds more than a program (a home directory, /opt, the agent's own root) is never shown for the sake of
a program in it; then there is only the program itself. What else is needed is named when the image is added (`--visible`).
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import coterie
from coterie.kube.agent.images.model import HOST, StoredImage

_SYSTEM = "/usr"
_SEARCHED = ("PYTHONPATH", "LD_LIBRARY_PATH")
_MOST_LINKS = 40


def paths(image: StoredImage, hidden: Iterable[Path] = ()) -> list[tuple[str, str]]:
    """Pairs of a path on the machine and the same, or a link to it, in the container; none of them below another."""
    if image.kind != HOST:
        return []
    withheld = [os.path.realpath(path) for path in hidden]
    wanted = [*_environments(image, withheld), *image.visible]
    targets: dict[str, str] = {}
    for path in wanted:
        real = os.path.realpath(path)
        if os.path.exists(real) and not any(_below(real, place) for place in withheld):
            targets[os.path.normpath(path)] = targets[real] = real
    return sorted(
        (real, target)
        for target, real in targets.items()
        if not _below(target, _SYSTEM)
        and not any(target != other and _below(target, other) for other in targets)
        and not _is_system_link(target)
    )


def covers(shown: Sequence[tuple[str, str]], hidden: Iterable[Path]) -> list[str]:
    """Where the container would see what is hidden, in what it is shown."""
    found = []
    for path in {os.path.realpath(path) for path in hidden}:
        found += [target + path[len(real) :] for real, target in shown if path.startswith(real.rstrip("/") + "/")]
    return sorted(found)


def _environments(image: StoredImage, hidden: Sequence[str]) -> Iterator[str]:
    variables = dict(image.env)
    programs = []
    if image.entrypoint:
        programs.append(shutil.which(image.entrypoint[0], path=variables.get("PATH")) or image.entrypoint[0])
    if image.builtin:
        programs.append(sys.executable)
        yield from (sys.prefix, sys.base_prefix, str(Path(coterie.__file__).parents[1]))
    for program in programs:
        for place in _hops(program):
            yield from _prefixes(place, hidden)
    yield from (word for word in (*image.entrypoint[1:], *image.cmd) if word.startswith("/") and os.path.isfile(word))
    for name in _SEARCHED:
        for place in variables.get(name, "").split(":"):
            if place.startswith("/") and not _too_wide(place, hidden):
                yield place


def own_prefix(program: str) -> str:
    """The directory that an environment's program lives in; the program itself where that holds more than the environment."""
    return next(_prefixes(program, ()))


def _hops(program: str) -> Iterator[str]:
    """The program, and what it is a link to."""
    for _ in range(_MOST_LINKS):
        if not os.path.isabs(program) or not os.path.lexists(program):
            return
        yield program
        if not os.path.islink(program):
            return
        program = os.path.normpath(os.path.join(os.path.dirname(program), os.readlink(program)))


def _prefixes(program: str, hidden: Sequence[str]) -> Iterator[str]:
    directory = os.path.dirname(program)
    prefix = os.path.dirname(directory) if os.path.basename(directory) in ("bin", "sbin") else directory
    if _too_wide(prefix, hidden):
        yield program
        return
    yield prefix
    # A virtual environment names the directory of the interpreter that it was made with.
    try:
        lines = Path(prefix, "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        key, _, value = line.partition("=")
        home = os.path.dirname(value.strip())
        if key.strip() == "home" and os.path.isabs(home) and not _too_wide(home, hidden):
            yield home


def _too_wide(path: str, hidden: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    if real.count("/") < 2 and real != _SYSTEM:
        return True
    if (
        os.path.dirname(real) == "/home"
        or real == os.path.expanduser("~")
        or any(_below(place, real) for place in hidden)
    ):
        return True
    try:
        home = pwd.getpwuid(os.stat(real).st_uid).pw_dir
    except (KeyError, OSError):
        return False
    return real in (home, f"{home}/.local")


def _is_system_link(path: str) -> bool:
    """/bin and the like where they are links into /usr: a container has these links."""
    first = "/" + path.split("/")[1]
    return os.path.islink(first) and _below(os.path.realpath(first), _SYSTEM)


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
