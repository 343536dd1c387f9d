"""How people write bandwidth, and what is reserved of it."""

from __future__ import annotations

import pytest

from coterie.kube.api.quantity import NANO
from coterie.kuscia.api import labels
from coterie.kuscia.api.appimages import with_bandwidth
from coterie.kuscia.api.bandwidth import (
    BandwidthError,
    annotated_mbit,
    bandwidth_problem,
    bits_text,
    larger,
    mbit_down,
    mbit_up,
    parse_bits,
)
from coterie.kuscia.api.partner_requests import PartnerRequestError, job_request, job_taken

M = 1_000_000


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("100", 100 * M),
        (100, 100 * M),
        ("0", 0),
        ("100Mbps", 100 * M),
        ("1Gbps", 1000 * M),
        ("1.5 Gbit/s", 1500 * M),
        ("500kbps", 500_000),
        ("900bps", 900),
        ("10Gi", 10 << 30),
        ("500Mi", 500 << 20),
        ("1Gibps", 1 << 30),
        ("100M", 100 * M),
        ("0.5bps", 1),
        (" 2 Tbit ", 2_000_000 * M),
    ],
)
def test_amounts_are_read_as_bits_per_second(text: str | int, bits: int) -> None:
    assert parse_bits(text) == bits


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no bandwidth"),
        ("fast", "is no bandwidth"),
        ("-5Mbps", "is no bandwidth"),
        ("1e9", "is no bandwidth"),
        ("100MB/s", "is in bytes"),
        ("100MB", "is in bytes"),
        ("100MBps", "is in bytes"),
        ("100 megabytes", "is in bytes"),
        ("١٠", "is no bandwidth"),
        ("9999999Gbps", "more than a petabit"),
        ("1" * 500, "is no bandwidth"),
        (True, "is no bandwidth"),
    ],
)
def test_bad_text_is_refused_with_what_to_write(text: str, why: str) -> None:
    with pytest.raises(BandwidthError, match=why) as refused:
        parse_bits(text)
    assert "100Mbps" in str(refused.value) and len(str(refused.value)) < 250


def test_a_request_of_nothing_is_a_problem() -> None:
    assert bandwidth_problem("0") == "must be more than 0"
    assert bandwidth_problem("1bps") == ""
    assert "no bandwidth" in bandwidth_problem("x")


def test_requests_round_up_and_capacities_down() -> None:
    assert (mbit_up(1), mbit_up(M), mbit_up(M + 1)) == (1, 1, 2)
    assert (mbit_down(M - 1), mbit_down(10 << 30)) == (0, 10737)
    assert (annotated_mbit("100Mbps"), annotated_mbit("junk"), annotated_mbit("5kbps")) == (100, None, None)


@pytest.mark.parametrize(
    ("bits", "text"), [(12, "12 bit/s"), (80 * M, "80 Mbit/s"), (1_500_000_000, "1.5 Gbit/s"), (64_000, "64 kbit/s")]
)
def test_amounts_for_people(bits: int, text: str) -> None:
    assert bits_text(bits) == text


def test_over_use_counts_beyond_the_error_of_the_measurement() -> None:
    assert larger(50 * M, 52 * M) == 50 * M
    assert larger(50 * M, 80 * M) == 80 * M
    assert larger(0, 1) == 1


def test_a_request_is_spread_over_pods_and_containers() -> None:
    engine = {"name": "e", "resources": {"limits": {"cpu": "1"}}}
    (made,) = with_bandwidth([engine], "100Mbps", 3)
    assert made["resources"] == {
        "limits": {"cpu": "1", labels.KUSCIA_BANDWIDTH: "34"},
        "requests": {labels.KUSCIA_BANDWIDTH: "34"},
    }
    own = {"name": "e", "resources": {"limits": {labels.KUSCIA_BANDWIDTH: "5"}}}
    assert with_bandwidth([own], "100Mbps", 1) == (own,), "the party said what it needs"
    assert with_bandwidth([engine], "", 1) == (engine,)


def _spec(**more: object) -> dict[str, object]:
    return {
        "initiator": "bob",
        "tasks": [
            {
                "alias": "t",
                "appImage": "psi",
                "taskInputConfig": "{}",
                "parties": [{"domainID": "alice"}, {"domainID": "bob"}],
                **more,
            }
        ],
    }


def test_what_a_partner_asks_to_reserve_counts_for_its_policy() -> None:
    """Also where the party names less for itself, and where only the job says it."""
    spec = job_taken(_spec(bandwidthRequest="1Gbps"))
    (work,) = job_request(spec, {"alice"}, {}, {}).workloads
    assert work.usage.bandwidth == 1000 * NANO
    spec = job_taken({**_spec(), "bandwidthRequest": "20Mbps"})
    (work,) = job_request(spec, {"alice"}, {}, {}).workloads
    assert work.usage.bandwidth == 20 * NANO


def test_nonsense_of_a_partner_is_refused() -> None:
    with pytest.raises(PartnerRequestError, match="bandwidthRequest"):
        job_taken(_spec(bandwidthRequest="all of it"))
