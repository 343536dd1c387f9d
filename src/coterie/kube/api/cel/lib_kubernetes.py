"""Kubernetes' own libraries: quantities, URLs and named formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from coterie.kube.api import names
from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, function, method
from coterie.kube.api.cel.types import BOOL, DOUBLE, FORMAT, INT, QUANTITY, STRING, URL, list_of, map_of, optional_of
from coterie.kube.api.cel.values import INT64_MAX, INT64_MIN, KINDS, NONE, Optional
from coterie.kube.api.quantity import NANO, Quantity, QuantityError, from_units
from coterie.kube.api.quantity import parse as parse_quantity
from coterie.kube.api.schema.formats import STRING_FORMATS


def quantity(text: str) -> Quantity:
    try:
        return parse_quantity(text)
    except QuantityError as fault:
        raise CelError(str(fault)) from fault


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except QuantityError:
        return False
    return True


def _is_integer(value: Quantity) -> bool:
    return value.nanos % NANO == 0 and INT64_MIN <= value.nanos // NANO <= INT64_MAX


def _as_integer(value: Quantity) -> int:
    if not _is_integer(value):
        raise CelError("cannot convert value to integer")
    return value.nanos // NANO


def _compare(left: Quantity, right: Quantity) -> int:
    return (left.nanos > right.nanos) - (left.nanos < right.nanos)


_QUANTITIES: Final[Library] = (
    function("quantity", (STRING,), QUANTITY, quantity),
    function("isQuantity", (STRING,), BOOL, _is_quantity),
    method("sign", (QUANTITY,), INT, lambda value: (value.nanos > 0) - (value.nanos < 0)),
    method("isGreaterThan", (QUANTITY, QUANTITY), BOOL, lambda left, right: left > right),
    method("isLessThan", (QUANTITY, QUANTITY), BOOL, lambda left, right: left < right),
    method("compareTo", (QUANTITY, QUANTITY), INT, _compare),
    method("asApproximateFloat", (QUANTITY,), DOUBLE, lambda value: value.nanos / NANO),
    method("asInteger", (QUANTITY,), INT, _as_integer),
    method("isInteger", (QUANTITY,), BOOL, _is_integer),
    method("add", (QUANTITY, QUANTITY), QUANTITY, lambda left, right: left + right),
    method("add", (QUANTITY, INT), QUANTITY, lambda left, right: left + from_units(right, left.format)),
    method("sub", (QUANTITY, QUANTITY), QUANTITY, lambda left, right: left - right),
    method("sub", (QUANTITY, INT), QUANTITY, lambda left, right: left - from_units(right, left.format)),
)


@dataclass(frozen=True, slots=True)
class UrlValue:
    text: str
    parts: SplitResult


KINDS[UrlValue] = "kubernetes.URL"


def _url(text: str) -> UrlValue:
    """Absolute URIs and absolute paths, as Go's `ParseRequestURI` takes them."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as fault:
        raise CelError(f'URL parse error during conversion from string: parse "{text[:80]}": {fault}') from fault
    if any(char <= " " or char == "\x7f" for char in text) or not (parts.scheme or text.startswith("/")):
        raise CelError(f'URL parse error during conversion from string: parse "{text[:80]}": invalid URI for request')
    return UrlValue(text, parts)


def _is_url(text: str) -> bool:
    try:
        _url(text)
    except CelError:
        return False
    return True


def _host(url: UrlValue) -> str:
    return url.parts.netloc.rpartition("@")[2]


def _query(url: UrlValue) -> dict[str, list[str]]:
    try:
        return parse_qs(url.parts.query, keep_blank_values=True, max_num_fields=1000)
    except ValueError as fault:
        raise CelError("URL has too many query parameters") from fault


_URLS: Final[Library] = (
    function("url", (STRING,), URL, _url),
    function("isURL", (STRING,), BOOL, _is_url),
    method("getScheme", (URL,), STRING, lambda url: url.parts.scheme),
    method("getHost", (URL,), STRING, _host),
    method("getHostname", (URL,), STRING, lambda url: url.parts.hostname or ""),
    method("getPort", (URL,), STRING, lambda url: str(url.parts.port) if url.parts.port is not None else ""),
    method("getEscapedPath", (URL,), STRING, lambda url: quote(unquote(url.parts.path), safe="/:@!$&'()*+,;=~-._")),
    method("getQuery", (URL,), map_of(STRING, list_of(STRING)), _query),
)


@dataclass(frozen=True, slots=True)
class NamedFormat:
    name: str
    faults: Callable[[str], list[str]]


KINDS[NamedFormat] = "kubernetes.NamedFormat"


def _prefixed(faults: Callable[[str], Any]) -> Callable[[str], list[str]]:
    """A name that something is appended to may end with a dash."""
    return lambda text: list(faults(text[:-1] + "a" if text.endswith("-") else text))


def _of_schema(format: str, message: str) -> Callable[[str], list[str]]:
    check = STRING_FORMATS[format]
    return lambda text: [] if check(text[:8193]) else [message]


def _listed(faults: Callable[[str], Any]) -> Callable[[str], list[str]]:
    return lambda text: list(faults(text))


_FORMATS: Final = {
    name: NamedFormat(name, faults)
    for name, faults in {
        "dns1123Label": _listed(names.dns_label_faults),
        "dns1123Subdomain": _listed(names.dns_subdomain_faults),
        "dns1035Label": _listed(names.dns1035_label_faults),
        "qualifiedName": _listed(names.qualified_name_faults),
        "labelValue": _listed(names.label_value_faults),
        "dns1123LabelPrefix": _prefixed(names.dns_label_faults),
        "dns1123SubdomainPrefix": _prefixed(names.dns_subdomain_faults),
        "dns1035LabelPrefix": _prefixed(names.dns1035_label_faults),
        "uri": _of_schema("uri", "invalid URI"),
        "uuid": _of_schema("uuid", "does not match the UUID format"),
        "byte": _of_schema("byte", "invalid base64"),
        "date": _of_schema("date", "invalid date"),
        "datetime": _of_schema("date-time", "invalid datetime"),
    }.items()
}


def _named(name: str) -> Optional:
    found = _FORMATS.get(name)
    return NONE if found is None else Optional(True, found)


def _validate(format: NamedFormat, text: str) -> Optional:
    faults = format.faults(text)
    return Optional(True, faults) if faults else NONE


_NAMED_FORMATS: Final[Library] = (
    function("format.named", (STRING,), optional_of(FORMAT), _named),
    method("validate", (FORMAT, STRING), optional_of(list_of(STRING)), _validate),
    *(function(f"format.{name}", (), FORMAT, lambda value=value: value) for name, value in _FORMATS.items()),
)

LIBRARY: Final[Library] = (*_QUANTITIES, *_URLS, *_NAMED_FORMATS)
