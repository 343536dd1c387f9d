"""Who may talk to whom in the pod network of a domain: nftables table `inet coterie`.

    kind of pod   reaches
    ordinary      ordinary and engine pods, all listed ports of the gateway address
    engine        pods that it is paired with, all listed ports of the gateway address
    guest         the ports of the gateway address that are for everybody

Pods are identified by address; a packet whose source address is not that of its device is dropped. What is not allowed
is refused with an answer, so that clients fail at once. The domain's own processes reach every pod.

Pods of other nodes come by the devices `vx0` and `vlink0`. Their kind is told by the place of their address in the range of their node: the
lower half is of ordinary pods, the upper one of engines and guests, which count as guests until their agent says otherwise
(`Firewall.add_remote`). The machine comes by `host0`, with the last address of the node's range: it reaches ordinary pods and names,
and nobody reaches it.
"""

from __future__ import annotations

import errno
import socket
import struct

from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.links import DEVICE_PREFIX, HOST_DEVICE, LINK_DEVICE, PEER_PREFIX
from coterie.kube.network.pods.netlink import NETLINK_NETFILTER, NetlinkMessage, NetlinkSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TABLE = "coterie"
ORDINARY, ENGINE, GUEST = "ordinary", "engine", "guest"
KINDS = (ORDINARY, ENGINE, GUEST)

_SOURCES, _GUESTS, _ENGINES, _PEERS = "sources", "guests", "engines", "peers"
_PORTS, _PORTS_NOT_FOR_GUESTS = "ports", "ports_not_for_guests"
_ADDRESS, _INTERFACE = nftables.TYPE_IPV4_ADDRESS, nftables.TYPE_INTERFACE
_SETS: dict[str, tuple[int, tuple[int, ...], int]] = {
    # name: (identifier in a transaction, fields of the key, length of the key)
    _SOURCES: (1, (_INTERFACE, _ADDRESS), 20),
    _GUESTS: (2, (_ADDRESS,), 4),
    _ENGINES: (3, (_ADDRESS,), 4),
    _PEERS: (4, (_ADDRESS, _ADDRESS), 8),
    _PORTS: (5, (nftables.TYPE_PROTOCOL, nftables.TYPE_PORT), 8),
    _PORTS_NOT_FOR_GUESTS: (6, (nftables.TYPE_PROTOCOL, nftables.TYPE_PORT), 8),
}
_CONNECTIONS = "connections"
"""Dynamic: by source address, how many connections pods have to the domain's processes."""
_CONNECTIONS_ID = 7
_NO_SUCH_EXPRESSION = (errno.ENOENT, errno.EOPNOTSUPP)
CONNECTIONS_OF_A_POD = 1024
"""To all services of the node together: one pod cannot take those of the others."""
_PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17}
_RAW, _DESTINATION_NAT, _FILTER = -300, -100, 0
_SET_OF_KIND = {ENGINE: _ENGINES, GUEST: _GUESTS}
_LINK, _HOST = (name.encode() + b"\0" for name in (LINK_DEVICE, HOST_DEVICE))
"""With its end: not the beginning of another name."""
LINK_PROBE_PORT = 8472
"""UDP: with what nodes on one link find out whether they reach each other there. The number of VXLAN, inside."""
_DNS_PORT = 53
_ELEMENTS_IN_MESSAGE = 1000
_BYTES_IN_BATCH = 150_000
_ICMP_ECHO_REQUEST = 8


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET, address)


def _network(text: str) -> tuple[bytes, bytes]:
    """(address, mask) of "10.0.0.0/8"."""
    address, _, length = text.partition("/")
    bits = 0xFFFFFFFF << (32 - int(length)) & 0xFFFFFFFF
    return struct.pack(">I", struct.unpack(">I", _packed(address))[0] & bits), struct.pack(">I", bits)


def _host_bits(length: int) -> int:
    return (1 << (32 - length)) - 1


_LOOPBACK, _THIS_NETWORK = _network("127.0.0.0/8"), _network("0.0.0.0/8")


