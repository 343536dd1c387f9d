"""Which peers are on the link, and which of them answer there."""

from __future__ import annotations

import pytest

from coterie.kube.network.overlay.link_filter import key_of
from coterie.kube.network.overlay.link_paths import (
    INTERVAL,
    LOST_AFTER,
    RARE_INTERVAL,
    UNUSED_AFTER_LOSS,
    LinkMessage,
    LinkPaths,
    decode,
)
from coterie.kube.network.overlay.plan import OverlaySettings, PeerNode, link_mac_of, on_link

OWN = OverlaySettings("node-1", "10.0.0.1", "100.96.0.0/20", "100.96.0.0/16", "100.112.0.0/16", 7)
A, B = "100.96.0.0/20", "100.96.16.0/20"
ADDRESS_OF = {A: "100.96.0.1", B: "100.96.16.1"}


def peer(number: int, prefix: int = 20) -> PeerNode:
    return PeerNode(f"node-{number}", f"10.0.0.{number}", f"100.96.{16 * number}.0/{prefix}")


def test_peers_on_the_link_are_those_that_the_card_reaches_without_a_router() -> None:
    peers = {each.pod_cidr: each for each in (peer(2), peer(3), peer(4), peer(5))}
    directly = {"10.0.0.2": 7, "10.0.0.3": 0, "10.0.0.4": 8}
    assert on_link(OWN, peers, directly, 7) == {peer(2).pod_cidr: peer(2)}


def test_without_a_card_nobody_is_on_the_link() -> None:
    assert on_link(OWN, {peer(2).pod_cidr: peer(2)}, {"10.0.0.2": 0}, 0) == {}


def test_a_range_of_another_length_is_left_to_vxlan() -> None:
    """The filter of the link compares with one mask."""
    odd = peer(2, 22)
    assert on_link(OWN, {odd.pod_cidr: odd}, {odd.outer: 7}, 7) == {}


def test_link_layer_addresses_differ_by_domain_and_node() -> None:
    found = {link_mac_of(vni, node) for vni in (1, 11, 0xFFFFFF) for node in ("a", "b", "1 a", "1a")}
    assert len(found) == 12
    assert all(mac[0] & 3 == 2 and len(mac) == 6 for mac in found)  # locally administered, of one device
    assert link_mac_of(7, "node-1") == link_mac_of(7, "node-1")


def test_the_key_of_a_node_in_the_filter() -> None:
    assert key_of(b"\x02\1\2\3\4\5", "100.96.16.0/20") == b"\x02\1\2\3\4\5\0\0\x64\x60\x10\0"


@pytest.mark.parametrize("data", [b"", b"x" * 14, LinkMessage(hears=True).encode() + b"\0", b"coterie-link\2\1"])
def test_other_messages_are_ignored(data: bytes) -> None:
    assert decode(data) is None


class Ends:
    """The two ends of a link that can lose messages in either direction."""

    def __init__(self) -> None:
        self.now = 0.0
        self.paths = {A: LinkPaths(), B: LinkPaths()}
        self.paths[A].follow({B: ADDRESS_OF[B]})
        self.paths[B].follow({A: ADDRESS_OF[A]})
        self.lost_from: set[str] = set()
        self.sent = 0

    def tick(self) -> None:
        for end, paths in self.paths.items():
            self.deliver(end, paths.due(self.now))

    def deliver(self, sender: str, messages: list[tuple[str, LinkMessage]]) -> None:
        receiver = B if sender == A else A
        for address, message in messages:
            assert address == ADDRESS_OF[receiver]
            self.sent += 1
            if sender not in self.lost_from:
                copy = decode(message.encode())
                assert copy == message
                self.deliver(receiver, self.paths[receiver].received(ADDRESS_OF[sender], message, self.now))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.tick()
            self.now += INTERVAL

    @property
    def used(self) -> tuple[bool, bool]:
        return bool(self.paths[A].answering(self.now)), bool(self.paths[B].answering(self.now))


def test_a_link_that_works_is_used_after_three_messages() -> None:
    ends = Ends()
    ends.deliver(A, ends.paths[A].due(0))
    assert ends.used == (True, True)
    assert ends.sent == 3


def test_a_link_that_never_answers_is_never_used_and_asked_rarely() -> None:
    ends = Ends()
    ends.lost_from = {A, B}
    ends.run(300)
    assert ends.used == (False, False)
    assert ends.sent <= 2 * (11 + 300 / RARE_INTERVAL)


@pytest.mark.parametrize("lost", [{A}, {B}, {A, B}])
def test_a_link_that_stops_in_any_direction_is_left_by_both(lost: set[str]) -> None:
    ends = Ends()
    ends.run(3)
    assert ends.used == (True, True)
    ends.lost_from = lost
    ends.run(2 * LOST_AFTER)
    assert ends.used == (False, False)


def test_one_lost_message_changes_nothing() -> None:
    ends = Ends()
    ends.run(3)
    ends.lost_from = {A, B}
    ends.run(2)
    assert ends.used == (True, True)
    ends.lost_from = set()
    ends.run(1)
    assert ends.used == (True, True)


def test_a_link_that_failed_is_used_again_after_a_while() -> None:
    ends = Ends()
    ends.run(3)
    ends.lost_from = {A}
    ends.run(8)
    assert ends.used == (False, False)
    ends.lost_from = set()
    ends.run(2)
    assert ends.used == (False, False)
    ends.run(UNUSED_AFTER_LOSS + RARE_INTERVAL)
    assert ends.used == (True, True)


def test_who_leaves_is_left_at_once_and_may_return_at_once() -> None:
    ends = Ends()
    ends.run(3)
    ends.deliver(A, ends.paths[A].leaving_messages())
    assert ends.used[1] is False
    ends.paths[A] = LinkPaths()
    ends.paths[A].follow({B: ADDRESS_OF[B]})
    ends.now += 2
    ends.tick()
    assert ends.used == (True, True)


def test_messages_of_others_count_for_nothing() -> None:
    paths = LinkPaths()
    paths.follow({B: ADDRESS_OF[B]})
    assert paths.received("100.96.32.1", LinkMessage(hears=True), 0) == []
    assert paths.answering(0) == frozenset()


def test_a_peer_that_stays_keeps_its_path() -> None:
    paths = LinkPaths()
    paths.follow({B: ADDRESS_OF[B]})
    paths.received(ADDRESS_OF[B], LinkMessage(hears=True), 0)
    paths.follow({B: ADDRESS_OF[B], "100.96.32.0/20": "100.96.32.1"})
    assert paths.answering(0) == {B}
    paths.follow({})
    assert paths.answering(0) == frozenset()
    assert paths.due(100) == []
