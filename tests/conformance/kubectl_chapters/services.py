"""create service, expose, get svc and endpointslices: addresses and node ports are given out, the test stands in for the agents."""

from __future__ import annotations

import json
import time

from kubectl_steps import Act, Chapter, Command, Scene

_SERVICE = {"apiVersion": "v1", "kind": "Service"}
_MERGE = "application/merge-patch+json"


def _body(name: str, **spec: object) -> str:
    ports = {"ports": [{"port": 80}]}
    return json.dumps({**_SERVICE, "metadata": {"name": name}, "spec": {**ports, "selector": {"app": "web"}, **spec}})


def _run(scene: Scene) -> None:
    """What an agent does; the endpoint controller follows."""
    pod = f"/api/v1/namespaces/{scene.namespace}/pods/web"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "conditions": [ready], "podIP": "100.96.0.7", "podIPs": [{"ip": "100.96.0.7"}]}
    scene.server.api("PATCH", f"{pod}/status", {"status": status}, _MERGE)
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{scene.namespace}/endpointslices"
    deadline = time.monotonic() + 20
    while not any(each.get("endpoints") for each in scene.server.api("GET", slices)["items"]):
        assert time.monotonic() < deadline, "no endpoints"
        time.sleep(0.1)


_IP = r"100\.112\.\d+\.\d+"

SERVICES = Chapter(
    "services",
    (
        Command("run", "run web --image=busybox --labels=app=web --port=8080", out="pod/web created"),
        Command("expose", "expose pod web --port=80 --target-port=8080", out="service/web exposed"),
        Command("get", "get svc web", out=rf"^web\s+ClusterIP\s+{_IP}\s+<none>\s+80/TCP\s"),
        Command("families", "get svc web -o json", check=lambda s: s["spec"]["ipFamilies"] == ["IPv4"] and s["spec"]["ipFamilyPolicy"] == "SingleStack" and s["spec"]["clusterIPs"] == [s["spec"]["clusterIP"]]),
        Act("the pod runs", _run),
        Command("slices", "get endpointslices", out=r"^web-\w+\s+IPv4\s+8080\s+100\.96\.0\.7\s"),
        Command("slice conditions", "get endpointslices -l kubernetes.io/service-name=web -o json", check=lambda s: s["items"][0]["endpoints"][0]["conditions"] == {"ready": True, "serving": True, "terminating": False}),
        Command("endpoints", "get endpoints web", out=r"^web\s+100\.96\.0\.7:8080"),
        Command("describe", "describe svc web", out=(rf"IP: +{_IP}", r"Endpoints: +100\.96\.0\.7:8080", r"TargetPort: +8080/TCP")),
        Command("node port", "create service nodeport open --tcp=80:8080 --node-port=30555", out="service/open created"),
        Command("node port shown", "get svc open", out=rf"^open\s+NodePort\s+{_IP}\s+<none>\s+80:30555/TCP\s"),
        Command("node port again", "create service nodeport other --tcp=80 --node-port=30555", rc=1, err="provided port is already allocated"),
        Command("node port outside", "create service nodeport other --tcp=80 --node-port=80", rc=1, err="The range of valid ports is 30000-32767"),
        Command("load balancer", "create service loadbalancer balanced --tcp=80", out="created"),
        Command("load balancer shown", "get svc balanced", out=rf"^balanced\s+LoadBalancer\s+{_IP}\s+<pending>\s+80:3\d{{4}}/TCP\s"),
        Command("external name", "create service externalname away --external-name example.org", out="created"),
        Command("external name shown", "get svc away", out=r"^away\s+ExternalName\s+<none>\s+example.org\s+<none>\s"),
        Command("headless", "create service clusterip bare --clusterip=None", out="created"),
        Command("headless shown", "get svc bare", out=r"^bare\s+ClusterIP\s+None\s+<none>\s+<none>\s"),
        Command("asked for", "create service clusterip chosen --tcp=80 --clusterip=100.112.0.77", out="created"),
        Command("asked for again", "create service clusterip again --tcp=80 --clusterip=100.112.0.77", rc=1, err="failed to allocate IP 100.112.0.77: provided IP is already allocated"),
        Command("outside", "create service clusterip again --tcp=80 --clusterip=10.0.0.1", rc=1, err="The range of valid IPs is 100.112.0.0/16"),
        Command("dry run", "create service clusterip dry --tcp=80 --dry-run=server -o json", check=lambda s: s["spec"]["clusterIP"].startswith("100.112.")),
        Command("not there", "get svc dry", rc=1, err="NotFound"),
        Command("apply", "apply -f -", stdin=_body("applied"), out="service/applied created"),
        Command("apply again", "apply -f -", stdin=_body("applied"), out="service/applied unchanged"),
        Command("apply other type", "apply -f -", stdin=_body("applied", type="NodePort"), out="service/applied configured"),
        Command("apply back", "apply -f -", stdin=_body("applied"), out="service/applied configured"),
        Command("no node port", "get svc applied -o json", check=lambda s: "nodePort" not in s["spec"]["ports"][0] and s["spec"]["clusterIP"]),
        Command("change of address", "patch svc applied -p '{\"spec\":{\"clusterIP\":\"100.112.0.78\"}}'", rc=1, err="may not change once set"),
        Command("apply server side", "apply --server-side -f -", stdin=_body("sided"), out="service/sided serverside-applied"),
        Command("diff", "diff -f -", stdin=_body("sided"), rc=0),
        Command("freed", "delete svc chosen", out="deleted"),
        Command("free", "create service clusterip again --tcp=80 --clusterip=100.112.0.77", out="created"),
    ),
)  # fmt: skip
