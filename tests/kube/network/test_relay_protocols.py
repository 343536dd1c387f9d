"""What the relay says and decides: PROXY protocol, egress policy, control messages, addresses."""

from __future__ import annotations

import pytest
from relay_kit import parse_proxy_v2

from coterie.kube.network.rootless import messages
from coterie.kube.network.rootless.addresses import in_network, joined, packed, split_address
from coterie.kube.network.rootless.egress import EgressPolicy
from coterie.kube.network.rootless.proxy_protocol import header
from coterie.kube.network.rootless.relay import connections_possible
from coterie.kube.network.rootless.sockets import is_machine_address

POLICY = EgressPolicy("100.96.0.1", "100.96.0.0/16", True)
CLOSED = EgressPolicy("100.96.0.1", "100.96.0.0/16", False)


@pytest.mark.parametrize(
    ("source", "destination", "seen"),
    [
        (("192.0.2.7", 40000), ("198.51.100.1", 1080), (("192.0.2.7", 40000), ("198.51.100.1", 1080))),
        (("2001:db8::7", 1), ("2001:db8::1", 65535), (("2001:db8::7", 1), ("2001:db8::1", 65535))),
        (("::ffff:192.0.2.7", 9), ("::ffff:192.0.2.1", 80), (("192.0.2.7", 9), ("192.0.2.1", 80))),
        (("192.0.2.7", 9), ("2001:db8::1", 80), (("::ffff:192.0.2.7", 9), ("2001:db8::1", 80))),
        (("fe80::1%eth0", 9), ("fe80::2", 80), (("fe80::1", 9), ("fe80::2", 80))),
    ],
)
def test_the_header_names_both_ends(
    source: tuple[str, int], destination: tuple[str, int], seen: tuple[tuple[str, int], tuple[str, int]]
) -> None:
    assert parse_proxy_v2(header(source, destination) + b"rest") == (*seen, b"rest")


def test_the_header_is_the_one_of_the_specification() -> None:
    assert header(("1.2.3.4", 0x1234), ("5.6.7.8", 80)) == bytes.fromhex(
        "0d0a0d0a000d0a515549540a 21 11 000c 01020304 05060708 1234 0050"
    )


@pytest.mark.parametrize("host", ["93.184.216.34", "10.0.0.5", "192.168.1.1", "127.0.0.1", "169.254.169.254"])
@pytest.mark.parametrize("peer", ["100.96.0.1", "127.0.0.1"])
@pytest.mark.parametrize("policy", [POLICY, CLOSED])
def test_the_domains_own_processes_reach_everything(policy: EgressPolicy, peer: str, host: str) -> None:
    assert policy.refusal(peer, (host, 443), lambda _: True) == ""


@pytest.mark.parametrize("host", ["93.184.216.34", "10.0.0.5", "192.168.1.1"])
def test_a_pod_reaches_the_outside_when_egress_is_enabled(host: str) -> None:
    assert POLICY.refusal("100.96.0.9", (host, 443), lambda _: False) == ""
    assert "disabled" in CLOSED.refusal("100.96.0.9", (host, 443), lambda _: False)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "169.254.169.254", "224.0.0.1", "239.255.255.250", "255.255.255.255",
        "240.0.0.1", "100.96.0.1", "100.96.7.7", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        "::1", "fe80::1", "2001:db8::1", "::ffff:127.0.0.1",
    ],
)  # fmt: skip
def test_a_pod_never_reaches(host: str) -> None:
    assert "reserved" in POLICY.refusal("100.96.0.9", (host, 443), lambda _: False)


def test_a_pod_never_reaches_the_machine_itself() -> None:
    assert "machine" in POLICY.refusal("100.96.0.9", ("192.0.2.1", 443), lambda host: host == "192.0.2.1")


@pytest.mark.parametrize("peer", ["100.97.0.1", "10.0.0.1", "::1"])
def test_an_unknown_source_reaches_nothing(peer: str) -> None:
    assert "unknown" in POLICY.refusal(peer, ("93.184.216.34", 443), lambda _: False)


def test_nothing_is_allowed_before_there_is_a_configuration() -> None:
    assert EgressPolicy().refusal("100.96.0.9", ("93.184.216.34", 443), lambda _: False)


def test_addresses_of_the_machine() -> None:
    assert is_machine_address("127.0.0.1")
    assert not is_machine_address("198.51.100.77")


def test_networks() -> None:
    assert in_network(packed("100.96.255.255"), "100.96.0.0/16")
    assert not in_network(packed("100.97.0.0"), "100.96.0.0/16")
    assert in_network(packed("1.2.3.4"), "0.0.0.0/0")
    assert not in_network(packed("::1"), "0.0.0.0/0")
    for wrong in ("100.96.0.0/33", "x/8"):
        with pytest.raises(ValueError):
            in_network(packed("1.2.3.4"), wrong)


def test_addresses_with_a_port() -> None:
    assert split_address("[::1]:1080") == ("::1", 1080) and joined("::1", 1080) == "[::1]:1080"
    assert split_address("127.0.1.1:80") == ("127.0.1.1", 80)
    for wrong in ("localhost:80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", ":80", "127.0.0.1:-1"):
        with pytest.raises(ValueError):
            split_address(wrong)


def test_messages_come_back_as_they_were_sent() -> None:
    pairs = [("listen", "a"), ("listen", "b c"), ("target", "/tmp/\udcff x"), ("inner-key", "")]
    assert messages.decode(messages.encode("configure", pairs)) == ("configure", pairs)
    assert messages.one(pairs, "listen") == "a" and messages.one(pairs, "other", "-") == "-"


def test_a_value_cannot_smuggle_a_line() -> None:
    with pytest.raises(messages.MessageError):
        messages.encode("configure", [("target", "x\negress yes")])
    with pytest.raises(messages.MessageError):
        messages.decode(b"configure\nalone")


@pytest.mark.parametrize(("descriptors", "connections"), [(1024, 80), (20_000, 1661), (1 << 20, 8192), (10, 1)])
def test_connections_follow_the_limit_of_open_files(descriptors: int, connections: int) -> None:
    assert connections_possible(descriptors) == connections
