"""lightkube: typed resources, patches and apply, generic resources for a definition, watches; both its clients."""

from __future__ import annotations

import threading

from lightkube import ApiError, AsyncClient, Client
from lightkube.codecs import from_dict, load_all_yaml
from lightkube.generic_resource import create_namespaced_resource, load_in_cluster_generic_resources
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.operators import exists, in_, not_equal
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap, Event, Namespace, Pod, Secret, ServiceAccount
from lightkube.types import CascadeType, PatchType
from story import tell, until
from widgets import definition

SPACE = "lightkube"
GROUP = "lightkube.example"
client = Client(namespace=SPACE, field_manager="lightkube")
Widget = create_namespaced_resource(GROUP, "v1", "Widget", "widgets")


def meta(name: str, **labels: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace=SPACE, labels=labels or None)


def refused(code: int, call: object, *args: object, **kwargs: object) -> ApiError:
    try:
        call(*args, **kwargs)  # type: ignore[operator]
    except ApiError as error:
        assert error.status.code == code, error.status
        return error
    raise AssertionError(f"{code} was expected")


def typed_objects() -> None:
    client.create(Namespace(metadata=ObjectMeta(name=SPACE)))
    made = client.create(ConfigMap(metadata=meta("a", app="web"), data={"x": "1"}))
    assert made.metadata.uid and made.metadata.creationTimestamp.tzinfo
    client.create(ConfigMap(metadata=meta("b", app="db"), data={"x": "2"}))
    assert refused(409, client.create, ConfigMap(metadata=meta("a"))).status.reason == "AlreadyExists"
    assert refused(404, client.get, ConfigMap, "absent").status.details.kind == "configmaps"
    chosen = client.list(ConfigMap, labels={"app": in_(["web", "x"]), "none": not_equal("y")})
    assert [each.metadata.name for each in chosen] == ["a"]
    assert {each.metadata.name for each in client.list(ConfigMap, labels={"app": exists()}, chunk_size=1)} == {"a", "b"}
    everywhere = client.list(ConfigMap, namespace="*", fields={"metadata.name": "b"})
    assert [each.metadata.namespace for each in everywhere] == [SPACE]
    made.data["y"] = "3"
    replaced = client.replace(made)
    refused(409, client.replace, made)
    assert replaced.data == {"x": "1", "y": "3"}


def patches() -> None:
    merged = client.patch(ConfigMap, "a", {"data": {"y": None}}, patch_type=PatchType.MERGE)
    assert merged.data == {"x": "1"}
    strategic = client.patch(ConfigMap, "a", {"metadata": {"labels": {"tier": "1"}}})
    assert strategic.metadata.labels == {"app": "web", "tier": "1"}
    operations = [{"op": "move", "from": "/data/x", "path": "/data/z"}]
    assert client.patch(ConfigMap, "a", operations, patch_type=PatchType.JSON).data == {"z": "1"}
    client.patch(ConfigMap, "a", {"data": {"z": "9"}}, dry_run=True)
    assert client.get(ConfigMap, "a").data == {"z": "1"}


def applies() -> None:
    one = ConfigMap(metadata=meta("applied"), data={"a": "1", "b": "2"})
    client.apply(one)
    applied = client.apply(ConfigMap(metadata=meta("applied"), data={"a": "1"}))
    assert applied.data == {"a": "1"}, "what the owner leaves out goes"
    other = ConfigMap(metadata=meta("applied"), data={"a": "7"})
    conflict = refused(409, client.apply, other, field_manager="other")
    assert conflict.status.details.causes[0].field == ".data.a"
    assert client.apply(other, field_manager="other", force=True).data == {"a": "7"}
    text = f"apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: ya, namespace: {SPACE}}}\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: ys, namespace: {SPACE}}}\nstringData: {{a: b}}\n"  # fmt: skip
    for each in load_all_yaml(text):
        client.apply(each)
    assert client.get(Secret, "ys").data == {"a": "Yg=="} and client.get(ServiceAccount, "ya").metadata.name == "ya"


def workloads() -> None:
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "web"}), spec=PodSpec(containers=[Container(name="web", image="web:1")])
    )
    spec = DeploymentSpec(replicas=0, selector=LabelSelector(matchLabels={"app": "web"}), template=template)
    client.create(Deployment(metadata=meta("web"), spec=spec))
    client.replace(Deployment.Scale(metadata=meta("web"), spec=ScaleSpec(replicas=3)))
    assert client.get(Deployment, "web").spec.replicas == 3 and client.get(Deployment.Scale, "web").spec.replicas == 3
    pod = client.create(Pod(metadata=meta("pod"), spec=PodSpec(containers=template.spec.containers, nodeName="none")))
    assert pod.status.phase == "Pending" and pod.spec.containers[0].imagePullPolicy == "IfNotPresent"
    status = {"status": {"phase": "Running"}}
    assert client.patch(Pod.Status, "pod", status, patch_type=PatchType.MERGE).status.phase == "Running"
    client.delete(Deployment, "web", cascade=CascadeType.BACKGROUND)
    client.delete(Pod, "pod", grace_period=0)
    refused(404, client.get, Pod, "pod")


def custom_resources() -> None:
    client.create(from_dict(definition(GROUP)))
    client.wait(CustomResourceDefinition, f"widgets.{GROUP}", for_conditions=["Established"])
    made = client.create(Widget(metadata=meta("w"), spec={"parts": {"a": "b"}}))
    assert made.spec == {"parts": {"a": "b"}, "size": 1}
    made["status"] = {"phase": "Ready"}
    assert client.replace(Widget.Status(made)).status == {"phase": "Ready"}
    assert client.apply(Widget(metadata=meta("w"), spec={"size": 2}), force=True).spec["size"] == 2
    fault = refused(422, client.patch, Widget, "w", {"spec": {"size": 100}}, patch_type=PatchType.MERGE)
    assert "too big" in fault.status.message
    assert client.get(Widget.Scale, "w").spec.replicas == 2
    load_in_cluster_generic_resources(client)
    client.delete(Widget, "w")


def watches() -> None:
    seen: list[tuple[str, str]] = []

    def look() -> None:
        for kind, each in client.watch(ConfigMap, labels={"app": "seen"}, server_timeout=10):
            seen.append((kind, each.metadata.name))
            if kind == "DELETED":
                return

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    client.create(ConfigMap(metadata=meta("seen", app="seen")))
    until(lambda: ("ADDED", "seen") in seen, "the creation")
    client.patch(ConfigMap, "seen", {"data": {"a": "b"}})
    client.delete(ConfigMap, "seen")
    looker.join(10)
    assert seen == [("ADDED", "seen"), ("MODIFIED", "seen"), ("DELETED", "seen")], seen


async def asynchronously() -> None:
    other = AsyncClient(namespace=SPACE)
    await other.create(ConfigMap(metadata=meta("async"), data={"a": "1"}))
    found = [each.metadata.name async for each in other.list(ConfigMap, fields={"metadata.name": "async"})]
    assert found == ["async"]
    async for kind, each in other.watch(ConfigMap, fields={"metadata.name": "async"}, resource_version="0"):
        assert (kind, each.data) == ("ADDED", {"a": "1"})
        break
    await other.delete(ConfigMap, "async")
    await other.close()


def clean_up() -> None:
    client.deletecollection(Secret)
    assert not list(client.list(Secret))
    assert isinstance(list(client.list(Event)), list)
    client.delete(CustomResourceDefinition, f"widgets.{GROUP}")
    client.delete(Namespace, SPACE)


if __name__ == "__main__":
    tell([typed_objects, patches, applies, workloads, custom_resources, watches, asynchronously, clean_up])
