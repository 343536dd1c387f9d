"""NetworkPolicies in the kernel, in namespaces of their own: `python policy_scenarios.py root|user SCENARIO`.

Everything as in `pod_network_scenarios.py`; policies are written as Kubernetes' public documentation writes them.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pod_network_scenarios as network
from pod_network_scenarios import FORBIDDEN, GATEWAY, Domain, Pod, listen, new_socket, refused, talk

from coterie.base.linux_namespaces import CLONE_NEWNET, unshare
from coterie.kube.api.types.network_policies import NetworkPolicy
from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.links import Links
from coterie.kube.network.pods.netlink import NETLINK_NETFILTER, NetlinkSocket
from coterie.kube.network.policies.model import PROTOCOLS, PolicyPod, compile_policy
from coterie.kube.network.policies.plan import NodeGateways, PolicyTable

PORT = 8000
Spec = Mapping[str, Any]


class Policies:
    """The table of a domain, and who has which labels."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.table = PolicyTable(NodeGateways("100.96.0.0/12", 16))
        self._netlink = NetlinkSocket(NETLINK_NETFILTER)
        self.transactions = 0
        for name, labels in (("default", {}), ("other", {"project": "myproject"}), ("kube-system", {})):
            self.table.set_namespace(name, {"kubernetes.io/metadata.name": name, **labels})
        dns = tuple((PROTOCOLS[name], 53) for name in ("UDP", "TCP"))
        self.table.set_pod("dns", PolicyPod("kube-system", {"k8s-app": "kube-dns"}, GATEWAY, only=dns))
        self.apply()

    def pod(
        self,
        number: int,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        ports: Mapping[str, int] | None = None,
        *,
        local: bool = True,
    ) -> Pod:
        pod = self.domain.pod(number)
        self.label(pod, labels or {}, namespace, ports, local=local)
        return pod

    def label(
        self,
        pod: Pod,
        labels: Mapping[str, str],
        namespace: str = "default",
        ports: Mapping[str, int] | None = None,
        *,
        local: bool = True,
    ) -> None:
        named = tuple((name, PROTOCOLS["TCP"], number) for name, number in (ports or {}).items())
        self.table.set_pod(pod.name, PolicyPod(namespace, labels, pod.address, local, named))
        self.apply()

    def put(self, name: str, namespace: str = "default", **spec: Any) -> None:
        document = {"metadata": {"namespace": namespace, "name": name}, "spec": {"podSelector": {}, **spec}}
        policy = compile_policy(msgspec.convert(document, NetworkPolicy))
        self.table.set_policy(policy.key, policy)
        self.apply()

    def drop(self, name: str, namespace: str = "default") -> None:
        self.table.set_policy(f"{namespace}/{name}", None)
        self.apply()

    def apply(self) -> int:
        """How many transactions it took."""
        batches = self.table.transactions()
        for batch in batches:
            self._netlink.request(nftables.batch(batch), acknowledged=-2)
        self.transactions += len(batches)
        return len(batches)


def reaches(caller: Pod | Domain, target: Pod, port: int = PORT) -> None:
    with listen(target, target.address, port) as listener:
        talk(caller, listener)


def denied(caller: Pod | Domain, target: Pod, port: int = PORT) -> None:
    with listen(target, target.address, port):
        refused(caller, (target.address, port))


# --- scenarios ------------------------------------------------------------------------------------------------------


def without_policies_there_is_no_table() -> None:
    policies = Policies(Domain())
    one, two = policies.pod(2), policies.pod(3)
    reaches(one, two)
    before = policies.transactions
    policies.put("p", ingress=[])
    assert policies.transactions == before + 1
    policies.drop("p")
    assert policies.apply() == 0
    reaches(one, two)
    policies.put("p", ingress=[])
    denied(one, two)


def default_deny_ingress() -> None:
    """Kubernetes: "Default deny all ingress traffic"."""
    policies = Policies(Domain())
    one, two = policies.pod(2), policies.pod(3)
    other = policies.pod(4, namespace="other")
    policies.put("default-deny-ingress", policyTypes=["Ingress"])
    denied(one, two)
    denied(other, one)
    reaches(one, other)
    # The domain's own processes (probes, gateway) reach pods whatever policies say.
    reaches(policies.domain, one)


