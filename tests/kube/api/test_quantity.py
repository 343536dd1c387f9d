"""Quantities: exact numbers, printed as Kubernetes prints them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api import quantity
from coterie.kube.api.quantity import BINARY_SI, Quantity, QuantityError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("-0", "0"),
        ("1", "1"),
        ("+1", "1"),
        ("007", "7"),
        ("1.", "1"),
        (".5", "500m"),
        ("0.1", "100m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1.5", "1500m"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1000000", "1M"),
        ("1500k", "1500k"),
        ("1Gi", "1Gi"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1000Ki", "1000Ki"),
        ("100u", "100u"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("12e6", "12e6"),
        ("1e-3", "1e-3"),
        ("1e2", "100"),
        ("1E", "1E"),
        ("-1Gi", "-1Gi"),
        ("-1.5", "-1500m"),
        ("1e999999999", "9223372036854775807"),
        ("1e-999999999", "1e-9"),
        ("9999Ei", "9223372036854775807"),
        ("128974848", "128974848"),
        ("129e6", "129e6"),
        ("123Mi", "123Mi"),
    ],
)
def test_canonical_spelling(text: str, shown: str) -> None:
    assert quantity.canonical(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 ",
        " 1",
        "a",
        "1a",
        "Gi",
        "1gi",
        "1KI",
        "1ki",
        "1.2.3",
        "--1",
        "1e",
        "e3",
        "1e+",
        "+",
        ".",
        "1mm",
        "0x1",
        "1,5",
        "١",
    ],
)
def test_refused_spelling(text: str) -> None:
    with pytest.raises(QuantityError, match="quantities must match the regular expression"):
        quantity.parse(text)


@pytest.mark.parametrize(("number", "shown"), [(2, "2"), (0.5, "500m"), (1e30, "9223372036854775807")])
def test_json_numbers(number: float, shown: str) -> None:
    assert quantity.parse(number).value() == quantity.parse(shown).value()


def test_a_boolean_is_no_quantity() -> None:
    with pytest.raises(QuantityError):
        quantity.parse(True)


@pytest.mark.parametrize(
    ("text", "units", "milli"),
    [("100m", 1, 100), ("1", 1, 1000), ("1.5", 2, 1500), ("1Ki", 1024, 1_024_000), ("1u", 1, 1), ("-1500m", -2, -1500)],
)
def test_values_round_away_from_zero(text: str, units: int, milli: int) -> None:
    parsed = quantity.parse(text)
    assert (parsed.value(), parsed.milli_value()) == (units, milli)


def test_arithmetic_keeps_the_format_of_the_first() -> None:
    assert str(quantity.parse("1Gi") + quantity.parse("512Mi")) == "1536Mi"
    assert str(quantity.parse("1") - quantity.parse("100m")) == "900m"
    assert str(quantity.ZERO + quantity.parse("2Gi")) == "2Gi"
    assert str(-quantity.parse("2Gi")) == "-2Gi"


def test_order_and_equality_ignore_spelling() -> None:
    assert quantity.parse("1000m") == quantity.parse("1")
    assert hash(quantity.parse("1024Mi")) == hash(quantity.parse("1Gi"))
    assert quantity.parse("1Gi") > quantity.parse("1G")
    assert quantity.parse("999m") < quantity.parse("1") <= quantity.parse("1e0")
    assert not quantity.parse("0")


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**15), 10**15), st.sampled_from([quantity.DECIMAL_SI, BINARY_SI, quantity.DECIMAL_EXPONENT]))
def test_printing_and_parsing_agree(nanos: int, format: str) -> None:
    value = Quantity(nanos, format)
    again = quantity.parse(str(value))
    # Binary quantities of 1024 and more are whole numbers; printing rounds them up.
    expected = value.value() * quantity.NANO if format == BINARY_SI and abs(nanos) >= 1024 * quantity.NANO else nanos
    assert again.nanos == expected
    assert quantity.canonical(str(again)) == str(again)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789.eEkKMGimun+-", max_size=8))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    try:
        shown = quantity.canonical(text)
    except QuantityError:
        return
    assert quantity.canonical(shown) == shown
