"""The bytes of netlink and nftables."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys

import pytest

from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.firewall import FirewallPlan, table_messages
from coterie.kube.network.pods.netlink import NESTED, attribute, attributes, nest, text
from root_kit import needs_root

GATEWAY, RANGE = "100.96.0.1", "100.96.0.0/16"

PROGRAM = """
import os
from coterie.base.linux_namespaces import CLONE_NEWNET, unshare
from coterie.kube.network.pods.firewall import Firewall, FirewallPlan
unshare(CLONE_NEWNET)
plan = FirewallPlan("100.96.0.1", "100.96.77.5/16", [("udp", 53), ("tcp", 80)], [("tcp", 8060)], 15001, True)
pods = [("p2", "100.96.0.2", "ordinary"), ("p3", "100.96.128.3", "engine"), ("p4", "100.96.128.4", "guest")]
Firewall().load(plan, pods, [("100.96.128.3", "100.96.128.5")])
os.execvp("nft", ["nft", "--stateless", "list", "ruleset"])
"""


def test_attributes_are_padded_to_words_and_read_back() -> None:
    packed = text(1, "lo") + attribute(2, b"") + nest(3, attribute(1, b"abcde"))
    assert packed[:8] == struct.pack("=HH", 7, 1) + b"lo\0\0"
    assert len(packed) % 4 == 0
    assert list(attributes(packed)) == [(1, b"lo\0"), (2, b""), (3, attribute(1, b"abcde"))]


def test_nested_attributes_carry_the_flag() -> None:
    assert struct.unpack_from("=HH", nest(4)) == (4, 4 | NESTED)


@pytest.mark.parametrize("data", [b"\0", b"\0\0\0\0", b"\xff\0\1\0abcd", b"\x03\0\1\0"])
def test_broken_attributes_end_the_reading(data: bytes) -> None:
    assert list(attributes(data)) == []


def test_a_batch_is_framed_for_nftables() -> None:
    begin, table, end = nftables.batch([nftables.add_table("coterie")])
    assert (begin.kind, end.kind) == (16, 17)
    assert begin.body == end.body == b"\0\0\0\x0a"
    assert (table.kind, table.body[:4]) == (10 << 8, b"\1\0\0\0")


def test_the_range_is_masked() -> None:
    plan = FirewallPlan(GATEWAY, "100.96.77.5/12", [])
    assert plan.pod_range == (bytes([100, 96, 0, 0]), bytes([255, 240, 0, 0]))


def test_the_relay_alone_brings_nat() -> None:
    def chains(plan: FirewallPlan) -> list[str]:
        return [message.what for message in table_messages(plan) if message.what.startswith("add chain")]

    filters = ["add chain antispoofing", "add chain input", "add chain forward"]
    domain = ["add chain egress_of_domain", "add chain output"]
    assert chains(FirewallPlan(GATEWAY, RANGE, [])) == filters
    assert chains(FirewallPlan(GATEWAY, RANGE, [], egress_for_pods=True)) == filters
    assert chains(FirewallPlan(GATEWAY, RANGE, [], relay_port=1)) == [*filters, *domain]
    plan = FirewallPlan(GATEWAY, RANGE, [], relay_port=1, egress_for_pods=True)
    assert chains(plan) == [*filters, *domain, "add chain egress_of_pods"]


@pytest.mark.skipif(not shutil.which("nft"), reason="nft is not installed")
@needs_root("makes a network namespace without a user namespace")
def test_nft_reads_what_we_wrote() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip("this machine allows no network namespaces")
    lines = [line.strip() for line in done.stdout.splitlines()]
    for wanted in (
        'iifname "p*" iifname . ip saddr @sources accept',
        'iifname "p*" counter drop',
        'iifname "p*" ip daddr 100.96.0.1 meta l4proto . th dport @ports accept',
        'iifname "p*" ip daddr 100.96.0.1 ip saddr != @guests meta l4proto . th dport @ports_not_for_guests accept',
        'iifname "p*" ip daddr 100.96.0.1 tcp dport 15001 ct status dnat accept',
        "type filter hook forward priority filter; policy drop;",
        "ct state established,related accept",
        "ip saddr @guests meta l4proto tcp counter reject with tcp reset",
        'iifname "p*" oifname "p*" ip saddr . ip daddr @peers accept',
        'iifname "p*" oifname "p*" ip saddr != @engines accept',
        "ip daddr 100.96.0.0/16 return",
        "meta nfproto ipv4 meta l4proto tcp redirect to :15001",
        "elements = { 100.96.128.3 . 100.96.128.5 }",
    ):
        assert wanted in lines, done.stdout + done.stderr


def test_imports_stay_few() -> None:
    """It runs inside the pod supervisor."""
    program = (
        "import sys; before = set(sys.modules)\n"
        "from coterie.kube.network.pods import firewall, links, namespaces\n"
        "print(*sorted({'typing', 'dataclasses', 'ipaddress', 're', 'asyncio', 'contextlib', 'logging'}"
        " & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