def default_deny_egress_and_all() -> None:
    policies = Policies(Domain())
    one, other = policies.pod(2), policies.pod(3, namespace="other")
    policies.put("default-deny-egress", policyTypes=["Egress"])
    denied(one, other)
    reaches(other, one)
    with listen(policies.domain, GATEWAY, 80):
        refused(one, (GATEWAY, 80))
    policies.put("default-deny-all", policyTypes=["Ingress", "Egress"])
    denied(other, one)
    policies.drop("default-deny-egress")
    denied(one, other)
    policies.drop("default-deny-all")
    reaches(one, other)
    reaches(other, one)


def allow_all_is_added_to_deny() -> None:
    """Kubernetes: "Allow all ingress traffic": policies are additive."""
    policies = Policies(Domain())
    one, two = policies.pod(2), policies.pod(3)
    policies.put("default-deny", policyTypes=["Ingress", "Egress"])
    denied(one, two)
    policies.put("allow-all-ingress", ingress=[{}], policyTypes=["Ingress"])
    denied(one, two)
    policies.put("allow-all-egress", egress=[{}], policyTypes=["Egress"])
    reaches(one, two)
    with listen(policies.domain, GATEWAY, 80) as gateway:
        talk(one, gateway)
    policies.drop("allow-all-ingress")
    denied(one, two)


def network_policy_of_the_documentation() -> None:
    """Kubernetes: "The NetworkPolicy resource": ipBlock with except, namespaceSelector, podSelector and ports."""
    policies = Policies(Domain())
    db = policies.pod(2, {"role": "db"})
    frontend, stranger = policies.pod(3, {"role": "frontend"}), policies.pod(4)
    project = policies.pod(5, namespace="other")
    near, far = policies.pod(0x0117, namespace="kube-system"), policies.pod(0x0217, namespace="kube-system")
    policies.put(
        "test-network-policy",
        podSelector={"matchLabels": {"role": "db"}},
        policyTypes=["Ingress", "Egress"],
        ingress=[
            {
                "from": [
                    {"ipBlock": {"cidr": "100.96.0.0/16", "except": ["100.96.0.0/24", "100.96.1.0/24"]}},
                    {"namespaceSelector": {"matchLabels": {"project": "myproject"}}},
                    {"podSelector": {"matchLabels": {"role": "frontend"}}},
                ],
                "ports": [{"protocol": "TCP", "port": 6379}],
            }
        ],
        egress=[{"to": [{"ipBlock": {"cidr": "100.96.2.0/24"}}], "ports": [{"protocol": "TCP", "port": 5978}]}],
    )
    for allowed in (frontend, project, far):
        reaches(allowed, db, 6379)
        denied(allowed, db, 6380)
    for forbidden in (stranger, near):
        denied(forbidden, db, 6379)
    reaches(db, far, 5978)
    denied(db, far, 5979)
    denied(db, near, 5978)
    reaches(stranger, frontend)


def both_selectors_in_one_peer_must_match() -> None:
    """Kubernetes: "Behavior of to and from selectors"."""
    policies = Policies(Domain())
    target = policies.pod(2)
    client = policies.pod(3, {"role": "client"}, "other")
    unlabelled, wrong_namespace = policies.pod(4, {}, "other"), policies.pod(5, {"role": "client"}, "kube-system")
    namespaces = {"matchLabels": {"project": "myproject"}}
    pods = {"matchLabels": {"role": "client"}}
    policies.put("and", ingress=[{"from": [{"namespaceSelector": namespaces, "podSelector": pods}]}])
    reaches(client, target)
    denied(unlabelled, target)
    denied(wrong_namespace, target)
    policies.put("and", ingress=[{"from": [{"namespaceSelector": namespaces}, {"podSelector": pods}]}])
    reaches(client, target)
    reaches(unlabelled, target)
    denied(wrong_namespace, target)
    policies.put("and", ingress=[{"from": [{"namespaceSelector": {}}]}])
    reaches(wrong_namespace, target)


def a_range_of_ports() -> None:
    """Kubernetes: "Targeting a range of ports"."""
    policies = Policies(Domain())
    one, two = policies.pod(2, {"role": "db"}), policies.pod(3, namespace="other")
    policies.put(
        "multi-port-egress",
        podSelector={"matchLabels": {"role": "db"}},
        policyTypes=["Egress"],
        egress=[
            {
                "to": [{"ipBlock": {"cidr": "100.96.0.0/24"}}],
                "ports": [{"protocol": "TCP", "port": 32000, "endPort": 32768}],
            }
        ],
    )
    for port in (32000, 32400, 32768):
        reaches(one, two, port)
    for port in (31999, 32769):
        denied(one, two, port)


