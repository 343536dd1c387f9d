"""Links between two real Envoys are measured, with a middlebox in between that spoils them in one way at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from diagnosis_kit import DiagnosedPair, diagnosed_pair, kuscia_endpoint
from gateway_kit import HOSTS, pem

from coterie.base import pki
from coterie.cli.diagnosis.judge import link_findings
from coterie.cli.diagnosis.model import Link, LinkFacts, LinkThresholds, Measured, every_pair
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.diagnosis import messages
from coterie.kuscia.gateway.diagnosis.messages import FactsRequest, LinkReport, ProbePlan
from coterie.kuscia.gateway.model import DomainService
from coterie.kuscia.routes.facts import CheckOutcome

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIB = 1 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DiagnosedPair]:
    """Plain text, with a proxy that reads HTTP/1.1 in between."""
    async with diagnosed_pair(tmp_path_factory.mktemp("dg"), Protocol.NOTLS) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mtls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DiagnosedPair]:
    async with diagnosed_pair(tmp_path_factory.mktemp("dg"), Protocol.MTLS) as made:
        yield made


@pytest.fixture(autouse=True)
def _harmless(request: pytest.FixtureRequest) -> None:
    for name in {"plain", "mtls"} & set(request.fixturenames):
        request.getfixturevalue(name).box.reset()


def judged(report: LinkReport, *, warnings: bool = False) -> dict[str, str]:
    """What `coterie diagnose` calls wrong, with its sentence. Plain text between the gateways is the test's own doing."""
    facts = LinkFacts(Link("alice", "bob"), Measured.HERE, report)
    found = link_findings(facts, every_pair(("alice", "bob")), ProbePlan(), LinkThresholds())
    bad = {CheckOutcome.WRONG, *([CheckOutcome.WARNING] if warnings else [])}
    return {each.step: f"{each.message} {each.advice}" for each in found if each.verdict in bad and each.step != "mtls"}


async def test_a_sound_link_has_nothing_to_complain_of(mtls: DiagnosedPair) -> None:
    found = await mtls.measure(grpc=True, buffering=True, body_bytes=4 * MIB, bandwidth_bytes=4 * MIB, idle_seconds=1)
    assert (found.reached, found.endpoint, found.protocol) == (True, "coterie", "HTTP/2")
    assert found.fingerprint == pki.fingerprint(pki.load_certificate(pem("alice").encode()))
    assert (found.grpc, found.grpc_streams, found.grpc_problem) == (True, True, "")
    assert (found.body_passed, found.body_refused) == (4 * MIB, 0)
    assert found.chunks_apart is not None
    assert found.chunks_apart > 0.5 * messages.CHUNKS * messages.CHUNK_SECONDS
    assert found.idle_held == 1
    assert found.rtt_ms
    assert found.sent_bits_per_second
    assert found.received_bits_per_second
    assert found.clock_offset is not None
    assert abs(found.clock_offset) < 1
    assert not judged(found)


async def test_a_proxy_that_buffers_answers(plain: DiagnosedPair) -> None:
    plain.box.buffers = True
    found = await plain.measure(buffering=True)
    assert found.chunks_apart is not None
    assert found.chunks_apart < 0.2 * messages.CHUNKS * messages.CHUNK_SECONDS
    assert "proxy_buffering" in judged(found)["buffering"]


async def test_a_proxy_that_limits_bodies(plain: DiagnosedPair) -> None:
    plain.box.largest_body = MIB + 1000
    found = await plain.measure(body_bytes=16 * MIB)
    assert found.body_passed >= MIB
    assert found.body_passed <= plain.box.largest_body < found.body_refused <= 1.2 * MIB
    assert "413" in found.body_problem
    assert "client_max_body_size" in judged(found, warnings=True)["body"]
    plain.box.largest_body = MIB // 2
    assert "body" in judged(await plain.measure(body_bytes=4 * MIB))


async def test_a_proxy_that_gives_up_on_slow_answers(plain: DiagnosedPair) -> None:
    plain.box.idle_seconds = 0.5
    found = await plain.measure(idle_seconds=3)
    assert found.idle_held is None
    assert found.idle_cut is not None
    assert 0.4 < found.idle_cut < 3
    assert "504" in found.idle_problem
    assert "proxy_read_timeout" in judged(found)["idle"]


async def test_a_proxy_that_knows_only_http1_breaks_grpc(plain: DiagnosedPair) -> None:
    found = await plain.measure(grpc=True)
    assert (found.reached, found.protocol, found.grpc) == (True, "HTTP/1.1", False)
    assert found.grpc_problem
    assert "HTTP/2" in judged(found)["grpc"]


