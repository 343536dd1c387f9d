"""The image id that an AppImage states is enforced when the node starts a container."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_kit import container, pod, world

from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.images.sources import PullSettings
from coterie.kube.agent.images.store import HOST_IMAGE, ImageStore
from coterie.kuscia.api import labels
from coterie.kuscia.engine.engine_plugin import required_image


def engine_pod(name: str, image_id: str, policy: str = "Never") -> dict:
    made = pod(name, container("sleep inf"), policy=policy)
    made["metadata"]["annotations"] = {labels.KUSCIA_IMAGE_ID: image_id}
    return made


def waiting_reason(found: dict) -> str:
    return found["status"]["containerStatuses"][0]["state"].get("waiting", {}).get("reason", "")


async def test_a_wrong_id_is_refused_and_the_right_one_starts(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        store = ImageStore(tmp_path / "images")
        there.images = NodeImages(store, PullSettings(), there.clock)
        right = store.find(HOST_IMAGE).id  # type: ignore[union-attr]
        await there.start_agent()
        await there.create(engine_pod("right", right))
        await there.create(engine_pod("wrong", "sha256:" + "0" * 64))
        await there.create(engine_pod("nonsense", "abc"))
        await there.create(engine_pod("waits", "sha256:" + "0" * 64, "Always"))
        await there.pod_until("right", lambda found: found["status"].get("phase") == "Running")
        for name in ("wrong", "nonsense"):
            failed = await there.pod_until(name, lambda found: found["status"].get("phase") == "Failed")
            assert failed["status"]["reason"] == "ImageIDMismatch"
        assert "0000 is required" in (await there.pod("wrong"))["status"]["message"]
        await there.pod_until("waits", lambda found: waiting_reason(found) == "ImageIDMismatch")
        assert [started[0] for started in there.machine.started] == ["right"]


async def test_a_node_that_cannot_verify_starts_nothing_that_requires_an_id(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        await there.start_agent()
        await there.create(engine_pod("unverified", "sha256:" + "0" * 64))
        failed = await there.pod_until("unverified", lambda found: found["status"].get("phase") == "Failed")
        assert failed["status"]["reason"] == "ImageIDMismatch"
        assert there.machine.started == []


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
async def test_debuggers_may_have_another_image(tmp_path: Path, kind: str) -> None:
    made = engine_pod("p", "sha256:" + "1" * 64)
    made["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "busybox"}]
    made["spec"][kind] = [{"name": "main", "image": "engine"}]
    assert required_image(made, made["spec"][kind][0]).id == "sha256:" + "1" * 64
    assert required_image(made, made["spec"]["ephemeralContainers"][0]).id == ""