def named_ports_are_those_of_the_destination() -> None:
    policies = Policies(Domain())
    client = policies.pod(2, {"role": "client"})
    web = policies.pod(3, {"role": "web"}, ports={"http": 8080})
    old = policies.pod(4, {"role": "web"}, ports={"http": 8081})
    rule = {"ports": [{"port": "http"}], "from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}
    policies.put("in", podSelector={"matchLabels": {"role": "web"}}, ingress=[rule])
    reaches(client, web, 8080)
    denied(client, web, 8081)
    reaches(client, old, 8081)
    denied(client, old, 8080)
    policies.drop("in")
    for to in ([], [{"podSelector": {"matchLabels": {"role": "web"}}}], [{"ipBlock": {"cidr": "100.96.0.0/24"}}]):
        policies.put("out", policyTypes=["Egress"], egress=[{"ports": [{"port": "http"}], "to": to}])
        reaches(client, web, 8080)
        denied(client, web, 8081)
        reaches(client, old, 8081)
        denied(client, old, 8080)


def labels_that_change_take_effect() -> None:
    policies = Policies(Domain())
    one, two = policies.pod(2), policies.pod(3, {"app": "server"})
    policies.put(
        "p",
        podSelector={"matchLabels": {"app": "server"}},
        ingress=[{"from": [{"podSelector": {"matchLabels": {"access": "true"}}}]}],
    )
    denied(one, two)
    policies.label(one, {"access": "true"})
    reaches(one, two)
    policies.label(one, {})
    denied(one, two)
    policies.label(two, {"app": "none"})
    reaches(one, two)
    policies.label(two, {"app": "server"})
    policies.table.set_namespace("default", {"project": "changed"})
    assert policies.apply() == 0
    denied(one, two)


def names_are_resolved_when_dns_is_allowed() -> None:
    policies = Policies(Domain())
    pod = policies.pod(2)

    def ask() -> bool:
        with new_socket(policies.domain, socket.SOCK_DGRAM) as server, new_socket(pod, socket.SOCK_DGRAM) as client:
            server.bind((GATEWAY, 53))
            client.connect((GATEWAY, 53))
            client.send(b"question")
            server.settimeout(0.3)
            try:
                return server.recv(100) == b"question"
            except TimeoutError:
                return False

    assert ask()
    policies.put("deny", policyTypes=["Egress"])
    assert not ask()
    for rule in (
        {"ports": [{"protocol": "UDP", "port": 53}]},
        {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]},
        {
            "to": [
                {
                    "namespaceSelector": {},
                    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
                }
            ],
            "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
        },
    ):
        policies.put("allow-dns", policyTypes=["Egress"], egress=[rule])
        assert ask(), rule
        with listen(policies.domain, GATEWAY, 80):
            refused(pod, (GATEWAY, 80))
    policies.drop("allow-dns")
    assert not ask()


def the_fence_stays_in_force() -> None:
    domain = Domain()
    policies = Policies(domain)
    engine, ordinary = domain.pod(0x8002, "engine"), policies.pod(2)
    policies.label(engine, {})
    policies.put("allow-all", ingress=[{}], egress=[{}], policyTypes=["Ingress", "Egress"])
    denied(engine, ordinary)
    reaches(ordinary, engine)


def a_service_address_is_decided_by_the_pod_behind_it() -> None:
    domain = Domain()
    policies = Policies(domain)
    client, server = policies.pod(2), policies.pod(3, {"app": "server"})
    virtual = ("100.112.0.10", 80)
    table = "services_for_test"
    to_virtual = nftables.load_payload(nftables.NETWORK_HEADER, 16, 4) + nftables.compare(
        nftables.EQUAL, socket.inet_aton(virtual[0])
    )
    messages = [
        nftables.add_table(table),
        nftables.add_chain(table, "nat", "nat", nftables.PREROUTING, -100),
        nftables.add_rule(
            table,
            "nat",
            to_virtual,
            nftables.load_value(socket.inet_aton(server.address), nftables.FIRST),
            nftables.load_value(PORT.to_bytes(2, "big"), nftables.SECOND),
            nftables.change_destination(nftables.FIRST, nftables.SECOND),
        ),
    ]
    NetlinkSocket(NETLINK_NETFILTER).request(nftables.batch(messages), acknowledged=-2)
    with listen(server, server.address, PORT) as listener:
        talk(client, listener, virtual)
        policies.put("only", podSelector={"matchLabels": {"app": "server"}}, ingress=[])
        refused(client, virtual)
        policies.put("only", podSelector={"matchLabels": {"app": "server"}}, ingress=[{"ports": [{"port": PORT}]}])
        talk(client, listener, virtual)


