"""Which containers may be forked from an interpreter that has their modules already: a pure decision.

A host image that names modules to preload is started as `python [options] -m MODULE`. A container is forked if it runs these very
words, perhaps with further arguments for the module. What an interpreter or a library reads only while it is loaded must then be the
image's own: a pod that sets such a variable is started as every other container.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.kube.agent.images.model import HOST, StoredImage, argv
from coterie.kube.agent.runtimes.protocol import ContainerSpec, PodSandbox
from coterie.kube.agent.runtimes.runp.settings import RunpSettings

_OPTIONS = frozenset(("-I", "-E", "-s", "-S", "-P", "-u", "-B", "-O", "-OO", "-q"))
_READ_WHILE_LOADED = (
    "PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "NUMEXPR_",
    "VECLIB_",
)  # fmt: skip


def interpreter(image: StoredImage) -> tuple[tuple[str, ...], str] | None:
    """The interpreter with its options, and the module that it runs; None: containers of the image are never forked."""
    if image.kind != HOST or not image.preload:
        return None
    words = argv(image, (), ())
    if "-m" not in words[:-1]:
        return None
    at = words.index("-m")
    if not at or any(option not in _OPTIONS for option in words[1:at]):
        return None
    return words[:at], words[at + 1]


def zygote_request(
    settings: RunpSettings,
    image: StoredImage,
    pod: PodSandbox,
    spec: ContainerSpec,
    words: Sequence[str],
    powers: dict[str, Any],
) -> dict[str, Any] | None:
    """What the supervisor needs to fork the container; None: it is to be executed."""
    found = interpreter(image)
    if found is None or not powers["namespaces"] or pod.handler != "runp" or spec.security.privileged or spec.target:
        return None
    python, module = found
    start = (*python, "-m", module)
    if tuple(words[: len(start)]) != start:
        return None
    own = dict(image.env)
    if any(name.startswith(_READ_WHILE_LOADED) and own.get(name) != value for name, value in spec.env):
        return None
    return {
        "namespace": pod.namespace,
        "image": image.name,
        "image_id": image.id,
        "python": list(python),
        "module": module,
        "env": [[name, value] for name, value in image.env],
        "preload": list(image.preload),
        "arguments": list(words[len(start) :]),
        "idle": settings.zygote_idle_seconds,
        "load": settings.zygote_load_seconds,
    }
