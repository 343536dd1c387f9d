"""One mapping of the document, which knows its path: whatever cannot be used is refused with the path of its key.

Kuscia's own files carry many keys without a value (`cpu: `, `namespace: ""`). They mean: not given.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Mapping
from typing import Any

from coterie.base.secret import SecretValue
from coterie.kube.api.quantity import QuantityError, canonical

PORTS = (1, 65535)
PORTS_OR_ANY = (0, 65535)


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and what to write instead."""


class Block:
    def __init__(self, values: Mapping[Any, Any], path: str = "") -> None:
        self._values = values
        self._prefix = f"{path}." if path else ""

    def path(self, key: str) -> str:
        return self._prefix + key

    def refused(self, key: str, why: str) -> ConfigError:
        return ConfigError(f"{self.path(key)}: {why}")

    def raw(self, key: str) -> Any:
        """None when nothing is given."""
        value = self._values.get(key)
        return None if isinstance(value, str) and not value else value

    def is_empty_text(self, key: str) -> bool:
        """For keys whose default is switched off by an empty text."""
        return bool(self._values.get(key) == "")

    def has(self, key: str) -> bool:
        """Whether the key stands there, be it without a value."""
        return key in self._values

    def block(self, key: str) -> Block:
        value = self.raw(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.refused(key, "must be a mapping")
        return Block(value or {}, self.path(key))

    def text(self, key: str, default: str | None = None) -> str:
        value = self.raw(key)
        if value is None:
            value = default
        if value is None:
            raise self.refused(key, "is missing")
        if not isinstance(value, str):
            raise self.refused(key, "must be a text; put it in quotes if it looks like something else")
        return value

    def choice(self, key: str, default: str | None, among: tuple[str, ...]) -> str:
        """Any case; comes back as it is written in `among`."""
        text = self.text(key, default)
        for each in among:
            if each.lower() == text.lower():
                return each
        raise self.refused(key, f'must be one of {", ".join(among)}, not "{text}"')

    def texts(self, key: str, what: str) -> tuple[str, ...]:
        value = self.raw(key)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) and each for each in value):
            raise self.refused(key, f"must be a list of {what}")
        return tuple(value)

    def number(self, key: str, default: int, least: int, most: int = 1 << 31, *, quoted: bool = False) -> int:
        """`quoted`: Kuscia has this number as a text."""
        value = self.raw(key)
        if value is None:
            return default
        if quoted and isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refused(key, f"{value!r} is not a number that can be used here")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refused(key, "must be true or false")
        return value

    def optional_flag(self, key: str) -> bool | None:
        return None if self.raw(key) is None else self.flag(key, False)

    def address(self, key: str, default: str) -> str:
        text = self.text(key, default)
        if not is_address(text):
            raise self.refused(key, f'"{text}" is not an IP address to listen on')
        return text

    def quantity(self, key: str, default: str) -> str:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self.refused(key, "must be a quantity such as 500m or 4Gi")
        try:
            return canonical(value)
        except QuantityError as problem:
            raise self.refused(key, f'"{value}" is not a quantity such as 500m or 4Gi') from problem

    def secret(self, key: str) -> SecretValue | None:
        text = self.text(key, "").strip()
        return SecretValue(text) if text else None

    def encoded(self, key: str) -> SecretValue | None:
        """A text in base64, as Kuscia has its keys and certificates. Line breaks inside are no matter."""
        text = "".join(self.text(key, "").split())
        if not text:
            return None
        try:
            return SecretValue(base64.b64decode(text, validate=True))
        except (binascii.Error, UnicodeDecodeError):
            # Without the cause: it may quote what was given, and this is a secret.
            raise self.refused(key, "is not a text in base64; take the output of `base64 -w0 FILE`") from None


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def blank(value: Any) -> bool:
    """Whether a value says nothing: Kuscia's templates are full of such."""
    if isinstance(value, Mapping):
        return all(blank(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return all(blank(each) for each in value)
    return not value
