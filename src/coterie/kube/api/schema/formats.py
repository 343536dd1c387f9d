"""The string and number formats that Kubernetes checks in custom resources; a format it does not know holds nothing."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from coterie.kube.api.schema.decode import is_base64, is_date_time

_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_EMAIL_LOCAL: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+")
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?([0-9a-f])[0-9a-f]{3}-?([0-9a-f])[0-9a-f]{3}-?[0-9a-f]{12}")
_MAC: Final = re.compile(r"(?i)(?:[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1)*[0-9a-f]{2})|(?:[0-9a-f]{4}\.)+[0-9a-f]{4}")
_MAC_DIGITS: Final = frozenset({12, 16, 40})
_DURATION: Final = re.compile(r"([+-]?)((?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+|[+-]?0", re.ASCII)
_LONG_DURATION: Final = re.compile(
    r"\s*\d+\s*(?:ns|us|µs|ms|s|m|h|d|w|nanoseconds?|nanos?|microseconds?|micros?|milliseconds?|millis?|seconds?|secs?"
    r"|minutes?|mins?|hours?|hrs?|hr|days?|weeks?|wks?)\s*",
    re.ASCII,
)
_HEX_COLOR: Final = re.compile(r"#?(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_RGB_COLOR: Final = re.compile(r"rgb\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)", re.ASCII)
_SSN: Final = re.compile(r"\d{3}[- ]?\d{2}[- ]?\d{4}", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_OBJECT_ID: Final = re.compile(r"[0-9a-fA-F]{24}")
_K8S_SHORT: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_K8S_LONG: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_LONGEST: Final = 8192
"""No format describes a longer text; bytes and date-times are checked in linear time and have no such bound."""


def is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and is_date_time(text + "T00:00:00Z")


def is_duration(text: str) -> bool:
    """Go's `1h30m`, or the long spelling `3 days` that the OpenAPI library also reads."""
    return _DURATION.fullmatch(text) is not None or _LONG_DURATION.fullmatch(text) is not None


def is_hostname(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    return 0 < len(text) <= 255 and all(map(_LABEL.fullmatch, labels))


def is_email(text: str) -> bool:
    local, at, domain = text.rpartition("@")
    if "<" in text and text.endswith(">"):  # "Name <a@b>": net/mail reads the whole address form
        return is_email(text[text.index("<") + 1 : -1])
    dots_ok = not local.startswith(".") and not local.endswith(".") and ".." not in local
    return bool(at) and dots_ok and _EMAIL_LOCAL.fullmatch(local) is not None and is_hostname(domain)


def is_uri(text: str) -> bool:
    """An absolute URI or an absolute path: what Go's ParseRequestURI takes."""
    if not text or any(char <= " " or char == "\x7f" for char in text):
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return text.startswith("/") or bool(parts.scheme and (parts.netloc or parts.path))


def is_ipv4(text: str) -> bool:
    return _is_ip(text, ipaddress.IPv4Address)


def is_ipv6(text: str) -> bool:
    return _is_ip(text, ipaddress.IPv6Address) and "%" not in text


def _is_ip(text: str, kind: Callable[[str], object]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def is_ip(text: str) -> bool:
    return is_ipv4(text) or is_ipv6(text)


def is_cidr(text: str) -> bool:
    address, slash, bits = text.partition("/")
    if not slash or not bits.isascii() or not bits.isdigit() or len(bits) > 3 or not is_ip(address):
        return False
    return int(bits) <= (32 if is_ipv4(address) else 128)


def is_mac(text: str) -> bool:
    return _MAC.fullmatch(text) is not None and sum(map(str.isalnum, text)) in _MAC_DIGITS


def is_uuid(text: str, version: str = "") -> bool:
    found = _UUID.fullmatch(text)
    if found is None:
        return False
    return not version or (found[1] == version and (version == "3" or found[2] in "89abAB"))


def _luhn(text: str) -> bool:
    digits = [int(char) for char in text if char in "0123456789"]
    doubled = [digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2]]
    return 12 <= len(digits) <= 19 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def is_isbn(text: str, length: int = 0) -> bool:
    digits = text.replace("-", "").replace(" ", "")
    if length and len(digits) != length:
        return False
    if len(digits) == 10 and digits[:9].isdigit() and (digits[9].isdigit() or digits[9] in "Xx"):
        values = [int(d) for d in digits[:9]] + [10 if digits[9] in "Xx" else int(digits[9])]
        return sum((10 - place) * value for place, value in enumerate(values)) % 11 == 0
    if len(digits) == 13 and digits.isascii() and digits.isdigit():
        return sum(int(d) * (3 if place % 2 else 1) for place, d in enumerate(digits)) % 10 == 0
    return False


def _is_rgb(text: str) -> bool:
    found = _RGB_COLOR.fullmatch(text)
    return found is not None and all(int(part) < 256 for part in found.groups())


STRING_FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "bsonobjectid": lambda text: _OBJECT_ID.fullmatch(text) is not None,
    "byte": is_base64,
    "cidr": is_cidr,
    "creditcard": _luhn,
    "date": is_date,
    "date-time": is_date_time,
    "datetime": is_date_time,
    "duration": is_duration,
    "email": is_email,
    "hexcolor": lambda text: _HEX_COLOR.fullmatch(text) is not None,
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "isbn": is_isbn,
    "isbn10": lambda text: is_isbn(text, 10),
    "isbn13": lambda text: is_isbn(text, 13),
    "k8s-long-name": lambda text: len(text) <= 253 and _K8S_LONG.fullmatch(text) is not None,
    "k8s-short-name": lambda text: len(text) <= 63 and _K8S_SHORT.fullmatch(text) is not None,
    "mac": is_mac,
    "password": lambda text: True,
    "rgbcolor": _is_rgb,
    "ssn": lambda text: _SSN.fullmatch(text) is not None,
    "uri": is_uri,
    "uuid": is_uuid,
    "uuid3": lambda text: is_uuid(text, "3"),
    "uuid4": lambda text: is_uuid(text, "4"),
    "uuid5": lambda text: is_uuid(text, "5"),
}
_UNBOUNDED: Final = frozenset({"byte", "date-time", "password"})


def is_of_format(text: str, format: str) -> bool:
    """True also for a format nobody knows: Kubernetes ignores those."""
    check = STRING_FORMATS.get(format)
    if check is None:
        return True
    return (len(text) <= _LONGEST or format in _UNBOUNDED) and check(text)


NUMBER_RANGES: Final[dict[str, tuple[float, float]]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "float": (-3.4028234663852886e38, 3.4028234663852886e38),
}
