"""The official client: typed API, patches, watches, custom objects, apply, dynamic client, YAML files, election.

KUBECONFIG names the server. Run by test_guests.py; every step ends with what was asserted, or with a trace.
"""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.informer import SharedInformer
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from story import tell, until
from widgets import definition, widget

SPACE = "official"
GROUP = "official.example"
FIELD_MANAGER = "official"
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}}

config.load_kube_config()
core = client.CoreV1Api()
apps = client.AppsV1Api()
custom = client.CustomObjectsApi()


def refused(code: int, call: Any, *args: Any, **kwargs: Any) -> ApiException:
    try:
        call(*args, **kwargs)
    except ApiException as error:
        assert error.status == code, error
        return error
    raise AssertionError(f"{code} was expected")


def config_map(name: str, **data: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"app": "web"}), data=data)


def version_and_discovery() -> None:
    assert int(client.VersionApi().get_code().major) == 1
    names = {resource.name for resource in core.get_api_resources().resources}
    assert {"pods", "pods/log", "configmaps", "namespaces/finalize"} <= names
    assert "apps" in {group.name for group in client.ApisApi().get_api_versions().groups}


def create_read_list() -> None:
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=SPACE)))
    made = core.create_namespaced_config_map(SPACE, config_map("a", x="1"))
    assert made.metadata.uid and made.metadata.creation_timestamp and made.metadata.resource_version
    core.create_namespaced_config_map(SPACE, config_map("b", x="2"))
    refused(409, core.create_namespaced_config_map, SPACE, config_map("a"))
    refused(404, core.read_namespaced_config_map, "absent", SPACE)
    assert refused(422, core.create_namespaced_config_map, SPACE, config_map("No")).reason
    assert core.read_namespaced_config_map("a", SPACE).data == {"x": "1"}
    found = core.list_namespaced_config_map(SPACE, label_selector="app=web")
    assert [item.metadata.name for item in found.items] == ["a", "b"]
    chosen = core.list_config_map_for_all_namespaces(field_selector="metadata.name=b")
    assert [item.metadata.namespace for item in chosen.items] == [SPACE]
    page = core.list_namespaced_config_map(SPACE, limit=1, label_selector="app=web")
    rest = core.list_namespaced_config_map(SPACE, limit=5, label_selector="app=web", _continue=page.metadata._continue)
    assert [item.metadata.name for item in (*page.items, *rest.items)] == ["a", "b"]


def change() -> None:
    one = core.read_namespaced_config_map("a", SPACE)
    one.data["y"] = "2"
    assert core.replace_namespaced_config_map("a", SPACE, one).data == {"x": "1", "y": "2"}
    refused(409, core.replace_namespaced_config_map, "a", SPACE, one)
    strategic = core.patch_namespaced_config_map("a", SPACE, {"data": {"y": None, "z": "3"}})
    assert strategic.data == {"x": "1", "z": "3"}
    merged = core.patch_namespaced_config_map(
        "a", SPACE, {"data": {"z": None}}, _content_type="application/merge-patch+json"
    )
    assert merged.data == {"x": "1"}
    operations = [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "add", "path": "/data/w", "value": "4"}]
    assert core.patch_namespaced_config_map("a", SPACE, operations, _content_type="application/json-patch+json").data == {"x": "1", "w": "4"}  # fmt: skip
    core.patch_namespaced_config_map("a", SPACE, {"data": {"x": "9"}}, dry_run="All")
    assert core.read_namespaced_config_map("a", SPACE).data["x"] == "1"


