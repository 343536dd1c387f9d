"""kr8s: objects that know their API, synchronous and asynchronous."""

from __future__ import annotations

import asyncio

import kr8s
import kr8s.asyncio
from kr8s.asyncio.objects import ConfigMap as AsyncConfigMap
from kr8s.objects import ConfigMap, Deployment, Namespace, Pod, Secret, new_class, object_from_spec
from story import tell, until, until_async
from widgets import definition, widget

SPACE = "kr8s"
GROUP = "kr8s.example"


def identity() -> None:
    api = kr8s.api()
    assert api.version()["major"] == "1"
    assert "admin" in api.whoami()
    kinds = {resource["kind"] for resource in api.api_resources()}
    assert {"Pod", "Deployment", "Lease", "KusciaJob"} <= kinds, kinds


def objects() -> None:
    Namespace({"metadata": {"name": SPACE}}).create()
    one = ConfigMap({"metadata": {"name": "a", "namespace": SPACE}, "data": {"x": "1"}})
    assert not one.exists()
    one.create()
    assert one.exists() and one.metadata.uid
    one.label({"app": "web"})
    one.label(plain="yes")
    one.annotate(note="hello")
    assert ConfigMap.get("a", namespace=SPACE).labels == {"app": "web", "plain": "yes"}
    one.label("plain-")
    one.patch({"data": {"y": "2"}})
    one.patch([{"op": "replace", "path": "/data/x", "value": "9"}], type="json")
    one.refresh()
    assert one.data == {"x": "9", "y": "2"} and one.annotations.note == "hello" and one.labels == {"app": "web"}
    found = list(kr8s.get("configmaps", namespace=SPACE, label_selector={"app": "web"}))
    assert [each.name for each in found] == ["a"]
    assert [each.name for each in kr8s.get("cm", "a", namespace=SPACE)] == ["a"]
    named = list(kr8s.get("configmaps", namespace=kr8s.ALL, field_selector="metadata.name=a"))
    assert [each.namespace for each in named] == [SPACE]
    Secret({"metadata": {"name": "s", "namespace": SPACE}, "stringData": {"a": "b"}}).create()


def scaling_and_owners() -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    workload = Deployment({"metadata": {"name": "web", "namespace": SPACE}, "spec": spec})
    workload.create()
    workload.scale(2)
    assert workload.replicas == 2 and Deployment.get("web", namespace=SPACE).spec.replicas == 2
    workload.delete()
    pod = Pod.gen(name="web", image="web:1", namespace=SPACE, labels={"app": "web"})
    pod.create()
    assert "web" in [each.name for each in Pod.list(namespace=SPACE, label_selector="app=web")]
    child = ConfigMap({"metadata": {"name": "child", "namespace": SPACE}})
    child.create()
    pod.adopt(child)
    child.refresh()
    assert child.metadata.ownerReferences[0].uid == pod.metadata.uid
    pod.delete(grace_period=0)
    until(lambda: not child.exists(), "the end of the orphan")


def custom_resources() -> None:
    made = object_from_spec(definition(GROUP))
    made.create()
    made.wait("condition=Established", timeout=10)
    widgets = new_class(kind="Widget", version=f"{GROUP}/v1", namespaced=True, scalable=True, scalable_spec="size")
    one = widgets({**widget(GROUP, "w"), "metadata": {"name": "w", "namespace": SPACE}})
    one.create()
    assert one.spec.size == 1
    one.scale(3)
    assert one.replicas == 3
    one.patch({"status": {"phase": "Ready"}}, subresource="status")
    one.refresh()
    assert one.status.phase == "Ready"
    one.wait("jsonpath='{.status.phase}'=Ready", timeout=5)
    try:
        one.patch({"spec": {"size": 1000}})
        raise AssertionError("a refusal was expected")
    except kr8s.ServerError as error:
        assert "too big" in str(error) and error.response.status_code == 422


async def asynchronously() -> None:
    api = await kr8s.asyncio.api()
    events: list[tuple[str, str]] = []

    async def look() -> None:
        async for kind, each in api.watch("configmaps", namespace=SPACE, label_selector="app=seen"):
            events.append((kind, each.name))
            if kind == "DELETED":
                return

    looking = asyncio.create_task(look())
    await asyncio.sleep(0.3)
    one = await AsyncConfigMap({"metadata": {"name": "seen", "namespace": SPACE, "labels": {"app": "seen"}}})
    await one.create()
    await until_async(lambda: _has(events, "ADDED"), "the creation")
    await one.patch({"data": {"a": "b"}})
    await until_async(lambda: _has(events, "MODIFIED"), "the change")
    await one.delete()
    await one.wait("delete", timeout=5)
    await asyncio.wait_for(looking, 10)
    assert events == [("ADDED", "seen"), ("MODIFIED", "seen"), ("DELETED", "seen")], events


async def _has(events: list[tuple[str, str]], kind: str) -> bool:
    return any(each == kind for each, _ in events)


def clean_up() -> None:
    for each in list(kr8s.get("configmaps", namespace=SPACE, label_selector="app")):
        each.delete()
    kr8s.objects.CustomResourceDefinition.get(f"widgets.{GROUP}").delete()
    Namespace.get(SPACE).delete()


if __name__ == "__main__":
    tell([identity, objects, scaling_and_owners, custom_resources, asynchronously, clean_up])
