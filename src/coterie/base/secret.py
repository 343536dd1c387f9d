"""Values that must not be seen: they print as stars wherever they end up.

A `SecretValue` has no way to become text by accident: repr, str, format, JSON encoders and pickling all miss the value. Only
`.reveal()` gives it, so a search for that word finds every place where one is used.
"""

from __future__ import annotations

import hmac
from typing import Any, NoReturn

STARS = "******"


class SecretValue:
    __slots__ = ("__value",)

    def __init__(self, value: str | bytes) -> None:
        self.__value = value.decode() if isinstance(value, bytes) else value

    def reveal(self) -> str:
        return self.__value

    def matches(self, candidate: str | bytes) -> bool:
        """Compare without telling by its duration how much was right."""
        given = candidate if isinstance(candidate, bytes) else candidate.encode()
        return hmac.compare_digest(self.__value.encode(), given)

    def __repr__(self) -> str:
        return f"Secret({STARS})"

    def __str__(self) -> str:
        return STARS

    def __format__(self, spec: str) -> str:
        return format(STARS, spec)

    def __bool__(self) -> bool:
        return bool(self.__value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretValue) and self.matches(other.__value)

    def __hash__(self) -> int:
        return hash((SecretValue, self.__value))

    def __copy__(self) -> SecretValue:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SecretValue:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled")