class ClusterPlan:
    """The domain beyond this node.

    pod_range: of all its nodes; node_prefix: the length of the prefix of every node's range
    gateway: of the control plane's node, which every pod reaches and whose processes reach every pod; empty: this is that node
    host_address: of the machine, by way of `host0`
    """

    def __init__(self, pod_range: str, node_prefix: int, gateway: str, host_address: str) -> None:
        self.pod_range = _network(pod_range)
        self.gateway = _packed(gateway) if gateway else b""
        self.host_address = _packed(host_address)
        hosts = _host_bits(node_prefix)
        self.host_bits = struct.pack(">I", hosts)
        """Of an address: its place in the range of its node. All of them set: the machine."""
        self.upper_half = struct.pack(">I", hosts + 1 >> 1)
        """The bit that is set in the upper half of every node's range."""


class FirewallPlan:
    """What the rules of a domain depend on.

    gateway: its address in the domain's network namespace; pod_range: "100.96.0.0/16"
    ports, ports_not_for_guests: (protocol, port) of the gateway address that pods reach
    relay_port: 0, or where outward TCP of the domain's own processes is redirected: everything but the gateway address
        and the pod range, 127.0.0.0/8 included, to 127.0.0.1:relay_port
    egress_for_pods: outward TCP of ordinary pods goes to gateway:relay_port
    cluster: how the domain goes on beyond this node; None: it does not
    """

    def __init__(
        self,
        gateway: str,
        pod_range: str,
        ports: Sequence[tuple[str, int]],
        ports_not_for_guests: Sequence[tuple[str, int]] = (),
        relay_port: int = 0,
        egress_for_pods: bool = False,
        cluster: ClusterPlan | None = None,
    ) -> None:
        self.cluster = cluster
        self.gateway = _packed(gateway)
        self.pod_range = _network(pod_range)
        self.counts_connections = True
        """Whether the connections of each pod are limited; not where the kernel cannot count them."""
        self.ports = list(ports)
        self.ports_not_for_guests = list(ports_not_for_guests)
        self.relay_port = relay_port
        self.egress_for_pods = egress_for_pods


