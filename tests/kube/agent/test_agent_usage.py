"""What pods use, and the metrics they serve themselves, as the agent reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coterie.base.clock import VirtualClock
from coterie.kube.agent.runtimes.protocol import ContainerUsage
from coterie.kube.agent.server.pod_metrics import PodMetricsReader, parse
from coterie.kube.agent.server.usage import NodeUsage, UsageMeter
from coterie.kube.api.errors import ServiceUnavailable


class _Pod:
    def __init__(self, uid: str) -> None:
        self.uid, self.name, self.namespace = uid, uid, "default"


class _Runtime:
    """Containers that use CPU as time passes."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._start = clock.monotonic()
        self.rates: dict[str, int] = {"a": 250_000_000}
        self.reads = 0
        self.connect: Callable[[int], Any] = lambda port: None

    def pods(self) -> list[_Pod]:
        return [_Pod(uid) for uid in self.rates]

    async def usage(self, uid: str) -> dict[str, ContainerUsage]:
        self.reads += 1
        seconds = self._clock.monotonic() - self._start
        return {"main": ContainerUsage(int(self.rates[uid] * seconds), 2**20, 0)}

    async def dial(self, uid: str, port: int) -> Any:
        return await self.connect(port)


def _meter(clock: VirtualClock) -> tuple[UsageMeter, Any]:
    runtime: Any = _Runtime(clock)
    return UsageMeter(runtime, lambda: NodeUsage(10**9, 2**30), clock), runtime


async def _summary(meter: UsageMeter, clock: VirtualClock) -> dict[str, Any]:
    asking = asyncio.ensure_future(meter.summary("n"))
    for _ in range(30):
        if asking.done():
            break
        await clock.advance(0.1)
    return await asking


def _cpu(summary: dict[str, Any]) -> dict[str, tuple[int, float]]:
    return {
        pod["podRef"]["uid"]: (cpu["usageNanoCores"], cpu["windowSeconds"])
        for pod in summary["pods"]
        for cpu in (pod["containers"][0]["cpu"],)
    }


async def test_the_first_answer_has_a_rate_already() -> None:
    """It used to be 0, which an autoscaler would take for an idle pod."""
    clock = VirtualClock()
    meter, _ = _meter(clock)
    rate, window = _cpu(await _summary(meter, clock))["a"]
    assert rate == pytest.approx(250_000_000, rel=0.01) and 1.0 <= window <= 1.2


async def test_later_answers_use_the_last_one_and_do_not_wait() -> None:
    clock = VirtualClock()
    meter, runtime = _meter(clock)
    await _summary(meter, clock)
    runtime.reads = 0
    await clock.advance(15)
    found = await meter.summary("n")
    assert runtime.reads == 1
    assert _cpu(found)["a"][1] == pytest.approx(15, abs=1)


async def test_old_measurements_do_not_blur_the_present() -> None:
    clock = VirtualClock()
    meter, runtime = _meter(clock)
    await _summary(meter, clock)
    await clock.advance(3600)
    runtime.rates["b"] = 10
    assert _cpu(await _summary(meter, clock))["a"][1] <= 1.2


async def test_a_restarted_container_starts_anew() -> None:
    clock = VirtualClock()
    meter, runtime = _meter(clock)
    await _summary(meter, clock)
    runtime._start = clock.monotonic()
    await clock.advance(0.5)
    rate, window = _cpu(await _summary(meter, clock))["a"]
    assert rate == pytest.approx(250_000_000, rel=0.01) and window <= 1.2


TEXT = """
# HELP queue_length Jobs that wait.
# TYPE queue_length gauge
queue_length{name="a",kind="x\\"y"} 3
queue_length{name="b"} 4.5 1700000000000
queue_length_max 99
http_requests_total{code="200"} 1000
http_requests_total{code="500"} 10
broken{ 1
bad NaN
"""


def test_the_text_format() -> None:
    found = list(parse(TEXT, {"queue_length"}))
    assert [(dict(each.labels), each.value) for each in found] == [
        ({"kind": 'x"y', "name": "a"}, 3.0),
        ({"name": "b"}, 4.5),
    ]
    assert list(parse(TEXT, {"broken", "bad"})) == []


class _Writer:
    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


def _serving(text: str, status: str = "200 OK", chunked: bool = False) -> Callable[[int], Any]:
    async def connect(port: int) -> Any:
        reader = asyncio.StreamReader()
        body = text.encode()
        if chunked:
            framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            reader.feed_data(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + framed)
        else:
            reader.feed_data(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        reader.feed_eof()
        return reader, _Writer()

    return connect


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_gauge_is_read_as_it_is(chunked: bool) -> None:
    clock = VirtualClock()
    _, runtime = _meter(clock)
    runtime.connect = _serving(TEXT, chunked=chunked)
    found = await PodMetricsReader(runtime, clock).read("a", 8080, "/metrics", "queue_length")
    assert [each["value"] for each in found["samples"]] == [3.0, 4.5]


async def test_a_counter_becomes_a_rate_with_the_second_reading() -> None:
    clock = VirtualClock()
    _, runtime = _meter(clock)
    reader = PodMetricsReader(runtime, clock)
    runtime.connect = _serving(TEXT)
    assert (await reader.read("a", 8080, "/metrics", "http_requests_per_second"))["samples"] == []
    await clock.advance(10)
    runtime.connect = _serving(TEXT.replace("} 1000", "} 1050"))
    found = (await reader.read("a", 8080, "/metrics", "http_requests_per_second"))["samples"]
    assert [(each["labels"], each["value"], each["windowSeconds"]) for each in found] == [
        ({"code": "200"}, 5.0, 10.0),
        ({"code": "500"}, 0.0, 10.0),
    ]
    await clock.advance(10)
    runtime.connect = _serving("http_requests_total 7\n")
    assert (await reader.read("a", 8080, "/metrics", "http_requests_per_second"))["samples"] == [], "it restarted"


async def test_a_pod_that_does_not_serve_is_unavailable() -> None:
    clock = VirtualClock()
    _, runtime = _meter(clock)
    runtime.connect = _serving("no", "404 Not Found")
    with pytest.raises(ServiceUnavailable, match="status 404"):
        await PodMetricsReader(runtime, clock).read("a", 8080, "/metrics", "m")
