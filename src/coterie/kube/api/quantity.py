"""Kubernetes quantities: `100m`, `1.5Gi`, `12e6`, as exact numbers.

A quantity is a whole number of nano-units plus the family of suffixes it was written in. Kubernetes keeps nothing finer
than a nano-unit (it rounds away from zero) and nothing greater than 2^63-1, so integers are enough and all arithmetic
is exact. `canonical` is the one spelling in which a server stores and prints a quantity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

NANO: Final = 10**9
_MAX: Final = (2**63 - 1) * NANO
FORMAT_MESSAGE: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

DECIMAL_SI: Final = "DecimalSI"
BINARY_SI: Final = "BinarySI"
DECIMAL_EXPONENT: Final = "DecimalExponent"

_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([KMGTPE]i|[numkMGTP]|[eE][+-]?[0-9]+|E|)")
_DECIMAL_POWER: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_POWER: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX: Final = {power: suffix for suffix, power in _DECIMAL_POWER.items()}
_BINARY_SUFFIX: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_FAR: Final = 64
"""Exponents beyond this are capped before a power is computed: `1e999999999` must not cost memory."""


class QuantityError(ValueError):
    """The text is no quantity; the message is the one Kubernetes gives."""


@dataclass(frozen=True, slots=True, order=False)
class Quantity:
    """`nanos` is the value times 10^9; `format` only decides how the number is printed."""

    nanos: int
    format: str = DECIMAL_SI

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nanos == other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: Quantity) -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: Quantity) -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: Quantity) -> bool:
        return self.nanos >= other.nanos

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __add__(self, other: Quantity) -> Quantity:
        # A zero has no opinion on the format: 0 + 1Gi prints as 1Gi.
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.format)

    def value(self) -> int:
        """Whole units, rounded away from zero as Kubernetes does (`100m` of a CPU counts as 1)."""
        return _divide_up(self.nanos, NANO)

    def milli_value(self) -> int:
        return _divide_up(self.nanos, 10**6)

    def __str__(self) -> str:
        return _print(self.nanos, self.format)


ZERO: Final = Quantity(0)


def parse(text: str | int | float) -> Quantity:
    """The quantity that a JSON value spells; JSON numbers are allowed where Kubernetes allows them."""
    if isinstance(text, str):
        return _parse_text(text)
    if isinstance(text, bool):
        raise QuantityError(FORMAT_MESSAGE)
    return _parse_text(repr(text) if isinstance(text, float) else str(text))


def canonical(text: str | int | float) -> str:
    """The spelling in which Kubernetes stores the quantity: `1000m` is `1`, `1.5Gi` is `1536Mi`."""
    return _canonical_text(text) if isinstance(text, str) else str(parse(text))


def from_units(units: int, format: str = DECIMAL_SI) -> Quantity:
    return Quantity(units * NANO, format)


def from_milli(milli: int, format: str = DECIMAL_SI) -> Quantity:
    return Quantity(milli * 10**6, format)


def rounded_up_to_milli(quantity: Quantity) -> Quantity:
    """Resource lists of pods hold nothing finer than a thousandth."""
    return from_milli(quantity.milli_value(), quantity.format)


@lru_cache(maxsize=4096)
def _canonical_text(text: str) -> str:
    return str(_parse_text(text))


@lru_cache(maxsize=4096)
def _parse_text(text: str) -> Quantity:
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise QuantityError(FORMAT_MESSAGE)
    sign, whole, fraction, suffix = found.groups(default="")
    digits = whole + fraction
    if not digits or len(digits) > 1000:
        raise QuantityError(FORMAT_MESSAGE)
    number = int(digits)
    power10, power2, format = -len(fraction) + 9, 0, DECIMAL_SI
    if suffix in _BINARY_POWER:
        power2, format = _BINARY_POWER[suffix], BINARY_SI
    elif suffix in _DECIMAL_POWER:
        power10 += _DECIMAL_POWER[suffix]
    else:
        power10, format = power10 + _exponent(suffix, len(digits)), DECIMAL_EXPONENT
    nanos = number << power2
    nanos = nanos * 10**power10 if power10 >= 0 else _divide_up(nanos, 10**-power10)
    nanos = min(nanos, _MAX)
    return Quantity(-nanos if sign == "-" else nanos, format)


def _exponent(suffix: str, digits: int) -> int:
    """The written exponent, held where capping and rounding already decide the result."""
    text = suffix[1:].lstrip("+-").lstrip("0")
    size = int(text or "0") if len(text) < 6 else 10**6
    bound = _FAR + digits
    return max(-size, -bound) if "-" in suffix else min(size, bound)


def _divide_up(number: int, divisor: int) -> int:
    """Division rounded away from zero."""
    return -(-number // divisor) if number >= 0 else number // divisor


def _print(nanos: int, format: str) -> str:
    if nanos == 0:
        return "0"
    if format == BINARY_SI and abs(nanos) >= 1024 * NANO:
        units = _divide_up(nanos, NANO)
        step = 0
        while step < 6 and units % 1024 == 0:
            units //= 1024
            step += 1
        return f"{units}{_BINARY_SUFFIX[step]}"
    power = -9
    while power < 18 and nanos % 1000 == 0:
        nanos //= 1000
        power += 3
    if format == DECIMAL_EXPONENT:
        return f"{nanos}e{power}" if power else str(nanos)
    return f"{nanos}{_DECIMAL_SUFFIX[power]}"
