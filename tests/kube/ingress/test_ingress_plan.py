"""Ingresses and Dns objects become virtual hosts: classes, order of paths, conflicts, backends, certificates."""

from __future__ import annotations

from typing import Any

import pytest
from ingress_kit import backend, dns, endpoints, ingress, ingress_class, key_pair, rule, secret, service

from coterie.kube.api.types.ingress import Dns, Ingress
from coterie.kube.network.ingress.model import IngressTable, UpstreamProtocol
from coterie.kube.network.ingress.plan import IngressObjects, dns_hosts, ingress_table

WORLD = {
    "services": {name: service(name) for name in ("one", "two", "empty")}
    | {"far": service("far", type="ExternalName", externalName="web.bob.svc")}
    | {"engine": service("engine"), "sticky": service("sticky", sessionAffinity="ClientIP")},
    "endpoints": {
        "one": endpoints("one", "10.0.0.1", "10.0.0.2", waiting="10.0.0.3"),
        "two": endpoints("two", "10.0.0.4"),
        "empty": endpoints("empty", waiting="10.0.0.5"),
        "engine": endpoints("engine", "10.128.0.1", "10.0.0.6"),
        "sticky": endpoints("sticky", "10.0.0.7"),
    },
}


def made(*objects: Ingress | Dns, **more: Any) -> tuple[IngressTable, list[str]]:
    table, problems = ingress_table(
        IngressObjects(
            [each for each in objects if isinstance(each, Ingress)],
            [each for each in objects if isinstance(each, Dns)],
            **{**WORLD, **more},
        ),
        lambda address: address.startswith("10.0."),
    )
    return table, [f"{each.kind} {each.name}: {each.message}" for each in problems]


def shown(table: IngressTable) -> dict[str, list[str]]:
    out = {}
    for host in table.hosts:
        lines = [f"{'=' if each.exact else ''}{each.path or '/'} {each.upstream.service}" for each in host.rules]
        out[host.host or "*"] = [*lines, f"else {host.default.service if host.default else 404}"]
    return out


def test_exact_before_prefix_and_longer_before_shorter() -> None:
    table, problems = made(
        ingress(
            "a",
            rule(
                "X.example",
                ("Prefix", "/", "one:80"),
                ("Prefix", "/foo/", "one:80"),
                ("ImplementationSpecific", "/foo/bar", "two:80"),
                ("Exact", "/foo", "two:80"),
                ("Exact", "/foo/", "one:80"),
            ),
            rule("*.example", ("ImplementationSpecific", "", "two:web")),
        )
    )
    assert problems == []
    assert shown(table) == {
        "x.example": ["=/foo/ one", "=/foo two", "/foo/bar two", "/foo one", "/ one", "else 404"],
        "*.example": ["/ two", "else 404"],
    }
    assert table.served == {"a"}


def test_the_older_ingress_keeps_a_path() -> None:
    young = ingress("a", rule("x.example", ("Prefix", "/foo/", "one:80"), ("Exact", "/foo", "one:80")), age=9)
    old = ingress("b", rule("x.example", ("Prefix", "/foo", "two:80")), age=1)
    table, problems = made(young, old)
    assert shown(table) == {"x.example": ["=/foo one", "/foo two", "else 404"]}
    assert problems == ["ingress a: x.example/foo is served by the older ingress b"]
    same_age = made(
        ingress("d", rule("y", ("Exact", "/", "one:80"))), ingress("c", rule("y", ("Exact", "/", "two:80")))
    )
    assert shown(same_age[0]) == {"y": ["=/ two", "else 404"]}


def test_default_backends() -> None:
    both = ingress("a", rule("x.example", ("Exact", "/a", "one:80")), defaultBackend=backend("two:80"), age=2)
    other = ingress("b", rule("y.example", ("Exact", "/b", "one:80")), age=3)
    lone = ingress("c", defaultBackend=backend("one:80"), age=4)
    table, problems = made(both, other, lone)
    assert shown(table) == {"x.example": ["=/a one", "else two"], "y.example": ["=/b one", "else two"]}
    assert table.default is not None and table.default.service == "two"
    assert problems == ["ingress c: there is an older default backend for all hosts; this one is not used"]