async def test_a_slow_path(plain: DiagnosedPair) -> None:
    plain.box.bytes_per_second = 512 << 10
    found = await plain.measure(body_bytes=16 * MIB, bandwidth_bytes=MIB)
    # Four Mbit/s; the first megabyte shows it, and no larger body is waited for.
    assert found.received_bits_per_second is not None
    assert found.received_bits_per_second < 10e6
    assert found.sent_bits_per_second is not None
    assert found.sent_bits_per_second < 10e6
    assert found.body_passed == MIB
    assert found.body_refused == 0
    assert "bandwidth" in judged(found, warnings=True)


async def test_a_firewall_that_cuts_idle_connections_of_tls(mtls: DiagnosedPair) -> None:
    mtls.box.idle_seconds = 0.5
    found = await mtls.measure(idle_seconds=3)
    assert found.idle_cut is not None
    assert found.idle_cut < 3
    assert "idle" in judged(found)


async def test_the_partner_measures_the_way_back(mtls: DiagnosedPair) -> None:
    plan = ProbePlan(True, False, 64 << 10, 0)
    async with mtls.probe() as probe:
        found = await probe.reverse(plan)
    assert found is not None
    assert (found.reached, found.endpoint, found.grpc, found.body_passed) == (True, "coterie", True, 64 << 10)
    assert found.fingerprint == pki.fingerprint(pki.load_certificate(pem("bob").encode()))


async def test_a_third_domain_is_called_only_if_it_confirms(mtls: DiagnosedPair) -> None:
    number = "0" * 32
    async with mtls.probe() as probe:
        answer = await probe.pair("carol", number, ProbePlan(False, False, 0, 0))
        assert answer is not None
        assert answer.report is None
        assert not await probe.confirms(number)
        assert await probe.announce(number)
        assert await probe.confirms(number)
        refused = messages.PairRequest("alice", number)
        assert (await probe.call("POST", messages.PAIR, msgspec.json.encode(refused))).status == 400


async def test_only_partners_reach_it(mtls: DiagnosedPair) -> None:
    """Neither our own pods nor callers without a token."""
    async with mtls.probe("bob", "bob") as own:
        assert (await own.call("GET", messages.HELLO)).status == 404
    async with mtls.probe("alice", "carol") as nobody:
        assert (await nobody.call("GET", messages.HELLO)).status == 404


async def test_a_partner_without_the_endpoint_is_unknown_and_not_broken(mtls: DiagnosedPair) -> None:
    before = mtls.bob.inputs.diagnose
    await mtls.bob.change(diagnose=None)
    try:
        found = await mtls.measure()
        assert (found.reached, found.endpoint, found.status) == (True, "", 403)
        assert not judged(found, warnings=True)
    finally:
        await mtls.bob.change(diagnose=before)


async def test_a_kuscia_gateway_is_measured_with_its_own_calls(mtls: DiagnosedPair) -> None:
    before = mtls.bob.inputs.diagnose
    async with kuscia_endpoint(HOSTS["bob"]) as where:
        await mtls.bob.change(diagnose=None, services=(DomainService("diagnose", (where,)),))
        try:
            found = await mtls.measure(grpc=True, buffering=True, body_bytes=MIB, bandwidth_bytes=MIB, idle_seconds=0.3)
            async with mtls.probe() as probe:
                assert await probe.reverse(ProbePlan()) is None
                assert await probe.facts(FactsRequest(("psi",))) is None
        finally:
            await mtls.bob.change(diagnose=before, services=())
    assert (found.reached, found.endpoint, found.body_passed, found.idle_held) == (True, "kuscia", MIB, 0.3)
    assert found.rtt_ms
    assert found.sent_bits_per_second
    assert found.received_bits_per_second
    assert not judged(found, warnings=True)


async def test_a_broken_link(mtls: DiagnosedPair) -> None:
    port, mtls.box.target = mtls.box.target, mtls.alice.inputs.external
    try:
        mtls.box.idle_seconds = 0.3  # the open connections end
        found = await mtls.measure(idle_seconds=1)
        found = await mtls.measure()
        assert not found.reached
        assert found.status == 503
        assert set(judged(found)) == {"reach"}
    finally:
        mtls.box.target = port


async def test_a_flood_is_refused_before_it_reaches_the_node(mtls: DiagnosedPair) -> None:
    """The last one here: nothing is left for others until some seconds later."""
    async with mtls.probe() as probe:
        found = []
        for _ in range(30):
            found += await asyncio.gather(*(probe.call("GET", messages.HEALTHY) for _ in range(40)))
    refused = [each for each in found if each.status == 429]
    assert sum(each.body == b"local_rate_limited" for each in refused) > 100
    assert any(each.status == 200 for each in found)
