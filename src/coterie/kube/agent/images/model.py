"""Images as plain data: names, what they consist of, and how a container's words follow from an image's.

A *host* image is a command on this machine with its environment. A *rootfs* image has a file system of its own: layers
from an archive, or a directory that somebody unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

HOST, ROOTFS = "host", "rootfs"
_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::[0-9]+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*", re.ASCII)
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_DEFAULTS = ("docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/", "library/")


class ImageError(Exception):
    """The image cannot be used, or what was asked of the store cannot be done; told to the user as it stands."""


class ImageRefused(ImageError):
    """The image is there and must not be started. `reason` is what container statuses show."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


ID_MISMATCH = "ImageIDMismatch"
SIGNATURE_FAILED = "SignatureValidationFailed"


@dataclass(frozen=True, slots=True)
class RequiredImage:
    """What whoever made a pod demands of its image, besides the name."""

    id: str = ""
    """`sha256:...`: the image's id, or the digest by which a registry knows it. Empty: any."""
    signature: str = ""
    """Base64 of a signature of the id, for images that have none in a registry."""


ANY_IMAGE = RequiredImage()


@dataclass(frozen=True, slots=True)
class StoredImage:
    name: str
    """`repository:tag`, normalised."""
    id: str
    """`sha256:...`"""
    kind: str
    size: int = 0
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = ""
    user: str = ""
    """`uid`, `uid:gid`, or names that the image's own /etc/passwd knows."""
    layers: tuple[str, ...] = ()
    """Digests of the unpacked layers, lowest first."""
    directory: str = ""
    """A root file system that lies where the user put it."""
    builtin: bool = False
    visible: tuple[str, ...] = ()
    """Paths of the machine that containers of a host environment see besides the environment itself, read-only."""
    preload: tuple[str, ...] = ()
    """Python modules of a host environment that are imported ahead of its containers (`runp/zygote.py`)."""
    manifest: str = ""
    """`sha256:...` of the manifest, by which a registry knows the image; empty for images of another origin."""
    platform_manifest: str = ""
    """That of the manifest for this machine, where `manifest` is an index."""
    signatures: tuple[tuple[str, str, str, str], ...] = ()
    """That the registry had of either, as `signatures.py` writes them; verified whenever the image is used."""


def id_problem(image: StoredImage, required: str) -> str:
    """Why the image is not the required one; empty when it is, or any will do."""
    if not required:
        return ""
    wanted = required if required.startswith("sha256:") else f"sha256:{required}"
    if not _DIGEST.fullmatch(wanted):
        return f'the required image id "{required[:80]}" is not sha256: and 64 hexadecimal digits; `coterie image ls -o json` has it'
    if wanted in (image.id, image.manifest, image.platform_manifest):
        return ""
    return f'image "{image.name}" on this node has the id {image.id}, and {wanted} is required'


def normalise(name: str) -> str:
    """`nginx` and `docker.io/library/nginx:latest` are the same image."""
    name, _, digest = name.partition("@")
    for prefix in _DEFAULTS:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    repository, tag = split(name)
    if not _NAME.fullmatch(repository) or not _TAG.fullmatch(tag):
        raise ImageError(f'"{name}" is not an image name such as secretflow/engine:1.0')
    return f"{repository}:{tag}@{digest}" if digest else f"{repository}:{tag}"


def split(name: str) -> tuple[str, str]:
    """Repository and tag; a colon before a slash belongs to a port."""
    head, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, "latest"
    return head, tag


def without_registry(name: str) -> str:
    """`registry.example:5000/team/app:1` -> `team/app:1`; names that have no registry stay."""
    first, slash, rest = name.partition("/")
    return rest if slash and ("." in first or ":" in first or first == "localhost") else name


def argv(image: StoredImage, command: Sequence[str], args: Sequence[str]) -> tuple[str, ...]:
    """A pod's command replaces the entry point and with it the image's arguments; args alone replace the arguments."""
    if command:
        return (*command, *args)
    return (*image.entrypoint, *(args or image.cmd))
