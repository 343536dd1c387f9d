"""Where a node looks for images, with whose password, and when it looks at all."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_kit import entry, tar
from registry_kit import Content, Registry

from coterie.base.secret import SecretValue
from coterie.kube.agent.images.model import ImageError
from coterie.kube.agent.images.pull import parse
from coterie.kube.agent.images.puller import ImagePuller
from coterie.kube.agent.images.references import RegistryEndpoint
from coterie.kube.agent.images.sources import (
    ConfiguredRegistry,
    PullSettings,
    RegistryCredentials,
    docker_credentials,
    secret_credentials,
)
from coterie.kube.agent.images.store import HOST_IMAGE, ImageStore

OWN = ConfiguredRegistry(
    "own",
    RegistryEndpoint.of("registry.example/team", username="node", password="p"),
    (RegistryEndpoint.of("mirror.example/cache"),),
)
SETTINGS = PullSettings(remote=True, default=OWN, registries=(OWN,), proxy="proxy.example:3128")


def asked(
    name: str, *credentials: RegistryCredentials, settings: PullSettings = SETTINGS
) -> list[tuple[str, str, str]]:
    wanted = parse(name)
    return [(e.host + e.path_of(wanted.repository), e.username, e.proxy) for e in settings.sources(wanted, credentials)]


def test_mirrors_then_the_registry_with_the_nodes_credentials() -> None:
    proxy = "proxy.example:3128"
    mirror, own = ("mirror.example/v2/cache/app", "", proxy), ("registry.example/v2/team/app", "node", proxy)
    assert asked("app:1") == [mirror, own]
    assert asked("registry.example/team/app:1") == [("mirror.example/v2/cache/team/app", "", proxy), own]
    assert asked("other.example/app") == [("other.example/v2/app", "", proxy)]
    with pytest.raises(ImageError, match="names no registry"):
        asked("app", settings=PullSettings(remote=True))


def test_a_pods_credentials_go_to_their_own_place_only() -> None:
    wide = RegistryCredentials("registry.example", "wide", SecretValue("1"))
    narrow = RegistryCredentials("registry.example/team/app", "narrow", SecretValue("2"))
    lookalike = RegistryCredentials("registry.example/team/ap", "wrong", SecretValue("3"))
    assert asked("app", wide, narrow, lookalike)[-1][1] == "narrow"
    assert asked("registry.example/team/other", wide, narrow)[-1][1] == "wide"
    assert asked("registry.example.evil/team/app", wide, narrow) == [
        ("registry.example.evil/v2/team/app", "", SETTINGS.proxy)
    ]
    assert asked("app", wide)[0][1] == "", "a mirror gets no password of the registry"


def test_docker_configurations() -> None:
    auth = base64.b64encode(b"me:pa:ss").decode()
    text = {
        "auths": {
            "https://registry.example/v1/": {"auth": auth},
            "two.example": {"username": "u", "password": "p"},
            "bad.example": {"auth": "%%%"},
            "empty.example": {},
            "odd.example": [],
        }
    }
    found = [(each.place, each.username, each.password.reveal()) for each in docker_credentials(json.dumps(text))]
    assert found == [("registry.example", "me", "pa:ss"), ("two.example", "u", "p")]
    assert docker_credentials("nonsense") == docker_credentials("[]") == docker_credentials('{"auths": 7}') == []
    data = base64.b64encode(json.dumps(text).encode()).decode()
    secrets = [{"data": {".dockerconfigjson": data}}, {"data": {".dockerconfigjson": "?"}}, {}]
    assert len(secret_credentials(secrets)) == 2
    assert "pa:ss" not in repr(docker_credentials(json.dumps(text)))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry(Content()).serving() as running:
        running.content.add([tar([entry("a", b"a")])], "1")
        yield running


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


async def test_when_an_image_is_pulled(store: ImageStore, registry: Registry) -> None:
    name = f"{registry.host}/team/app:1"
    puller, local = ImagePuller(store, PullSettings(remote=True)), ImagePuller(store, PullSettings())
    assert [puller.needed(name, policy) for policy in ("Always", "IfNotPresent", "Never")] == [True, True, False]
    assert not local.needed(name, "Always") and not puller.needed("not a name", "Always")
    assert not puller.needed(HOST_IMAGE, "Always")
    outcome = await puller.pull(name, ())
    assert [puller.needed(name, policy) for policy in ("Always", "IfNotPresent", "Never")] == [True, False, False]
    assert not puller.needed(f"{name}@{outcome.image.manifest}", "Always")
    store.add_host("team/own:1", ["/bin/true"])
    assert not puller.needed("team/own:1", "Always"), "no registry has it"


async def test_many_who_want_one_image_pull_it_once(store: ImageStore, registry: Registry) -> None:
    puller = ImagePuller(store, PullSettings(remote=True))
    found = await asyncio.gather(*(puller.pull(f"{registry.host}/team/app:1", ()) for _ in range(8)))
    assert len({outcome.image.id for outcome in found}) == 1
    assert len([path for path in registry.asked if "/manifests/" in path]) == 1
    with pytest.raises(ImageError, match="no such image"):
        await puller.pull(f"{registry.host}/team/app:2", ())
    await puller.close()
