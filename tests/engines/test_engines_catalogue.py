"""The AppImages of the built-in engines: there after the first start, renewed by a new version, left to whoever changed them."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator

import pytest

from coterie.engines.sample import task
from coterie.http.messages import UserInfo
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.job import APP_IMAGES
from coterie.kuscia.engine.builtin_appimages import BUILT_IN, ENGINES, SAMPLE, ensure_engines, outdated
from coterie.kuscia.engine.templates import template
from coterie.kuscia.extensions.apiserver import KUSCIA

IMAGES = APP_IMAGES.as_dynamic


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]))
    await server.start()
    made = Client(InProcessTransport(server.handle, UserInfo("admin", ("system:masters",))))
    yield made
    await made.close()
    await server.stop()
    await store.close()


async def test_the_engines_are_there_after_a_start_and_stay_as_they_are(client: Client) -> None:
    await ensure_engines(client)
    before = await client.get(IMAGES, "sample")
    await ensure_engines(client)
    assert await client.get(IMAGES, "sample") == before
    typed = await client.get(APP_IMAGES, "sample")
    assert (typed.spec.image.name, typed.spec.image.tag) == ("coterie/python", "latest")
    assert not outdated(before, SAMPLE)


async def test_an_untouched_engine_follows_the_version_and_a_changed_one_does_not(client: Client) -> None:
    await ensure_engines(client)
    newer = copy.deepcopy(SAMPLE)
    newer["spec"]["image"]["tag"] = "v2"
    await ensure_engines(client, (newer,))
    assert (await client.get(APP_IMAGES, "sample")).spec.image.tag == "v2"
    await client.patch(IMAGES, "sample", "", {"spec": {"image": {"tag": "mine"}}})
    await ensure_engines(client, (SAMPLE,))
    assert (await client.get(APP_IMAGES, "sample")).spec.image.tag == "mine"


async def test_an_engine_of_the_same_name_is_left_alone(client: Client) -> None:
    own = copy.deepcopy(SAMPLE)
    own["spec"]["image"]["tag"] = "mine"
    await client.create(IMAGES, own)
    await ensure_engines(client)
    found = await client.get(IMAGES, "sample")
    assert found["spec"]["image"]["tag"] == "mine"
    assert BUILT_IN not in (found["metadata"].get("annotations") or {})


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine["metadata"]["name"]))
def test_the_templates_of_every_engine_are_rendered_to_json(engine: dict[str, object]) -> None:
    spec = json.loads(json.dumps(engine["spec"]))
    for text in spec["configTemplates"].values():
        values = {"TASK_ID": "t", "TASK_INPUT_CONFIG": '{"mode": "ok"}', "INPUT_CONFIG": '{"mode": "ok"}'}
        found = json.loads(template.render(template.parse(text), values))
        assert (found.get("task_input_config") or found["input_config"]) == '{"mode": "ok"}'


def test_what_the_sample_engine_is_given_is_what_it_reads() -> None:
    party = {"name": "alice", "role": "", "services": [{"portName": "talk", "endpoints": ["t-0-talk.alice.svc"]}]}
    values = {
        "TASK_ID": "t",
        "TASK_INPUT_CONFIG": '{"mode": "slow", "seconds": 1.5, "party": "bob"}',
        "TASK_CLUSTER_DEFINE": json.dumps({"parties": [party], "selfPartyIdx": 0, "selfEndpointIdx": 0}),
        "ALLOCATED_PORTS": '{"ports":[{"name":"talk","port":25001,"scope":"Cluster","protocol":"HTTP"}]}',
    }
    (text,) = SAMPLE["spec"]["configTemplates"].values()
    found = task.parse(template.render(template.parse(text), values))
    assert (found.id, found.port, found.mode, found.seconds) == ("t", 25001, "ok", 1.5)
    assert found.progress_url == "http://reporter.master.svc/report/progress?task_id=t"
