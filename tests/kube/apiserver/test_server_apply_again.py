"""Applying again: nothing changes when nothing is asked, and metadata survives the last owner."""

from server_kit import CMS, Api, serving

from coterie.kube.apiserver.server import Settings
from coterie.kuscia.extensions.apiserver import KUSCIA

JOBS = "/apis/kuscia.secretflow/v1alpha1/namespaces/default/kusciajobs"
JOB = {
    "apiVersion": "kuscia.secretflow/v1alpha1",
    "kind": "KusciaJob",
    "metadata": {"name": "j"},
    "spec": {
        "initiator": "alice",
        "tasks": [{"alias": "t", "appImage": "i", "taskInputConfig": "", "parties": [{"domainID": "alice"}]}],
    },
}


def config_map(**metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", **metadata}}


async def test_the_last_owner_leaves_and_metadata_stays(api: Api) -> None:
    applied = await api.apply(f"{CMS}/x", config_map(labels={"a": "b"}))
    assert applied.json["metadata"]["labels"] == {"a": "b"}
    applied = await api.apply(f"{CMS}/x", config_map())
    assert applied.status == 200
    assert "labels" not in applied.json["metadata"]
    assert "managedFields" not in applied.json["metadata"]
    assert applied.json["metadata"]["name"] == "x"


async def test_defaults_inside_atomic_lists_are_no_change() -> None:
    async with serving(Settings(extensions=[KUSCIA])) as api:
        first = await api.apply(f"{JOBS}/j", JOB)
        assert first.json["spec"]["tasks"][0]["tolerable"] is False
        await api.clock.advance(5)
        again = await api.apply(f"{JOBS}/j", JOB)
        assert again.json["metadata"]["resourceVersion"] == first.json["metadata"]["resourceVersion"]
