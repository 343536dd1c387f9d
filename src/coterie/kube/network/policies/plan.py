"""The table `inet coterie_policies` as it should be, and the messages that make it so.

    chain egress   (forward, input)   @self ─> accept    ip saddr ─> @egress_of  ─> group chain
    chain ingress  (forward)          @self, the node itself ─> accept    ip daddr ─> @ingress_of ─> group chain
    group chain                       jump to the chain of each policy that selects the pod; refuse the rest
    policy chain                      one rule for each peer and port that the policy names: accept

Pods that the same policies select share a group chain. `accept` ends one base chain only, so that egress, ingress and the
fence are decided separately. Chains depend on policies alone. What depends on pods are elements of sets: a pod that comes,
goes or changes its labels changes its own elements and nothing else. What is split into several transactions, because a
netlink message has a largest size, restricts first and permits later.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.links import HOST_DEVICE
from coterie.kube.network.pods.netlink import NetlinkMessage
from coterie.kube.network.policies import encoding
from coterie.kube.network.policies.model import (
    EGRESS,
    INGRESS,
    AddressBlock,
    CompiledPolicy,
    CompiledPolicyRule,
    PolicyPod,
    PolicyPorts,
)

TABLE = "coterie_policies"
_MAPS = {INGRESS: ("ingress_of", 1), EGRESS: ("egress_of", 2)}
_SELF, _SELF_ID = "self", 3
_FIRST_ID = 10
_AFTER_THE_FENCE = {EGRESS: 10, INGRESS: 11}
_ADDRESS = nftables.TYPE_IPV4_ADDRESS
_ADDRESSES, _PORTS = "a", "p"
_KINDS = {
    # (fields, length of the key) of the sets of a rule, by the end of their name
    _ADDRESSES: ((_ADDRESS,), 4),
    _PORTS: ((_ADDRESS, nftables.TYPE_PROTOCOL, nftables.TYPE_PORT), 12),
}
_THIRD_WORD = nftables.SECOND_WORD + 1
_SOURCE, _DESTINATION = 12, 16
_TCP = 6
_ELEMENTS_IN_MESSAGE = 400
_BYTES_IN_TRANSACTION = 150_000

_ACCEPT = nftables.verdict(nftables.ACCEPT)

Rules = tuple[bytes, ...]


class SetElement(NamedTuple):
    set: str
    key: bytes
    chain: str = ""
    """Of an element of a verdict map."""


@dataclass(frozen=True, slots=True)
class NodeGateways:
    """Where packets of the nodes themselves come from: the first address of each node's range."""

    cluster: str = "100.96.0.0/12"
    node_mask_size: int = 20


@dataclass(slots=True)
class PodPart:
    """What one pod adds to the table."""

    elements: frozenset[SetElement] = frozenset()
    groups: Mapping[str, Rules] = field(default_factory=dict)


@dataclass(slots=True)
class LoadedTable:
    """What the kernel has, besides the elements of sets. Without policies there is no table."""

    chains: dict[str, Rules] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)
    """By name, the key of `_KINDS`."""


