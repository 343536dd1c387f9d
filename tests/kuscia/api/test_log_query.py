"""What may be asked of logs: each refusal names the field and what to write instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from coterie.kuscia.api.log_query import MAX_LINES, SOURCES, LogQueryRefused, log_query, printable

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("90s", timedelta(seconds=90)),
    ],
)
def test_since_is_a_duration(text: str, ago: timedelta) -> None:
    assert log_query(now=NOW, job="j", since=text).since == NOW - ago


def test_since_is_a_time_of_any_zone() -> None:
    assert log_query(now=NOW, job="j", since="2026-01-02T03:00:00+01:00").since == NOW.replace(
        hour=2, minute=0, second=0
    )


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("since", "yesterday", "neither a duration nor a time"),
        ("since", "10", "neither"),
        ("since", "m10", "neither"),
        ("since", "999999d", "too long ago"),
        ("until", "2026-13-01T00:00:00Z", "neither"),
        ("grep", "(", "no regular expression"),
        ("grep", "a{1,99999999999}", "no regular expression"),
        ("grep", "x" * 513, "at most 512"),
        ("grep", "(?L)a", "locale"),
        ("job", "../../etc", "is no name"),
        ("job", "a/b", "is no name"),
        ("task", "..", "is no name"),
        ("task", "a\x00b", "is no name"),
        ("task", "a_b", "is no name"),
        ("party", "*", "is no name"),
        ("limit", MAX_LINES + 1, "must be between"),
        ("limit", -1, "must be between"),
        ("cursor", "../x", "not given by an earlier answer"),
        ("cursor", "2026-01-02T03:04:05Z", "not given by an earlier answer"),
    ],
)
def test_refusals_name_the_field(field: str, value: str | int, says: str) -> None:
    with pytest.raises(LogQueryRefused, match=says) as refused:
        log_query(**{"now": NOW, "job": "j", field: value})  # type: ignore[arg-type]
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


def test_unknown_source_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LogQueryRefused, match="'kernel' is unknown; there are engine, gateway"):
        log_query(now=NOW, job="j", sources=["engine", "kernel"])


def test_sources_in_one_order_and_all_without_a_name() -> None:
    assert log_query(now=NOW, task="t", sources=["gateway", "engine", "gateway"]).sources == ("engine", "gateway")
    assert log_query(now=NOW, task="t").sources == SOURCES


def test_a_query_without_job_and_task_is_refused() -> None:
    with pytest.raises(LogQueryRefused, match="name a job or a task"):
        log_query(now=NOW, grep="x")


def test_until_before_since_is_refused() -> None:
    with pytest.raises(LogQueryRefused, match="is after until"):
        log_query(now=NOW, job="j", since="1m", until="10m")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07\x1b[2J", "\\x1b]0;title\\x07\\x1b[2J"),
        ("a\tb", "a\tb"),
        ("over\rwritten\b", "over\\x0dwritten\\x08"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("äöü 中文 ok", "äöü 中文 ok"),
    ],
)
def test_terminal_sequences_are_shown_as_text(text: str, shown: str) -> None:
    assert printable(text) == shown
