"""Names of images, and how an image's command and a container's become one."""

from __future__ import annotations

import pytest

from coterie.kube.agent.images.model import HOST, ImageError, StoredImage, argv, normalise, without_registry


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("nginx", "nginx:latest"),
        ("docker.io/library/nginx:latest", "nginx:latest"),
        ("docker.io/team/app:1", "team/app:1"),
        ("library/nginx:1.2", "nginx:1.2"),
        ("registry.example:5000/team/app", "registry.example:5000/team/app:latest"),
        ("registry.example/team/app:1@sha256:abc", "registry.example/team/app:1@sha256:abc"),
    ],
)
def test_normalised(name, normal):
    assert normalise(name) == normal


@pytest.mark.parametrize("name", ["", "UPPER/case", "a b", "../etc", "name:", "-x", "a//b", "a:b:c"])
def test_nonsense_is_refused(name):
    with pytest.raises(ImageError):
        normalise(name)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("registry.example:5000/team/app:1", "team/app:1"),
        ("localhost/app:1", "app:1"),
        ("team/app:1", "team/app:1"),
        ("app:1", "app:1"),
    ],
)
def test_registry_is_taken_off(name, plain):
    assert without_registry(name) == plain


@pytest.mark.parametrize(
    ("command", "args", "words"),
    [
        ((), (), ("entry", "cmd")),
        (("run",), (), ("run",)),
        (("run",), ("it",), ("run", "it")),
        ((), ("it",), ("entry", "it")),
    ],
)
def test_command_and_args_follow_kubernetes(command, args, words):
    assert argv(StoredImage("a:b", "sha256:", HOST, entrypoint=("entry",), cmd=("cmd",)), command, args) == words