class PolicyTable:
    """Pods, namespaces and policies as they were last told, and the table that follows from them."""

    def __init__(self, nodes: NodeGateways) -> None:
        self._nodes = nodes
        self._policies: dict[str, CompiledPolicy] = {}
        self._pods: dict[str, PolicyPod] = {}
        self._local: dict[str, str] = {}
        """By address, the pod of this node that has it."""
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._parts: dict[str, PodPart] = {}
        self._elements: Counter[SetElement] = Counter()
        self._groups: Counter[str] = Counter()
        self._group_rules: dict[str, Rules] = {}
        self._policy_chains: dict[str, Rules] = {}
        self._sets: dict[str, str] = {}
        self._dirty_pods: set[str] = set()
        self._dirty_policies = False
        self._touched: dict[SetElement, bool] = {}
        """Elements that changed, and whether the kernel has them."""
        self._loaded: LoadedTable | None = None

    # What is told.

    def set_policy(self, key: str, policy: CompiledPolicy | None) -> None:
        if self._policies.get(key) == policy:
            return
        if policy is None:
            del self._policies[key]
        else:
            self._policies[key] = policy
        self._dirty_policies = True

    def set_pod(self, key: str, pod: PolicyPod | None) -> None:
        before = self._pods.get(key)
        if before == pod:
            return
        if before is not None and self._local.get(before.address) == key:
            del self._local[before.address]
        if pod is None:
            del self._pods[key]
        else:
            if pod.local:
                # The last one that got an address has it.
                earlier = self._local.get(pod.address)
                if earlier is not None:
                    self.set_pod(earlier, None)
                self._local[pod.address] = key
            self._pods[key] = pod
        self._dirty_pods.add(key)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        if self._namespaces.get(name) == labels:
            return
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        self._dirty_pods.update(key for key, pod in self._pods.items() if pod.namespace == name)

    def forget_loaded(self) -> None:
        """Nothing is known of what the kernel has: the next transaction replaces all of it."""
        self._loaded = None

    # What follows.

    def transactions(self) -> list[list[NetlinkMessage]]:
        """The messages that make the loaded table the wanted one, from now on taken as loaded; usually none or one batch."""
        self._update()
        wanted = LoadedTable()
        if self._policies:
            wanted = LoadedTable({**self._policy_chains, **self._group_rules}, dict(self._sets))
        loaded, self._loaded = self._loaded, wanted
        touched, self._touched = self._touched, {}
        messages: list[NetlinkMessage] = []
        if loaded is None:
            # Adding what may be there makes sure that it can be deleted.
            messages += [nftables.add_table(TABLE), nftables.delete_table(TABLE)]
        elif loaded.chains and not wanted.chains:
            messages.append(nftables.delete_table(TABLE))
        if wanted.chains:
            if loaded is None or not loaded.chains:
                messages += _frame(self._nodes)
                loaded, touched = LoadedTable(), dict.fromkeys(self._elements, False)
            messages += self._changes(loaded, wanted, touched)
        return _split(messages)

    def _update(self) -> None:
        """Bring what follows from pods and policies up to date."""
        if self._dirty_policies:
            self._policy_chains, self._sets = {}, {}
            for policy in self._policies.values():
                chains, sets = policy_chains(policy)
                self._policy_chains.update(chains)
                self._sets.update(sets)
            self._dirty_pods.update(self._pods, self._parts)
        for key in self._dirty_pods:
            before, pod = self._parts.pop(key, PodPart()), self._pods.get(key)
            after = PodPart()
            if pod is not None and self._policies:
                after = pod_part(pod, self._policies.values(), self._namespaces.get(pod.namespace))
                self._parts[key] = after
            for element in before.elements ^ after.elements:
                self._touched.setdefault(element, self._elements[element] > 0)
            self._elements.update(after.elements)
            self._elements.subtract(before.elements)
            self._groups.update(after.groups.keys())
            self._groups.subtract(before.groups.keys())
            self._group_rules.update(after.groups)
            for name in before.groups:
                if not self._groups[name]:
                    del self._groups[name]
                    self._group_rules.pop(name, None)
        for element in self._touched:
            if not self._elements[element]:
                del self._elements[element]
        self._dirty_pods, self._dirty_policies = set(), False

    def _changes(
        self, loaded: LoadedTable, wanted: LoadedTable, touched: Mapping[SetElement, bool]
    ) -> list[NetlinkMessage]:
        messages = []
        new_sets = [name for name in wanted.sets if name not in loaded.sets]
        for number, name in enumerate(new_sets, _FIRST_ID):
            fields, length = _KINDS[wanted.sets[name]]
            messages.append(nftables.add_set(TABLE, name, number, fields, length))
        messages += [encoding.add_plain_chain(TABLE, name) for name in wanted.chains if name not in loaded.chains]
        for name, rules in wanted.chains.items():
            before = loaded.chains.get(name)
            if before == rules:
                continue
            if before is not None:
                messages.append(encoding.flush_chain(TABLE, name))
            messages += [nftables.add_rule(TABLE, name, rule) for rule in rules]
        gone_sets = [name for name in loaded.sets if name not in wanted.sets]
        removed = [
            each for each, there in touched.items() if there and not self._elements[each] and each.set not in gone_sets
        ]
        added = [each for each, there in touched.items() if not there and self._elements[each]]
        # Restrict, then permit: removed permissions and elements of maps come before added permissions.
        messages += _element_messages(removed, add=False)
        messages += _element_messages([each for each in added if each.chain], add=True)
        messages += _element_messages([each for each in added if not each.chain], add=True)
        gone = [name for name in loaded.chains if name not in wanted.chains]
        messages += [encoding.flush_chain(TABLE, name) for name in gone]
        messages += [encoding.delete_chain(TABLE, name) for name in gone]
        messages += [encoding.delete_set(TABLE, name) for name in gone_sets]
        return messages


