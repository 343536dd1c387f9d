"""One page of several sources: a source that fails or hangs is named and does not keep the others from being read."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
from collections.abc import Sequence

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.exposition import MAX_ROWS, Family
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.messages import Peer, Request
from coterie.kube.metrics.endpoint import MetricsEndpoint, ScrapeAccess
from coterie.kube.metrics.machine import MachineSource
from coterie.kube.metrics.sources import MetricsPage, SampledSource, SourceFailed


class Source:
    def __init__(self, name: str, *answers: object) -> None:
        self.name = name
        self.asked = 0
        self._answers = answers

    async def families(self) -> Sequence[Family]:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return [Family(self.name, "Help.", "gauge", [("", answer)])]  # type: ignore[list-item]


async def test_sources_that_fail_or_hang_are_named() -> None:
    page = MetricsPage(
        [
            Source("good", 1),
            Source("broken", SourceFailed("no")),
            Source("gone", OSError(2, "gone")),
            Source("slow", None),
        ],
        deadline=0.01,
    )
    lines = (await page.text()).splitlines()
    assert "good 1" in lines
    up = [line for line in lines if line.startswith("coterie_source_up{")]
    assert up == [
        'coterie_source_up{source="good"} 1',
        'coterie_source_up{source="broken"} 0',
        'coterie_source_up{source="gone"} 0',
        'coterie_source_up{source="slow"} 0',
    ]


async def test_a_slow_source_is_sampled_only_while_somebody_scrapes() -> None:
    clock, source = VirtualClock(), Source("pods", 1, 2, SourceFailed("no"), 4)
    async with TaskOwner("metrics") as owner:
        sampled = SampledSource(source, clock, owner, lasts=10)

        async def value() -> float:
            found = (await sampled.families())[0].rows[0][1]
            await asyncio.sleep(0)
            return found

        assert await value() == 1
        await clock.advance(9)
        assert (await value(), source.asked) == (1, 1)
        await clock.advance(1)
        assert await value() == 1, "the last sample, while the next is made"
        assert (await value(), source.asked) == (2, 2)
        await clock.advance(10)
        await value()
        with pytest.raises(SourceFailed, match="no"):
            await value()
        await clock.advance(10)
        with pytest.raises(SourceFailed):
            await value()
        await asyncio.sleep(0)
        assert await value() == 4


ACCESS = ScrapeAccess([ipaddress.ip_network("10.1.0.0/16")], SecretValue("s3cret"))


@pytest.mark.parametrize(
    ("address", "authorization", "allowed"),
    [
        ("127.0.0.1", "", True), ("::1", "", True), ("::ffff:127.0.0.1", "", True), ("10.1.2.3", "", True),
        ("::ffff:10.1.2.3", "", True), ("10.2.0.1", "", False), ("192.0.2.7", "Bearer s3cret", True),
        ("192.0.2.7", "bearer s3cret ", True), ("192.0.2.7", "Bearer s3cre", False), ("192.0.2.7", "Bearer ", False),
        ("192.0.2.7", "Basic s3cret", False), ("192.0.2.7", "", False), ("", "", False), ("unknown", "", False),
        ("127.0.0.1", "Bearer wrong", False),
    ],
)  # fmt: skip
def test_who_may_scrape(address: str, authorization: str, allowed: bool) -> None:
    assert ACCESS.allows(address, authorization) is allowed


def test_without_a_token_none_is_right() -> None:
    assert not ScrapeAccess().allows("192.0.2.7", "Bearer ")
    assert not ScrapeAccess().allows("192.0.2.7", "Bearer x")


async def test_the_endpoint() -> None:
    endpoint = MetricsEndpoint(MetricsPage([Source("good", 1)]), ACCESS)

    def request(method: str = "GET", path: str = "/metrics", address: str = "127.0.0.1", **headers: str) -> Request:
        return Request(method, path, headers=headers, peer=Peer(address))

    answer = await endpoint.handle(request())
    assert (answer.status, answer.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"good 1\n" in answer.body
    refused = await endpoint.handle(request(address="192.0.2.7"))
    assert (refused.status, b"good" in refused.body) == (401, False)
    assert (await endpoint.handle(request(path="/other"))).status == 404
    assert (await endpoint.handle(request("POST"))).status == 405


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        # Prometheus 2.42, Prometheus 3, curl, a browser
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3", True),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("", False),
        ("APPLICATION/OpenMetrics-Text ; Version=1.0.0", True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nonsense", False),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.5", False),
        (";;,,;q=", False),
    ],
)
async def test_which_format(accept: str, openmetrics: bool) -> None:
    endpoint = MetricsEndpoint(MetricsPage([Source("good", 1)]), ACCESS)
    answer = await endpoint.handle(Request("GET", "/metrics", headers={"accept": accept}, peer=Peer("127.0.0.1")))
    assert answer.content_type.startswith("application/openmetrics-text" if openmetrics else "text/plain")
    assert answer.body.endswith(b"# EOF\n") is openmetrics


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "s3cret"},
        {"x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1", "x-real-ip": "127.0.0.1"},
        {"host": "localhost", "x-remote-user": "system:admin"},
        {"cookie": "token=s3cret"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/metrics", "/", "/metrics?token=s3cret", "/other"])
async def test_somebody_from_elsewhere_learns_nothing(headers: dict[str, str], path: str) -> None:
    """Neither figures, nor which paths there are, nor whether sources are asked."""
    source = Source("good", 1)
    endpoint = MetricsEndpoint(MetricsPage([source]), ACCESS)
    answer = await endpoint.handle(Request("GET", path, headers=headers, peer=Peer("192.0.2.7")))
    assert answer.status == 401
    assert b"good" not in answer.body and b"s3cret" not in answer.body
    assert source.asked == 0


async def test_a_long_page_is_compressed_for_whom_it_helps() -> None:
    endpoint = MetricsEndpoint(MetricsPage([MachineSource()]), ScrapeAccess())
    peer = Peer("127.0.0.1")
    answer = await endpoint.handle(Request("GET", "/metrics", headers={"accept-encoding": "gzip"}, peer=peer))
    assert ("Content-Encoding", "gzip") in answer.headers
    assert b"node_load1 " in gzip.decompress(answer.body)


class Many:
    name = "many"

    async def families(self) -> Sequence[Family]:
        return [Family("many", "Many.", "gauge", [(f'n="{n}"', n) for n in range(MAX_ROWS + 3)])]


async def test_a_family_is_cut_and_what_is_dropped_is_counted() -> None:
    page = MetricsPage([Many()])
    assert (await page.text()).count("\nmany{") == MAX_ROWS
    assert 'coterie_series_dropped_total{family="many"} 6' in (await page.text()).splitlines(), (
        "three in each of two pages"
    )
