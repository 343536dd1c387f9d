"""Lines of usage.log, and the curves that they make."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coterie.kuscia.api.task_usage import MOST_POINTS, UsageLine, step_seconds, thinned, usage_line, usage_of

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)


def test_a_line_has_the_form_of_our_logs() -> None:
    line = usage_line(NOW, "sample", {"task": "j-psi", "pod": "p", "cpu": 1.23456789, "memory": 5, "job": ""})
    assert line == "2026-01-02T03:04:05.678Z info  usage: sample task=j-psi pod=p cpu=1.235 memory=5"
    assert "\n" not in usage_line(NOW, "ended", {"reason": 'a b\n"c"=d'})


def said(at: float, text: str, party: str = "alice") -> UsageLine:
    return UsageLine(at, party, "j-psi", f"info  usage: {text}")


def test_samples_stages_and_links_of_a_task() -> None:
    (found,) = usage_of([
        said(12.0, "sample pod=p cpu=0.5 memory=200"),
        said(10.0, "starting pod=p made=2026-01-02T03:04:05Z scheduled=2026-01-02T03:04:06Z"),
        said(11.0, "sample pod=p cpu=1.5 memory=100 began=2026-01-02T03:04:07.5Z"),
        said(13.0, "ended pod=p reason=Error code=1"),
        said(10.0, "link peer=bob sent=0 received=0"),
        said(12.0, "link peer=bob sent=1000 received=250"),
        said(14.0, "link peer=bob sent=400 received=250"),  # a gateway that was restarted counts from zero
    ])  # fmt: skip
    (pod,), (link,) = found.pods, found.links
    assert pod.points == ((11.0, 1.5, 100.0), (12.0, 0.5, 200.0))
    assert pod.began is not None and pod.made is not None
    assert (pod.began - pod.made, pod.ended, pod.reason) == (2.5, 13.0, "Error")
    assert link.points == ((10.0, 0.0, 0.0), (12.0, 4000.0, 1000.0), (14.0, 1600.0, 0.0))
    assert (link.sent, link.received) == (1400, 250)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("something pod=p cpu=1", id="another word"),
        pytest.param("sample pod=p cpu=1 and more", id="text after the facts"),
        pytest.param("sample cpu=1 memory=1", id="no pod"),
        pytest.param("link sent=1", id="no peer"),
    ],
)
def test_lines_of_other_form_say_nothing(text: str) -> None:
    assert not usage_of([said(1.0, text)])


@pytest.mark.parametrize("amount", ["nan", "inf", "-1", "1e300", "x"])
def test_amounts_that_make_no_sense_are_zero(amount: str) -> None:
    (found,) = usage_of([said(1.0, f"sample pod=p cpu={amount} memory={amount}")])
    assert found.pods[0].points == ((1.0, 0.0, 0.0),)


def test_a_day_takes_few_samples() -> None:
    at, count = 0.0, 0
    while at < 86400:
        at, count = at + step_seconds(at), count + 1
    assert count < 2500 and step_seconds(0) == 1.0


def test_thinning_keeps_peaks() -> None:
    points = [(float(at), 9.0 if at == 7001 else 1.0, 0.0) for at in range(10_000)]
    found = thinned(points)
    assert len(found) <= MOST_POINTS and (7001.0, 9.0, 0.0) in found