def _split(messages: Sequence[NetlinkMessage]) -> list[list[NetlinkMessage]]:
    batches: list[list[NetlinkMessage]] = []
    size = _BYTES_IN_TRANSACTION
    for message in messages:
        length = len(message.body) + 16
        if size + length > _BYTES_IN_TRANSACTION:
            batches.append([])
            size = 0
        batches[-1].append(message)
        size += length
    return batches


# --- what policies and pods add -------------------------------------------------------------------------------------


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _policy_chain(policy: CompiledPolicy, direction: str) -> str:
    return f"{direction}-policy-{_digest(policy.key)}"


def _set_name(policy: CompiledPolicy, direction: str, index: int, kind: str) -> str:
    return f"{direction}-{_digest(policy.key)}-{index}-{kind}"


def policy_chains(policy: CompiledPolicy) -> tuple[dict[str, Rules], dict[str, str]]:
    """Its chains with their rules, and the sets that these need."""
    chains: dict[str, Rules] = {}
    sets: dict[str, str] = {}
    for direction, rules in policy.rules.items():
        made: list[bytes] = []
        for index, rule in enumerate(rules):
            for kind in _kinds_needed(rule, direction):
                sets[_set_name(policy, direction, index, kind)] = kind
            made += _rules(policy, direction, index, rule)
        chains[_policy_chain(policy, direction)] = tuple(made)
    return chains, sets


def _kinds_needed(rule: CompiledPolicyRule, direction: str) -> list[str]:
    kinds = [_ADDRESSES] if rule.peers and (rule.any_port or rule.ports or direction == INGRESS) else []
    if rule.named or (direction == EGRESS and rule.peers):
        kinds.append(_PORTS)
    return kinds


def _rules(policy: CompiledPolicy, direction: str, index: int, rule: CompiledPolicyRule) -> Iterable[bytes]:
    offset = _SOURCE if direction == INGRESS else _DESTINATION
    peers: list[bytes] = [b""] if rule.anyone else []
    if rule.peers and _ADDRESSES in _kinds_needed(rule, direction):
        address = nftables.load_payload(nftables.NETWORK_HEADER, offset, 4)
        peers.append(address + nftables.lookup(_set_name(policy, direction, index, _ADDRESSES), 0))
    peers += [_in_block(block, offset) for block in rule.blocks]
    ports = [b""] if rule.any_port else [_to_port(each) for each in rule.ports]
    for peer in peers:
        for port in ports:
            yield peer + port + _ACCEPT
    if _PORTS in _kinds_needed(rule, direction):
        match = _destination_and_port() + nftables.lookup(_set_name(policy, direction, index, _PORTS), 0)
        # In egress the set holds exactly the peers that are meant, in ingress the selected pods.
        for peer in peers if direction == INGRESS else [b""]:
            yield peer + match + _ACCEPT