@pytest.mark.parametrize(
    ("spec", "annotations", "classes", "ours"),
    [
        ({"ingressClassName": "coterie"}, {}, None, True),
        ({"ingressClassName": "nginx"}, {}, None, False),
        ({"ingressClassName": None}, {"kubernetes.io/ingress.class": "coterie"}, None, True),
        ({"ingressClassName": None}, {}, None, False),
        ({"ingressClassName": "mine"}, {}, [ingress_class("mine", "coterie.io/ingress")], True),
        ({"ingressClassName": "coterie"}, {}, [ingress_class("coterie", "somebody.else/x")], False),
        ({"ingressClassName": None}, {}, [ingress_class("mine", "coterie.io/ingress", default=True)], True),
        ({"ingressClassName": None}, {}, [ingress_class("mine", "somebody.else/x", default=True)], False),
    ],
)
def test_classes(spec: Any, annotations: Any, classes: Any, ours: bool) -> None:
    one = ingress("a", rule("x", ("Exact", "/", "one:80")), annotations=annotations, **spec)
    table, _ = made(one, classes=classes)
    assert bool(table.hosts) == ours and table.served == ({"a"} if ours else set())


def test_backends_are_ready_endpoints_of_ordinary_pods() -> None:
    paths = [("Exact", f"/{name}", f"{name}:web") for name in ("one", "empty", "far", "engine", "sticky", "none")]
    table, problems = made(ingress("a", rule("x", *paths, ("Exact", "/api", "one:api"), ("Exact", "/port", "two:99"))))
    found = {each.path: each.upstream for each in table.hosts[0].rules}
    assert {path: each.endpoints for path, each in found.items()} == {
        "/one": (("10.0.0.1", 8080), ("10.0.0.2", 8080)),
        "/api": (("10.0.0.1", 8081), ("10.0.0.2", 8081)),
        "/engine": (("10.0.0.6", 8080),),
        "/sticky": (("10.0.0.7", 8080),),
        "/empty": (),
        "/far": (),
        "/none": (),
        "/port": (),
    }
    assert found["/api"].protocol is UpstreamProtocol.HTTP2 and found["/sticky"].sticky
    assert problems == [
        "ingress a: Service engine has endpoints that are not ordinary pods of this domain: 10.128.0.1:8080",
        "ingress a: Service far is an ExternalName; only pods can be backends",
        "ingress a: Service none does not exist",
        "ingress a: Service two has no port 99",
    ]


def test_certificates_by_server_name() -> None:
    secrets = {"s1": secret("s1", "one"), "s2": secret("s2", "two"), "mixed": secret("mixed", "one", "two")}
    one = [{"hosts": ["a.example", "*.B.example"], "secretName": "s1"}, {"secretName": "s2"}, {"hosts": ["n.example"]}]
    two = [{"hosts": ["a.example"], "secretName": "s2"}, {"hosts": ["c"], "secretName": "mixed"}]
    three = [{"hosts": ["d.example"], "secretName": "missing"}]
    table, problems = made(
        ingress("one", rule("x", ("Exact", "/", "one:80")), age=1, tls=one),
        ingress("two", rule("x", ("Exact", "/", "one:80")), age=2, tls=two),
        ingress("three", rule("x", ("Exact", "/", "one:80")), age=3, tls=three),
        secrets=secrets,
    )
    assert [(each.secret, each.hosts) for each in table.certificates] == [
        ("s1", ("*.b.example", "a.example")),
        ("s2", ()),
    ]
    assert table.certificates[0].key.reveal().encode() == key_pair("one")[1]
    assert "PRIVATE" not in repr(table)
    assert problems == [
        "ingress three: Secret missing does not exist; d.example is not served with TLS",
        "ingress two: Secret mixed holds no certificate with its key; c is not served with TLS",
        "ingress two: a.example has the certificate of Secret s1 by an older Ingress",
    ]


def test_c73_one_host_name_with_two_paths_to_two_services() -> None:
    target = {"serviceUID": "uid-two", "servicePort": "web"}
    tea = dns("tea", "/Tea.example/", green={"serviceName": "one", "servicePort": 80}, black=target)
    table, problems = made(tea)
    assert problems == [] and shown(table) == {"tea.example": ["=/black two", "=/green one", "else 404"]}
    assert table.hosts[0].for_pods and all(each.to_root for each in table.hosts[0].rules)
    assert dns_hosts([tea]) == {"tea.example"}


@pytest.mark.parametrize(
    "host", ["web.bob.svc", "svc", "x.svc.cluster.local", "tea", "", "a b.example", "cluster.local", "x.localhost"]
)
def test_a_dns_object_cannot_take_names_of_services(host: str) -> None:
    one = dns("x", host, p={"serviceName": "one", "servicePort": 80})
    table, problems = made(one)
    assert not table.hosts and len(problems) == 1 and not dns_hosts([one])


def test_dns_paths_that_lead_nowhere() -> None:
    table, problems = made(
        dns(
            "x",
            "x.example",
            a={"serviceUID": "uid-none", "servicePort": 80},
            b={"serviceName": "none", "servicePort": 1},
        )
    )
    assert shown(table) == {"x.example": ["=/b none", "else 404"]}
    assert problems == [
        "dns x: Service none does not exist",
        "dns x: path /a: no Service has the uid uid-none",
    ]