def workloads() -> None:
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": TEMPLATE}
    apps.create_namespaced_deployment(SPACE, {"metadata": {"name": "web"}, "spec": spec})
    assert apps.read_namespaced_deployment("web", SPACE).spec.strategy.type == "RollingUpdate"
    assert apps.read_namespaced_deployment_scale("web", SPACE).spec.replicas in (0, None)
    apps.patch_namespaced_deployment_scale("web", SPACE, {"spec": {"replicas": 2}})
    assert apps.read_namespaced_deployment("web", SPACE).spec.replicas == 2
    image = {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}}}
    [container] = apps.patch_namespaced_deployment("web", SPACE, image).spec.template.spec.containers
    assert (container.name, container.image) == ("web", "web:2")
    pod = core.create_namespaced_pod(
        SPACE, {"metadata": {"generateName": "p-"}, "spec": {"nodeName": "none", **TEMPLATE["spec"]}}
    )
    assert pod.metadata.name.startswith("p-") and pod.status.phase == "Pending"
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    conditions = core.patch_namespaced_pod_status(pod.metadata.name, SPACE, ready).status.conditions
    assert {each.type: each.status for each in conditions}["Ready"] == "True"
    core.create_namespaced_service(
        SPACE, {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    )
    core.create_namespaced_secret(SPACE, client.V1Secret(metadata={"name": "s"}, string_data={"a": "b"}))
    assert core.read_namespaced_secret("s", SPACE).data == {"a": "Yg=="}
    apps.delete_namespaced_deployment("web", SPACE, propagation_policy="Background")


def autoscaling() -> None:
    """Both versions of the API, the controller's conditions, and the metrics that it reads."""
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "size"}}, "template": {
        "metadata": {"labels": {"app": "size"}},
        "spec": {"containers": [{"name": "c", "image": "c:1", "resources": {"requests": {"cpu": "100m"}}}]},
    }}  # fmt: skip
    apps.create_namespaced_deployment(SPACE, {"metadata": {"name": "size"}, "spec": spec})
    scalers = client.AutoscalingV2Api()
    target = client.V2CrossVersionObjectReference(api_version="apps/v1", kind="Deployment", name="size")
    aim = client.V2MetricTarget(type="Utilization", average_utilization=60)
    cpu = client.V2MetricSpec(type="Resource", resource=client.V2ResourceMetricSource(name="cpu", target=aim))
    slow = client.V2HPAScalingRules(
        stabilization_window_seconds=60, policies=[client.V2HPAScalingPolicy(type="Pods", value=1, period_seconds=20)]
    )
    body = client.V2HorizontalPodAutoscaler(
        metadata=client.V1ObjectMeta(name="size"),
        spec=client.V2HorizontalPodAutoscalerSpec(
            scale_target_ref=target, min_replicas=3, max_replicas=5, metrics=[cpu],
            behavior=client.V2HorizontalPodAutoscalerBehavior(scale_down=slow),
        ),
    )  # fmt: skip
    made = scalers.create_namespaced_horizontal_pod_autoscaler(SPACE, body)
    assert made.spec.behavior.scale_up.select_policy == "Max"
    refused(422, scalers.patch_namespaced_horizontal_pod_autoscaler, "size", SPACE, {"spec": {"maxReplicas": 0}})
    refused(422, scalers.patch_namespaced_horizontal_pod_autoscaler, "size", SPACE, {"spec": {"minReplicas": 0}})
    until(lambda: apps.read_namespaced_deployment("size", SPACE).spec.replicas == 3, "the minimum holds")

    def without_metrics() -> bool:
        conditions = scalers.read_namespaced_horizontal_pod_autoscaler("size", SPACE).status.conditions or []
        return {"ScalingActive": "FailedGetResourceMetric"}.items() <= {c.type: c.reason for c in conditions}.items()

    until(without_metrics, "nobody runs the pods, so there are no figures")
    first = client.AutoscalingV1Api()
    assert first.read_namespaced_horizontal_pod_autoscaler("size", SPACE).spec.target_cpu_utilization_percentage == 60
    until(
        lambda: first.read_namespaced_horizontal_pod_autoscaler("size", SPACE).status.current_replicas == 3,
        "the size that the target's status says",
    )
    metrics = custom.list_namespaced_custom_object("metrics.k8s.io", "v1beta1", SPACE, "pods")
    assert (metrics["kind"], metrics["items"]) == ("PodMetricsList", [])
    assert custom.list_cluster_custom_object("metrics.k8s.io", "v1beta1", "nodes")["kind"] == "NodeMetricsList"
    scalers.delete_namespaced_horizontal_pod_autoscaler("size", SPACE)
    apps.delete_namespaced_deployment("size", SPACE, propagation_policy="Background")


def watching() -> None:
    begun = core.list_namespaced_config_map(SPACE).metadata.resource_version
    seen: list[tuple[str, str]] = []
    ready = threading.Event()

    def look() -> None:
        stream = watch.Watch()
        ready.set()
        for event in stream.stream(core.list_namespaced_config_map, SPACE, resource_version=begun, label_selector="app=seen", timeout_seconds=20):  # fmt: skip
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                stream.stop()

    looker = threading.Thread(target=look)
    looker.start()
    ready.wait(5)
    label = client.V1ObjectMeta(name="seen", labels={"app": "seen"})
    core.create_namespaced_config_map(SPACE, client.V1ConfigMap(metadata=label))
    core.patch_namespaced_config_map("seen", SPACE, {"data": {"a": "b"}})
    core.delete_namespaced_config_map("seen", SPACE)
    looker.join(15)
    assert seen == [("ADDED", "seen"), ("MODIFIED", "seen"), ("DELETED", "seen")], seen
    ended = watch.Watch().stream(core.list_namespaced_config_map, SPACE, resource_version=begun, timeout_seconds=1)
    assert len(list(ended)) >= 3