def pod_part(
    pod: PolicyPod, policies: Iterable[CompiledPolicy], labels_of_namespace: Mapping[str, str] | None
) -> PodPart:
    elements: set[SetElement] = set()
    selected: dict[str, list[str]] = {}
    packed = _packed(pod.address)
    for policy in policies:
        is_selected = policy.selects(pod)
        for direction, rules in policy.rules.items():
            if is_selected:
                selected.setdefault(direction, []).append(_policy_chain(policy, direction))
            for index, rule in enumerate(rules):
                if is_selected and direction == INGRESS and rule.named:
                    name = _set_name(policy, direction, index, _PORTS)
                    elements.update(SetElement(name, key) for key in _named_keys(pod, rule))
                elements.update(_peer_elements(pod, policy, direction, index, rule, labels_of_namespace))
    groups: dict[str, Rules] = {}
    for direction, chains in selected.items():
        name = f"{direction}-pods-{_digest(' '.join(sorted(chains)))}"
        groups[name] = (*(encoding.jump(chain) for chain in sorted(chains)), *_REFUSE)
        elements.add(SetElement(_MAPS[direction][0], packed, name))
    if selected:
        elements.add(SetElement(_SELF, packed + packed))
    return PodPart(frozenset(elements), groups)


def _peer_elements(
    pod: PolicyPod,
    policy: CompiledPolicy,
    direction: str,
    index: int,
    rule: CompiledPolicyRule,
    labels_of_namespace: Mapping[str, str] | None,
) -> Iterable[SetElement]:
    """What the pod adds as the other side of a rule."""
    is_peer = rule.selects(pod, policy.namespace, labels_of_namespace)
    kinds = _kinds_needed(rule, direction)
    if is_peer and not pod.only and _ADDRESSES in kinds:
        yield SetElement(_set_name(policy, direction, index, _ADDRESSES), _packed(pod.address))
    if direction == INGRESS or _PORTS not in kinds:
        return
    name = _set_name(policy, direction, index, _PORTS)
    if is_peer and pod.only:
        for protocol, number in pod.only:
            if rule.any_port or any((protocol, number) in each for each in rule.ports):
                yield SetElement(name, _port_key(pod.address, protocol, number))
    if is_peer or rule.anyone or any(pod.address in block for block in rule.blocks):
        for key in _named_keys(pod, rule):
            yield SetElement(name, key)


def _named_keys(pod: PolicyPod, rule: CompiledPolicyRule) -> Iterable[bytes]:
    for named in rule.named:
        for number in pod.numbers(named):
            yield _port_key(pod.address, named.protocol, number)


# --- parts of rules -------------------------------------------------------------------------------------------------


def _frame(nodes: NodeGateways) -> list[NetlinkMessage]:
    """The table with its base chains and empty maps; it must not exist."""
    messages = [nftables.add_table(TABLE)]
    for name, number in _MAPS.values():
        messages.append(encoding.add_verdict_map(TABLE, name, number, _ADDRESS, 4))
    messages.append(nftables.add_set(TABLE, _SELF, _SELF_ID, (_ADDRESS, _ADDRESS), 8))
    source = nftables.load_payload(nftables.NETWORK_HEADER, _SOURCE, 4)
    for chain, hook in (("egress", nftables.FORWARD), ("egress_to_node", nftables.INPUT)):
        messages += _base_chain(chain, hook, EGRESS)
        messages.append(nftables.add_rule(TABLE, chain, source, encoding.look_up_verdict(*_MAPS[EGRESS])))
    destination = nftables.load_payload(nftables.NETWORK_HEADER, _DESTINATION, 4)
    from_machine = nftables.load_meta(nftables.META_IIFNAME) + nftables.compare(
        nftables.EQUAL, HOST_DEVICE.encode().ljust(16, b"\0")
    )
    return [
        *messages,
        *_base_chain(INGRESS, nftables.FORWARD, INGRESS),
        nftables.add_rule(TABLE, INGRESS, from_machine, _ACCEPT),
        nftables.add_rule(TABLE, INGRESS, _from_node(nodes), _ACCEPT),
        nftables.add_rule(TABLE, INGRESS, destination, encoding.look_up_verdict(*_MAPS[INGRESS])),
    ]


