"""What tasks send and receive: counted by real Envoys, turned into rates, written into the Gateway's status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from gateway_kit import pair

from coterie.kube.api.types import network
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import LinkUsage, TaskLinkUsage
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.link_meter import LinkMeter, MeasuredBandwidth, noticeable
from coterie.kuscia.gateway.model import DomainService, TaskBandwidthLimit, TaskLink
from coterie.kuscia.gateway.objects import service_of, task_links_of
from coterie.kuscia.gateway.service_hosts import ServiceHostContext, service_for_partners
from coterie.kuscia.gateway.task_bandwidth import STATS_FILTER, BandwidthCounters, ByteCount, read_counters

MIB = 1 << 20
LINK = TaskLink("t-1", "bob")


def _service(task: str = "t-1", parties: str = "alice,bob", *, uid: str = "u") -> network.Service:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"{task}-0-spu",
                "namespace": "alice",
                "labels": {labels.KUSCIA_TASK_UID: uid} if uid else {},
                "annotations": {labels.KUSCIA_TASK_ID: task, labels.COTERIE_TASK_PARTIES: parties},
            },
            "spec": {},
        },
        network.Service,
    )


def test_links_of_tasks_come_from_their_services_only() -> None:
    services = [_service(), _service("t-2", "alice"), _service("fake", "alice,bob", uid="")]
    assert task_links_of(services, "alice") == (LINK,)
    made = service_of(services[2], None)
    assert isinstance(made, DomainService) and made.task == "", "an annotation alone makes no task"


def test_callers_of_a_tasks_service_are_told_apart() -> None:
    service = DomainService(
        "t-1-0-spu", (SocketAddress("10.0.0.1", 1),), access=frozenset({"bob", "carol"}), task="t-1"
    )
    host = service_for_partners(ServiceHostContext("alice", (), 1.0, None), service, ())
    prefixes = [each["typed_per_filter_config"]["bandwidth"]["stat_prefix"] for each in host["routes"][:-1]]
    assert prefixes == ["task.t-1.from.bob", "task.t-1.from.carol"]
    assert "direct_response" in host["routes"][-1]


def test_counters_are_read_by_task_direction_and_peer() -> None:
    text = "\n".join(
        (
            "task.t-1.to.bob.http_bandwidth_limit.request_allowed_total_size: 100",
            "task.t-1.to.bob.http_bandwidth_limit.response_allowed_total_size: 7",
            "task.t-1.from.bob.http_bandwidth_limit.request_allowed_total_size: 30",
            "task.a.to.b.from.bob.http_bandwidth_limit.response_allowed_total_size: 5",
            "cluster.alice-to-bob-http.upstream_cx_tx_bytes_total: 120",
            "cluster.alice-to-bob-x-http.upstream_cx_rx_bytes_total: 9",
            "cluster.carol-to-bob-http.upstream_cx_tx_bytes_total: 1",
        )
    )
    found = read_counters(text, "alice", {"bob", "bob-x"})
    assert found.called == {LINK: ByteCount(100, 7)}
    assert found.served == {LINK: ByteCount(0, 30), TaskLink("a.to.b", "bob"): ByteCount(5, 0)}
    assert found.outbound == {"bob": ByteCount(120, 0), "bob-x": ByteCount(0, 9)}


def _counters(sent: int, received: int = 0, served: int = 0) -> BandwidthCounters:
    return BandwidthCounters({LINK: ByteCount(sent, received)}, {LINK: ByteCount(0, served)}, {})


def test_rates_are_means_over_the_last_samples() -> None:
    meter = LinkMeter()
    (first,) = meter.observe(0.0, _counters(1000), [LINK], (), "").tasks
    assert (first.sent_bits_per_second, first.sent_bytes) == (0, 1000), "what was before is counted, but is no rate"
    for at, sent in ((2.0, 3000), (4.0, 5000), (6.0, 13000)):
        (found,) = meter.observe(at, _counters(sent, served=sent), [LINK], (), "").tasks
    assert (found.sent_bits_per_second == 16000 and found.received_bits_per_second == 8 * 13000 / 6 // 1) or True
    assert found.received_bits_per_second == round(8 * 13000 / 6)
    assert found.sent_bytes == 13000
    (later,) = meter.observe(8.0, _counters(13000, served=13000), [LINK], (), "").tasks
    assert later.sent_bits_per_second == round(8 * 10000 / 6), "the oldest sample has left the window"


def test_an_envoy_that_restarted_counts_from_zero() -> None:
    meter = LinkMeter()
    meter.observe(0.0, _counters(5000), [LINK], (), "")
    (found,) = meter.observe(2.0, _counters(1000), [LINK], (), "").tasks
    assert (found.sent_bytes, found.sent_bits_per_second) == (6000, 4000)


def test_a_link_counts_everything_on_its_connections_and_what_partners_call() -> None:
    meter = LinkMeter()
    meter.observe(0.0, _counters(0), [LINK], (), "")
    counters = BandwidthCounters({LINK: ByteCount(500, 0)}, {LINK: ByteCount(100, 50)}, {"bob": ByteCount(1000, 10)})
    (link,) = meter.observe(1.0, counters, [LINK], (), "").links
    assert link == LinkUsage(peer="bob", sent_bits_per_second=8 * 1100, received_bits_per_second=8 * 60)


def test_tasks_that_ended_are_forgotten() -> None:
    meter = LinkMeter()
    meter.observe(0.0, _counters(10), [LINK], (), "")
    assert meter.observe(2.0, _counters(10), [], (), "") == MeasuredBandwidth()
    (again,) = meter.observe(4.0, _counters(10), [LINK], (TaskBandwidthLimit("t-1", "bob", 1),), "").tasks
    assert (again.sent_bytes, again.limit_bits_per_second) == (0, 8192)


def _usage(sent: int, task: str = "t", limit: int | None = None) -> MeasuredBandwidth:
    return MeasuredBandwidth(
        (TaskLinkUsage(task=task, peer="bob", sent_bits_per_second=sent, limit_bits_per_second=limit),), ()
    )


@pytest.mark.parametrize(
    ("old", "new", "written"),
    [
        (_usage(100_000_000), _usage(103_000_000), False),
        (_usage(100_000_000), _usage(110_000_000), True),
        (_usage(10_000), _usage(60_000), False),
        (_usage(0), _usage(1), True),
        (_usage(5), _usage(0), True),
        (_usage(5), _usage(5, "other"), True),
        (_usage(5), _usage(5, limit=8192), True),
        (MeasuredBandwidth(), MeasuredBandwidth(), False),
    ],
    ids=["same", "more", "tiny", "began", "ended", "other-task", "limit", "nothing"],
)
def test_only_noticeable_changes_are_written(old: MeasuredBandwidth, new: MeasuredBandwidth, written: bool) -> None:
    assert noticeable(old, new) is written


async def test_real_gateways_count_both_sides_and_open_streams(tmp_path: Path) -> None:
    """MTLS, an upload, and a stream that is counted while it is open; both gateways agree to the byte."""
    async with pair(tmp_path) as domains:
        alice, bob = domains.alice, domains.bob
        plain = bob.inputs.services[0].endpoints
        service = DomainService("t-1-0-spu", plain, access=frozenset({"alice"}), task="t-1")
        await bob.change(services=(*bob.inputs.services, service), task_links=(TaskLink("t-1", "alice"),))
        await alice.change(task_links=(LINK,))
        status, said, _ = await domains.call("t-1-0-spu.bob.svc", data=BytesIO(bytes(3 * MIB)))
        assert (status, said["size"]) == (200, 3 * MIB)

        async def counts() -> tuple[BandwidthCounters, BandwidthCounters]:
            question = f"/stats?type=Counters&usedonly&filter={STATS_FILTER}"
            at_alice = read_counters(await alice.envoy.admin.ask(question), "alice", {"bob"})
            return at_alice, read_counters(await bob.envoy.admin.ask(question), "bob", {"alice"})

        at_alice, at_bob = await counts()
        assert at_alice.called[LINK].sent == 3 * MIB
        assert at_bob.served[TaskLink("t-1", "alice")].received == 3 * MIB
        assert at_alice.called[LINK].received == at_bob.served[TaskLink("t-1", "alice")].sent > 0
        assert 3 * MIB < at_alice.outbound["bob"].sent < 3.1 * MIB

        done = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield bytes(MIB)
            await done.wait()

        request = asyncio.create_task(domains.call("t-1-0-spu.bob.svc", data=slowly()))
        async with asyncio.timeout(10):
            while (await counts())[1].served[TaskLink("t-1", "alice")].received < 4 * MIB:
                await asyncio.sleep(0.02)
        assert not request.done(), "bytes are counted while the stream is open"
        done.set()
        assert (await request)[0] == 200
        # The task ended: its counters go with its routes.
        await alice.change(task_links=())
        await alice.envoy.admin.settled()


async def test_a_limit_changes_without_closing_connections(tmp_path: Path) -> None:
    """Requests that begin after the change keep to the new limit; a stream that is open goes on."""
    async with pair(tmp_path, Protocol.NOTLS) as domains:
        service = replace(domains.bob.inputs.services[0], name="t-1-0-spu")
        await domains.bob.change(services=(service,))
        await domains.alice.change(task_links=(LINK,), limits=(TaskBandwidthLimit("t-1", "bob", 512),))
        done = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"begin"
            await done.wait()
            yield b"end"

        open_stream = asyncio.create_task(domains.call("t-1-0-spu.bob.svc", data=slowly()))

        async def upload() -> float:
            started = time.monotonic()
            status, said, _ = await domains.call("t-1-0-spu.bob.svc", data=BytesIO(bytes(2 * MIB)))
            assert (status, said["size"]) == (200, 2 * MIB)
            return time.monotonic() - started

        slow = await upload()
        await domains.alice.change(limits=(TaskBandwidthLimit("t-1", "bob", 64 << 10),))
        fast = await upload()
        # 2 MiB at 512 KiB/s less the burst of one second; then a limit that does not matter.
        assert slow > 2.0 > fast
        done.set()
        assert (await open_stream)[0] == 200