class Firewall:
    """Changes the rules of the network namespace in which it was made, wherever its caller is now."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(NETLINK_NETFILTER)

    def load(
        self,
        plan: FirewallPlan,
        pods: Iterable[tuple[str, str, str]] = (),
        pairs: Iterable[tuple[str, str]] = (),
        remote: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Create the table, or replace it with all that is in it. pods: (device, address, kind); pairs: as for `allow`;
        remote: as for `add_remote`."""
        pods, pairs, remote = list(pods), list(pairs), list(remote)
        try:
            self._load(plan, pods, pairs, remote)
        except OSError as problem:
            if problem.errno not in _NO_SUCH_EXPRESSION or not plan.counts_connections:
                raise
            plan.counts_connections = False  # a kernel without nft_connlimit
            self._load(plan, pods, pairs, remote)

    def _load(
        self,
        plan: FirewallPlan,
        pods: list[tuple[str, str, str]],
        pairs: list[tuple[str, str]],
        remote: list[tuple[str, str]],
    ) -> None:
        elements: dict[str, list[bytes]] = {_GUESTS: [], _ENGINES: [], _PEERS: [_pair(*pair) for pair in pairs]}
        elements[_SOURCES] = []
        for address, kind in remote:
            elements[_SET_OF_KIND[kind]].append(_packed(address))
        for name, address, kind in pods:
            for set_name, key in _pod(name, address, kind):
                elements[set_name].append(key)
        # Sources last: should it take several transactions, a pod reaches nothing before its kind is known.
        waiting = table_messages(plan)
        size = sum(len(message.body) for message in waiting)
        for set_name, keys in elements.items():
            for start in range(0, len(keys), _ELEMENTS_IN_MESSAGE):
                message = nftables.add_elements(TABLE, set_name, keys[start : start + _ELEMENTS_IN_MESSAGE])
                if size + len(message.body) > _BYTES_IN_BATCH:
                    self._transact(waiting)
                    waiting, size = [], 0
                waiting.append(message)
                size += len(message.body)
        self._transact(waiting)

    def add_pod(self, name: str, address: str, kind: str) -> None:
        self._transact([nftables.add_elements(TABLE, set_name, [key]) for set_name, key in _pod(name, address, kind)])

    def remove_pod(self, name: str, address: str, kind: str) -> None:
        self._delete(_pod(name, address, kind))

    def add_remote(self, pods: Sequence[tuple[str, str]]) -> None:
        """Pods of other nodes: (address, kind)."""
        messages = [
            message
            for kind, name in _SET_OF_KIND.items()
            for message in _chunks(name, [_packed(address) for address, each in pods if each == kind])
        ]
        if messages:
            self._transact(messages)

    def remove_remote(self, pods: Sequence[tuple[str, str]]) -> None:
        self._delete([(_SET_OF_KIND[kind], _packed(address)) for address, kind in pods if kind in _SET_OF_KIND])

    def allow(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Let engine pods reach others: (from address, to address)."""
        if pairs:
            self._transact(_chunks(_PEERS, [_pair(*pair) for pair in pairs]))

    def forbid(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._delete([(_PEERS, _pair(*pair)) for pair in pairs])

    def close(self) -> None:
        self._netlink.close()

    def _transact(self, messages: Sequence[NetlinkMessage]) -> None:
        self._netlink.request(nftables.batch(messages), acknowledged=-2)

    def _delete(self, elements: Sequence[tuple[str, bytes]]) -> None:
        deletions = [nftables.delete_elements(TABLE, set_name, [key]) for set_name, key in elements]
        if not deletions:
            return
        try:
            self._transact(deletions)
        except FileNotFoundError:
            # One of them is not there, so all were kept: delete one by one.
            for deletion in deletions:
                try:
                    self._transact([deletion])
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        raise


def table_messages(plan: FirewallPlan) -> list[NetlinkMessage]:
    """The table without pods, in place of the one that may be there."""
    messages = [nftables.add_table(TABLE), nftables.delete_table(TABLE), nftables.add_table(TABLE)]
    for name, (identifier, fields, length) in _SETS.items():
        messages.append(nftables.add_set(TABLE, name, identifier, fields, length))
    if plan.counts_connections:
        messages.append(nftables.add_set(TABLE, _CONNECTIONS, _CONNECTIONS_ID, (_ADDRESS,), 4, dynamic=True))
    messages += _chunks(_PORTS, [_port(*port) for port in plan.ports])
    messages += _chunks(_PORTS_NOT_FOR_GUESTS, [_port(*port) for port in plan.ports_not_for_guests])
    messages += _antispoofing()
    if plan.cluster is not None:
        messages += _antispoofing_of_others(plan, plan.cluster)
    messages += _input(plan)
    messages += _forward(plan)
    if plan.cluster is not None:
        messages += _output_to_machine()
    if plan.relay_port:
        messages += _egress_of_domain(plan)
        if plan.egress_for_pods:
            messages += _egress_of_pods(plan)
    return messages


def _antispoofing() -> list[NetlinkMessage]:
    """Pods first and with one rule: most packets are theirs."""
    chain = "antispoofing"
    device_and_source = nftables.load_meta(nftables.META_IIFNAME, nftables.FIRST) + nftables.load_payload(
        nftables.NETWORK_HEADER, 12, 4, nftables.SECOND
    )
    return [
        nftables.add_chain(TABLE, chain, "filter", nftables.PREROUTING, _RAW),
        _rule(chain, _from_pod(), _ipv4(), device_and_source, _in_set(_SOURCES), _ACCEPT),
        _rule(chain, _from_pod(), nftables.count(), _DROP),
    ]


def _antispoofing_of_others(plan: FirewallPlan, cluster: ClusterPlan) -> list[NetlinkMessage]:
    """From other nodes: pods of theirs, to pods of ours. From the machine: itself."""
    chain = "antispoofing"
    outside_cluster = _ipv4() + _source() + nftables.mask(cluster.pod_range[1])
    of_this_node = _ipv4() + _source() + nftables.mask(plan.pod_range[1])
    not_to_this_node = _ipv4() + _destination() + nftables.mask(plan.pod_range[1])
    lies = [
        _from_overlay() + _not_ipv4(),
        _from_overlay() + outside_cluster + nftables.compare(nftables.NOT_EQUAL, cluster.pod_range[0]),
        _from_overlay() + of_this_node + nftables.compare(nftables.EQUAL, plan.pod_range[0]),
        _from_overlay() + not_to_this_node + nftables.compare(nftables.NOT_EQUAL, plan.pod_range[0]),
        _from_machine() + _not_ipv4(),
        _from_machine() + _ipv4() + _source() + nftables.compare(nftables.NOT_EQUAL, cluster.host_address),
    ]
    return [_rule(chain, lie, nftables.count(), _DROP) for lie in lies]


def _input(plan: FirewallPlan) -> list[NetlinkMessage]:
    """From pods to the domain's own processes."""
    chain = "input"
    to_gateway = _ipv4() + _destination() + nftables.compare(nftables.EQUAL, plan.gateway)
    messages = [
        nftables.add_chain(TABLE, chain, "filter", nftables.INPUT, _FILTER),
        _rule(chain, _established(), _ACCEPT),
        *_limit_connections(chain, plan, to_gateway),
        _rule(chain, _from_pod(), to_gateway, _protocol_and_port(), _in_set(_PORTS), _ACCEPT),
        _rule(
            chain,
            _from_pod(),
            to_gateway,
            _source() + _in_set(_GUESTS, inverted=True),
            _protocol_and_port() + _in_set(_PORTS_NOT_FOR_GUESTS),
            _ACCEPT,
        ),
        _rule(chain, _from_pod(), to_gateway, _echo_request(), _ACCEPT),
    ]
    if plan.relay_port and plan.egress_for_pods:
        # Only what was redirected: a pod that calls the port itself has no destination for the relay.
        redirected = (
            nftables.load_conntrack(nftables.CT_STATUS)
            + nftables.mask(struct.pack("=I", nftables.CT_STATUS_DNAT))
            + nftables.compare(nftables.NOT_EQUAL, bytes(4))
        )
        port = nftables.load_payload(nftables.TRANSPORT_HEADER, 2, 2) + nftables.compare(
            nftables.EQUAL, struct.pack(">H", plan.relay_port)
        )
        messages.append(_rule(chain, _from_pod(), to_gateway, _protocol("tcp"), port, redirected, _ACCEPT))
    if plan.cluster is not None:
        messages += _input_of_others(chain, plan.cluster, to_gateway)
    return messages + _refuse(chain, _from_pod())


def _input_of_others(chain: str, cluster: ClusterPlan, to_gateway: bytes) -> list[NetlinkMessage]:
    """From pods of other nodes as from ours, but an address of the upper half is a guest's until we know better."""
    own_ports = (_protocol_and_port() + _in_set(_PORTS_NOT_FOR_GUESTS), _ACCEPT)
    not_guest = _source() + _in_set(_GUESTS, inverted=True)
    dns = nftables.load_payload(nftables.TRANSPORT_HEADER, 2, 2) + nftables.compare(
        nftables.EQUAL, struct.pack(">H", _DNS_PORT)
    )
    return [
        _rule(chain, _from_overlay(), to_gateway, _protocol_and_port(), _in_set(_PORTS), _ACCEPT),
        _rule(chain, _from_overlay(), to_gateway, not_guest, _lower_half(cluster, _source()), *own_ports),
        _rule(chain, _from_overlay(), to_gateway, _source() + _in_set(_ENGINES), *own_ports),
        _rule(chain, _from_overlay(), to_gateway, _echo_request(), _ACCEPT),
        _rule(chain, _link_probe(cluster), to_gateway, _ACCEPT),
        *_refuse(chain, _from_overlay()),
        _rule(chain, _from_machine(), to_gateway, _protocol("udp"), dns, _ACCEPT),
        _rule(chain, _from_machine(), to_gateway, _protocol("tcp"), dns, _ACCEPT),
        _rule(chain, _from_machine(), to_gateway, _echo_request(), _ACCEPT),
        *_refuse(chain, _from_machine()),
    ]


def _link_probe(cluster: ClusterPlan) -> bytes:
    """From the process of another node, by the shared link."""
    from_link = nftables.load_meta(nftables.META_IIFNAME) + nftables.compare(nftables.EQUAL, _LINK)
    place = _source() + nftables.mask(cluster.host_bits) + nftables.compare(nftables.EQUAL, struct.pack(">I", 1))
    port = nftables.load_payload(nftables.TRANSPORT_HEADER, 2, 2) + nftables.compare(
        nftables.EQUAL, struct.pack(">H", LINK_PROBE_PORT)
    )
    return from_link + _ipv4() + place + _protocol("udp") + port


def _output_to_machine() -> list[NetlinkMessage]:
    """The domain's processes answer the machine, and call nothing of it by this way."""
    chain = "output_to_machine"
    return [
        nftables.add_chain(TABLE, chain, "filter", nftables.OUTPUT, _FILTER),
        _rule(chain, _established(), _ACCEPT),
        *_refuse(chain, _to_machine()),
    ]


def _limit_connections(chain: str, plan: FirewallPlan, to_gateway: bytes) -> list[NetlinkMessage]:
    if not plan.counts_connections:
        return []
    too_many = nftables.has_more_connections(_CONNECTIONS, _CONNECTIONS_ID, CONNECTIONS_OF_A_POD)
    counted = (to_gateway, _protocol("tcp"), _source() + too_many, nftables.count(), nftables.reset_connection())
    origins = [_from_pod(), _from_overlay()] if plan.cluster is not None else [_from_pod()]
    return [_rule(chain, origin, *counted) for origin in origins]


def _forward(plan: FirewallPlan) -> list[NetlinkMessage]:
    """From pod to pod. What has no rule here is neither of them and dropped."""
    chain = "forward"
    pair = nftables.load_payload(nftables.NETWORK_HEADER, 12, 4, nftables.FIRST) + nftables.load_payload(
        nftables.NETWORK_HEADER, 16, 4, nftables.SECOND_WORD
    )
    between_pods = _from_pod() + _to_pod() + _ipv4()
    return [
        nftables.add_chain(TABLE, chain, "filter", nftables.FORWARD, _FILTER, policy=nftables.DROP),
        _rule(chain, _not_ipv4(), _DROP),
        _rule(chain, _established(), _ACCEPT),
        # Engines of one task reach each other, whoever began it.
        _rule(chain, between_pods, pair + _in_set(_PEERS), _ACCEPT),
        *(_forward_before_guests(chain, plan.cluster, pair) if plan.cluster is not None else ()),
        *_refuse(chain, _ipv4() + _source() + _in_set(_GUESTS)),
        *_refuse(chain, _ipv4() + _destination() + _in_set(_GUESTS)),
        _rule(chain, between_pods, _source() + _in_set(_ENGINES, inverted=True), _ACCEPT),
        *(_forward_of_others(chain, plan.cluster) if plan.cluster is not None else ()),
        *_refuse(chain),
    ]


def _forward_before_guests(chain: str, cluster: ClusterPlan, pair: bytes) -> list[NetlinkMessage]:
    paired = _ipv4() + pair + _in_set(_PEERS)
    messages = [
        _rule(chain, _from_pod(), _to_overlay(), paired, _ACCEPT),
        _rule(chain, _from_overlay(), _to_pod(), paired, _ACCEPT),
    ]
    if cluster.gateway:
        by_gateway = _ipv4() + _source() + nftables.compare(nftables.EQUAL, cluster.gateway)
        to_gateway = _ipv4() + _destination() + nftables.compare(nftables.EQUAL, cluster.gateway)
        messages += [
            _rule(chain, _from_overlay(), _to_pod(), by_gateway, _ACCEPT),
            # All kinds of pods use its services; that node's rules say which ports.
            _rule(chain, _from_pod(), _to_overlay(), to_gateway, _ACCEPT),
        ]
    return messages


def _forward_of_others(chain: str, cluster: ClusterPlan) -> list[NetlinkMessage]:
    """Guests have been refused."""
    from_machines = _source() + nftables.mask(cluster.host_bits) + nftables.compare(nftables.EQUAL, cluster.host_bits)
    to_ordinary = _ipv4() + _destination() + _in_set(_ENGINES, inverted=True)
    return [
        _rule(chain, _from_pod(), _to_overlay(), _ipv4(), _source() + _in_set(_ENGINES, inverted=True), _ACCEPT),
        _rule(chain, _from_overlay(), _to_pod(), _ipv4(), _lower_half(cluster, _source()), _ACCEPT),
        _rule(chain, _from_overlay(), _to_pod(), to_ordinary, from_machines, _ACCEPT),
        _rule(chain, _from_machine(), _to_pod(), to_ordinary, _ACCEPT),
        _rule(chain, _from_machine(), _to_overlay(), _ipv4(), _lower_half(cluster, _destination()), _ACCEPT),
    ]


def _egress_of_domain(plan: FirewallPlan) -> list[NetlinkMessage]:
    nat, rest = "egress_of_domain", "output"
    return [
        nftables.add_chain(TABLE, nat, "nat", nftables.OUTPUT, _DESTINATION_NAT),
        *_return_inside(nat, plan),
        _rule(
            nat,
            _ipv4(),
            _protocol("tcp"),
            nftables.load_value(struct.pack(">H", plan.relay_port)),
            nftables.redirect(),
        ),
        # There is no way out for anything else than TCP: say so.
        nftables.add_chain(TABLE, rest, "filter", nftables.OUTPUT, _FILTER),
        *_return_inside(rest, plan),
        _rule(rest, _to_network(_LOOPBACK), _RETURN),
        *_refuse(rest, _ipv4()),
    ]


def _egress_of_pods(plan: FirewallPlan) -> list[NetlinkMessage]:
    chain = "egress_of_pods"
    return [
        nftables.add_chain(TABLE, chain, "nat", nftables.PREROUTING, _DESTINATION_NAT),
        *_return_inside(chain, plan),
        # A pod can send to such an address (SO_BINDTODEVICE), and the relay would reach the machine's own loopback.
        _rule(chain, _to_network(_LOOPBACK), _RETURN),
        _rule(chain, _to_network(_THIS_NETWORK), _RETURN),
        _rule(
            chain,
            _from_pod(),
            _ipv4(),
            _source() + _in_set(_GUESTS, inverted=True),
            _source() + _in_set(_ENGINES, inverted=True),
            _protocol("tcp"),
            nftables.load_value(plan.gateway, nftables.FIRST),
            nftables.load_value(struct.pack(">H", plan.relay_port), nftables.SECOND),
            nftables.change_destination(nftables.FIRST, nftables.SECOND),
        ),
    ]


def _return_inside(chain: str, plan: FirewallPlan) -> list[NetlinkMessage]:
    """Leave the chain for destinations inside the pod network."""
    to_gateway = _ipv4() + _destination() + nftables.compare(nftables.EQUAL, plan.gateway)
    return [_rule(chain, to_gateway, _RETURN), _rule(chain, _to_network(plan.pod_range), _RETURN)]


def _refuse(chain: str, *conditions: bytes) -> list[NetlinkMessage]:
    return [
        _rule(chain, *conditions, _protocol("tcp"), nftables.count(), nftables.reset_connection()),
        _rule(chain, *conditions, nftables.count(), nftables.refuse()),
    ]


# --- parts of rules -------------------------------------------------------------------------------------------------

_ACCEPT = nftables.verdict(nftables.ACCEPT)
_DROP = nftables.verdict(nftables.DROP)
_RETURN = nftables.verdict(nftables.RETURN)


def _rule(chain: str, *expressions: bytes) -> NetlinkMessage:
    return nftables.add_rule(TABLE, chain, *expressions)


def _from_pod() -> bytes:
    """Comparing fewer bytes than the name has is `iifname "p*"`."""
    return nftables.load_meta(nftables.META_IIFNAME) + nftables.compare(nftables.EQUAL, DEVICE_PREFIX.encode())


def _to_pod() -> bytes:
    return nftables.load_meta(nftables.META_OIFNAME) + nftables.compare(nftables.EQUAL, DEVICE_PREFIX.encode())


def _from_overlay() -> bytes:
    """From another node, by VXLAN or by a shared link."""
    return nftables.load_meta(nftables.META_IIFNAME) + nftables.compare(nftables.EQUAL, PEER_PREFIX.encode())


def _to_overlay() -> bytes:
    return nftables.load_meta(nftables.META_OIFNAME) + nftables.compare(nftables.EQUAL, PEER_PREFIX.encode())


def _from_machine() -> bytes:
    return nftables.load_meta(nftables.META_IIFNAME) + nftables.compare(nftables.EQUAL, _HOST)


def _to_machine() -> bytes:
    return nftables.load_meta(nftables.META_OIFNAME) + nftables.compare(nftables.EQUAL, _HOST)


def _lower_half(cluster: ClusterPlan, address: bytes) -> bytes:
    """Of the range of whichever node: the address of an ordinary pod or of a node's own processes."""
    return address + nftables.mask(cluster.upper_half) + nftables.compare(nftables.EQUAL, bytes(4))


def _ipv4(operator: int = nftables.EQUAL) -> bytes:
    """Comes before everything that reads addresses."""
    return nftables.load_meta(nftables.META_NFPROTO) + nftables.compare(operator, bytes([socket.AF_INET]))


def _not_ipv4() -> bytes:
    return _ipv4(nftables.NOT_EQUAL)


def _established() -> bytes:
    states = struct.pack("=I", nftables.CT_ESTABLISHED | nftables.CT_RELATED)
    return (
        nftables.load_conntrack(nftables.CT_STATE)
        + nftables.mask(states)
        + nftables.compare(nftables.NOT_EQUAL, bytes(4))
    )


def _source() -> bytes:
    return nftables.load_payload(nftables.NETWORK_HEADER, 12, 4)


def _destination() -> bytes:
    return nftables.load_payload(nftables.NETWORK_HEADER, 16, 4)


def _to_network(network: tuple[bytes, bytes]) -> bytes:
    address, bits = network
    return _ipv4() + _destination() + nftables.mask(bits) + nftables.compare(nftables.EQUAL, address)


def _protocol(name: str) -> bytes:
    number = bytes([_PROTOCOLS[name]])
    return nftables.load_meta(nftables.META_L4PROTO) + nftables.compare(nftables.EQUAL, number)


def _protocol_and_port() -> bytes:
    return nftables.load_meta(nftables.META_L4PROTO, nftables.FIRST) + nftables.load_payload(
        nftables.TRANSPORT_HEADER, 2, 2, nftables.SECOND_WORD
    )


def _echo_request() -> bytes:
    kind = nftables.load_payload(nftables.TRANSPORT_HEADER, 0, 1)
    return _protocol("icmp") + kind + nftables.compare(nftables.EQUAL, bytes([_ICMP_ECHO_REQUEST]))


def _in_set(name: str, *, inverted: bool = False) -> bytes:
    return nftables.lookup(name, _SETS[name][0], inverted=inverted)


# --- keys of sets ---------------------------------------------------------------------------------------------------


def _pod(name: str, address: str, kind: str) -> list[tuple[str, bytes]]:
    """The elements of a pod: (set, key)."""
    if kind not in KINDS:
        raise ValueError(f"{kind}: the kind of a pod is one of {', '.join(KINDS)}")
    packed = _packed(address)
    found = [(_SET_OF_KIND[kind], packed)] if kind in _SET_OF_KIND else []
    return [*found, (_SOURCES, name.encode().ljust(16, b"\0") + packed)]


def _pair(source: str, destination: str) -> bytes:
    return _packed(source) + _packed(destination)


def _port(protocol: str, port: int) -> bytes:
    return struct.pack(">B3xH2x", _PROTOCOLS[protocol], port)


def _chunks(set_name: str, keys: Sequence[bytes]) -> list[NetlinkMessage]:
    starts = range(0, len(keys), _ELEMENTS_IN_MESSAGE)
    return [nftables.add_elements(TABLE, set_name, keys[at : at + _ELEMENTS_IN_MESSAGE]) for at in starts]