def _base_chain(chain: str, hook: int, direction: str) -> list[NetlinkMessage]:
    states = struct.pack("=I", nftables.CT_ESTABLISHED | nftables.CT_RELATED)
    established = (
        nftables.load_conntrack(nftables.CT_STATE)
        + nftables.mask(states)
        + nftables.compare(nftables.NOT_EQUAL, bytes(4))
    )
    not_ipv4 = nftables.load_meta(nftables.META_NFPROTO) + nftables.compare(nftables.NOT_EQUAL, bytes([socket.AF_INET]))
    itself = (
        nftables.load_payload(nftables.NETWORK_HEADER, _SOURCE, 4, nftables.FIRST)
        + nftables.load_payload(nftables.NETWORK_HEADER, _DESTINATION, 4, nftables.SECOND_WORD)
        + nftables.lookup(_SELF, _SELF_ID)
    )
    return [
        nftables.add_chain(TABLE, chain, "filter", hook, _AFTER_THE_FENCE[direction]),
        nftables.add_rule(TABLE, chain, established, _ACCEPT),
        nftables.add_rule(TABLE, chain, not_ipv4, _ACCEPT),
        nftables.add_rule(TABLE, chain, itself, _ACCEPT),
    ]


def _from_node(nodes: NodeGateways) -> bytes:
    cluster = ipaddress.IPv4Network(nodes.cluster, strict=False)
    hosts = (1 << (32 - nodes.node_mask_size)) - 1
    load = nftables.load_payload(nftables.NETWORK_HEADER, _SOURCE, 4)
    return (
        load
        + nftables.mask(cluster.netmask.packed)
        + nftables.compare(nftables.EQUAL, cluster.network_address.packed)
        + load
        + nftables.mask(struct.pack(">I", hosts))
        + nftables.compare(nftables.EQUAL, struct.pack(">I", 1))
    )


def _in_block(block: AddressBlock, offset: int) -> bytes:
    made = _in_network(block.network, offset, nftables.EQUAL)
    return made + b"".join(_in_network(each, offset, nftables.NOT_EQUAL) for each in block.exceptions)


def _in_network(network: ipaddress.IPv4Network, offset: int, operator: int) -> bytes:
    load = nftables.load_payload(nftables.NETWORK_HEADER, offset, 4)
    return load + nftables.mask(network.netmask.packed) + nftables.compare(operator, network.network_address.packed)


def _protocol(number: int) -> bytes:
    return nftables.load_meta(nftables.META_L4PROTO) + nftables.compare(nftables.EQUAL, bytes([number]))


def _to_port(port: PolicyPorts) -> bytes:
    made = _protocol(port.protocol)
    load = nftables.load_payload(nftables.TRANSPORT_HEADER, 2, 2)
    if port.first == port.last:
        return made + load + nftables.compare(nftables.EQUAL, struct.pack(">H", port.first))
    if port.first:
        first = nftables.compare(encoding.AT_LEAST, struct.pack(">H", port.first))
        last = nftables.compare(encoding.AT_MOST, struct.pack(">H", port.last))
        made += load + first + last
    return made


def _destination_and_port() -> bytes:
    return (
        nftables.load_payload(nftables.NETWORK_HEADER, _DESTINATION, 4, nftables.FIRST)
        + nftables.load_meta(nftables.META_L4PROTO, nftables.SECOND_WORD)
        + nftables.load_payload(nftables.TRANSPORT_HEADER, 2, 2, _THIRD_WORD)
    )


_REFUSE: Rules = (
    _protocol(_TCP) + nftables.count() + nftables.reset_connection(),
    nftables.count() + nftables.refuse(),
)


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET, address)


def _port_key(address: str, protocol: int, port: int) -> bytes:
    return _packed(address) + struct.pack(">B3xH2x", protocol, port)


def _element_messages(elements: Iterable[SetElement], *, add: bool) -> list[NetlinkMessage]:
    by_set: dict[str, list[SetElement]] = {}
    for element in elements:
        by_set.setdefault(element.set, []).append(element)
    messages = []
    for name, found in by_set.items():
        for start in range(0, len(found), _ELEMENTS_IN_MESSAGE):
            part = found[start : start + _ELEMENTS_IN_MESSAGE]
            if not part[0].chain:
                change = nftables.add_elements if add else nftables.delete_elements
                messages.append(change(TABLE, name, [each.key for each in part]))
            elif add:
                messages.append(encoding.add_map_elements(TABLE, name, [(each.key, each.chain) for each in part]))
            else:
                messages.append(encoding.delete_map_elements(TABLE, name, [each.key for each in part]))
    return messages