def informer() -> None:
    cached = SharedInformer(list_func=core.list_namespaced_config_map, namespace=SPACE, label_selector="app=web")
    added: list[str] = []
    cached.add_event_handler("ADDED", lambda obj: added.append(obj.metadata.name))
    cached.start()
    try:
        until(lambda: {"a", "b"} <= set(added), "what is there")
        core.create_namespaced_config_map(SPACE, config_map("c"))
        until(lambda: "c" in added, "what is new")
    finally:
        cached.stop()


def custom_objects() -> None:
    client.ApiextensionsV1Api().create_custom_resource_definition(definition(GROUP))
    path = (GROUP, "v1", SPACE, "widgets")
    until(lambda: _served(*path), "the custom resource")
    made = custom.create_namespaced_custom_object(*path, widget(GROUP, "w", parts={"a": "b"}))
    assert made["spec"] == {"parts": {"a": "b"}, "size": 1} and made["metadata"]["generation"] == 1
    assert "too big" in str(
        refused(422, custom.create_namespaced_custom_object, *path, widget(GROUP, "x", size=100)).body
    )
    changed = custom.patch_namespaced_custom_object(
        *path, "w", {"spec": {"size": 5}}, _content_type="application/merge-patch+json"
    )
    assert changed["spec"]["size"] == 5 and changed["metadata"]["generation"] == 2
    changed["status"] = {"phase": "Ready"}
    assert custom.replace_namespaced_custom_object_status(*path, "w", changed)["status"] == {"phase": "Ready"}
    assert custom.get_namespaced_custom_object_scale(*path, "w")["spec"]["replicas"] == 5
    [found] = custom.list_namespaced_custom_object(*path)["items"]
    assert found["status"]["phase"] == "Ready"
    seen = watch.Watch().stream(custom.list_namespaced_custom_object, *path, resource_version="0", timeout_seconds=1)
    assert [event["object"]["metadata"]["name"] for event in seen] == ["w"]
    custom.delete_namespaced_custom_object(*path, "w")


def _served(*path: str) -> bool:
    try:
        custom.list_namespaced_custom_object(*path)
    except ApiException as error:
        if error.status == 404:
            return False
        raise
    return True


def dynamic_client() -> None:
    anything = dynamic.DynamicClient(client.ApiClient())
    maps = anything.resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d"}, "data": {"a": "1"}}
    applied = maps.server_side_apply(namespace=SPACE, name="d", body=body, field_manager=FIELD_MANAGER)
    [owner] = applied.metadata.managedFields
    assert (owner.manager, owner.operation) == (FIELD_MANAGER, "Apply")
    try:
        maps.server_side_apply(namespace=SPACE, name="d", body={**body, "data": {"a": "2"}}, field_manager="other")
        raise AssertionError("a conflict was expected")
    except dynamic.exceptions.ConflictError as error:
        assert 'conflict with "official"' in str(error.summary()), error.summary()
    forced = maps.server_side_apply(namespace=SPACE, name="d", body={**body, "data": {"a": "2"}}, field_manager="other", force_conflicts=True)  # fmt: skip
    assert forced.data.a == "2"
    widgets = anything.resources.get(api_version=f"{GROUP}/v1", kind="Widget")
    assert widgets.create(namespace=SPACE, body=widget(GROUP, "dyn", size=2)).spec.size == 2
    assert [item.metadata.name for item in widgets.get(namespace=SPACE).items] == ["dyn"]
    events = widgets.watch(namespace=SPACE, timeout=1)
    assert [event["type"] for event in events] == ["ADDED"]
    widgets.delete(name="dyn", namespace=SPACE)
    table = maps.get(
        namespace=SPACE, header_params={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}, serialize=False
    )
    assert b'"kind":"Table"' in table.data


def from_yaml() -> None:
    documents = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "y1", "namespace": SPACE}, "data": {"a": "b"}},
        {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "y2", "namespace": SPACE}}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "y3", "namespace": SPACE}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "y4", "namespace": SPACE}, "spec": {"suspend": True, "template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}},
    ]  # fmt: skip
    with TemporaryDirectory() as folder:
        file = Path(folder) / "all.yaml"
        file.write_text("---\n".join(yaml.safe_dump(document) for document in documents))
        utils.create_from_yaml(client.ApiClient(), str(file))
    assert core.read_namespaced_config_map("y1", SPACE).data == {"a": "b"}
    assert core.read_namespaced_service_account("y2", SPACE).metadata.name == "y2"
    assert client.BatchV1Api().read_namespaced_job("y4", SPACE).spec.suspend