def pods_of_other_nodes_are_peers_and_not_restricted_here() -> None:
    policies = Policies(Domain())
    here, there = policies.pod(2), policies.pod(3, {"role": "client"}, local=False)
    policies.put("p", ingress=[{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}])
    reaches(there, here)
    reaches(here, there)  # its own node decides


def an_address_that_was_given_again_has_the_policies_of_its_pod() -> None:
    policies = Policies(Domain())
    one, two = policies.pod(2), policies.pod(3, {"app": "a"})
    policies.put("a", podSelector={"matchLabels": {"app": "a"}}, ingress=[])
    policies.put("b", podSelector={"matchLabels": {"app": "b"}}, ingress=[{"ports": [{"port": PORT}]}])
    denied(one, two)
    policies.table.set_pod("successor", PolicyPod("default", {"app": "b"}, two.address, local=True))
    assert policies.apply() == 1
    reaches(one, two)
    denied(one, two, 8001)


def established_connections_go_on() -> None:
    policies = Policies(Domain())
    one, two = policies.pod(2), policies.pod(3)
    with listen(two, two.address, PORT) as listener, new_socket(one) as client:
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        policies.put("deny", policyTypes=["Ingress", "Egress"])
        client.sendall(b"question")
        assert accepted.recv(100) == b"question"
        accepted.close()
        refused(one, (two.address, PORT))


def many_policies_and_pods() -> None:
    policies = Policies(Domain())
    one, two = policies.pod(2, {"app": "a7"}), policies.pod(3, {"app": "b"})
    for number in range(4, 3004):
        pod = PolicyPod("default", {"app": f"a{number % 10}"}, f"100.96.{number >> 8}.{number & 255}", number % 2 == 0)
        policies.table.set_pod(str(number), pod)
    for number in range(50):
        document = {
            "metadata": {"namespace": "default", "name": f"p{number}"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "b" if number == 7 else f"a{number % 10}"}},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": f"a{number % 10}"}}}]}],
            },
        }
        policies.table.set_policy(f"default/p{number}", compile_policy(msgspec.convert(document, NetworkPolicy)))
    policies.apply()
    reaches(one, two)
    # One pod more is one transaction.
    policies.table.set_pod("more", PolicyPod("default", {"app": "a7"}, "100.96.200.1"))
    assert policies.apply() == 1
    policies.label(one, {"app": "a8"})
    denied(one, two)
    policies.table.forget_loaded()
    assert policies.apply() >= 1
    denied(one, two)
    for number in range(50):
        policies.table.set_policy(f"default/p{number}", None)
    assert policies.apply() == 1
    reaches(one, two)


SCENARIOS: dict[str, Callable[[], None]] = {
    scenario.__name__: scenario
    for scenario in (
        without_policies_there_is_no_table,
        default_deny_ingress,
        default_deny_egress_and_all,
        allow_all_is_added_to_deny,
        network_policy_of_the_documentation,
        both_selectors_in_one_peer_must_match,
        a_range_of_ports,
        named_ports_are_those_of_the_destination,
        labels_that_change_take_effect,
        names_are_resolved_when_dns_is_allowed,
        the_fence_stays_in_force,
        a_service_address_is_decided_by_the_pod_behind_it,
        pods_of_other_nodes_are_peers_and_not_restricted_here,
        an_address_that_was_given_again_has_the_policies_of_its_pod,
        established_connections_go_on,
        many_policies_and_pods,
    )
}


def main(mode: str, name: str) -> int:
    try:
        if mode == "user":
            network.become_user()
        else:
            unshare(CLONE_NEWNET)
        Links().loopback()
    except OSError as error:
        print(f"{mode}: {error}", file=sys.stderr)
        return FORBIDDEN
    SCENARIOS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