def access() -> None:
    token = core.create_namespaced_service_account_token(
        "y2", SPACE, client.AuthenticationV1TokenRequest(spec={"audiences": []})
    )
    binding = {"metadata": {"name": "y"}, "subjects": [{"kind": "ServiceAccount", "name": "y2", "namespace": SPACE}], "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "y3"}}  # fmt: skip
    client.RbacAuthorizationV1Api().create_namespaced_role_binding(SPACE, binding)
    settings = client.Configuration.get_default_copy()
    settings.api_key = {"authorization": token.status.token}
    settings.api_key_prefix = {"authorization": "Bearer"}
    settings.cert_file = settings.key_file = None
    guest = client.CoreV1Api(client.ApiClient(settings))
    refused(404, guest.read_namespaced_pod, "absent", SPACE)
    assert "forbidden" in str(refused(403, guest.list_namespaced_secret, SPACE).body)
    asked = {"spec": {"resourceAttributes": {"verb": "delete", "resource": "pods", "namespace": SPACE}}}
    reviews = client.AuthorizationV1Api(client.ApiClient(settings))
    assert not reviews.create_self_subject_access_review(asked).status.allowed


def election() -> None:
    won: list[str] = []
    candidates = []
    for name in ("one", "two"):
        lock = LeaseLock("leader", SPACE, name)
        settings = electionconfig.Config(
            lock, lease_duration=15, renew_deadline=10, retry_period=1, onstarted_leading=lambda name=name: won.append(name), onstopped_leading=lambda: None
        )  # fmt: skip
        candidates.append(threading.Thread(target=leaderelection.LeaderElection(settings).run, daemon=True))
    for candidate in candidates:
        candidate.start()
    until(lambda: won, "a leader")

    def renewed() -> client.V1LeaseSpec | None:
        lease = client.CoordinationV1Api().read_namespaced_lease("leader", SPACE).spec
        return lease if lease.renew_time > lease.acquire_time else None

    assert won == [until(renewed, "the leader renews its lease").holder_identity]


def services() -> None:
    def service(name: str, **spec: Any) -> client.V1Service:
        ports = [client.V1ServicePort(port=80, target_port=8080)]
        given = client.V1ServiceSpec(ports=ports, selector={"app": "web"}, **spec)
        return client.V1Service(metadata=client.V1ObjectMeta(name=name), spec=given)

    made = core.create_namespaced_service(SPACE, service("front"))
    address = made.spec.cluster_ip
    assert made.spec.cluster_ips == [address] and made.spec.ip_families == ["IPv4"]
    refused(422, core.create_namespaced_service, SPACE, service("second", cluster_ip=address))
    opened = core.patch_namespaced_service("front", SPACE, {"spec": {"type": "NodePort"}})
    port = opened.spec.ports[0].node_port
    assert 30000 <= port <= 32767 and opened.spec.cluster_ip == address
    replaced = core.replace_namespaced_service("front", SPACE, service("front", type="NodePort"))
    assert (replaced.spec.cluster_ip, replaced.spec.ports[0].node_port) == (address, port)
    headless = core.create_namespaced_service(SPACE, service("bare", cluster_ip="None"))
    assert headless.spec.cluster_ips == ["None"]
    for name in ("front", "bare"):
        core.delete_namespaced_service(name, SPACE)
    assert core.create_namespaced_service(SPACE, service("again", cluster_ip=address)).spec.cluster_ip == address


def clean_up() -> None:
    core.delete_collection_namespaced_config_map(SPACE, label_selector="app=web")
    assert not core.list_namespaced_config_map(SPACE, label_selector="app=web").items
    client.ApiextensionsV1Api().delete_custom_resource_definition(f"widgets.{GROUP}")
    for pod in core.list_namespaced_pod(SPACE).items:
        core.delete_namespaced_pod(pod.metadata.name, SPACE, grace_period_seconds=0)
    core.delete_namespace(SPACE)


if __name__ == "__main__":
    tell([version_and_discovery, create_read_list, change, workloads, autoscaling, watching, informer, custom_objects, dynamic_client, from_yaml, access, election, services, clean_up])  # fmt: skip
