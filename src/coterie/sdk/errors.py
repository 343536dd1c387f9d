"""What can go wrong.

SdkError
├── NotFoundHere      there is no such domain on this machine
├── Unreachable       nobody answers at the address, or not as KusciaAPI does
├── Unauthorized      the token or the certificate is not taken
├── JobEnded          a job that should have succeeded did not; `.job` says how it ended
├── TimedOut          something goes on, but the caller would not wait longer
└── Refused           the API says no; `.code` is its number
    ├── Invalid       a field of the request is wrong, which the message names
    ├── Forbidden     it is not this caller's
    ├── Missing       what was asked for is not there
    ├── Exists        what was to be made is there already
    └── NotOnThisNode a lite or a master does not do this
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.sdk.models import Job


class SdkError(Exception):
    """A sentence that says what is wrong."""


class NotFoundHere(SdkError):
    pass


class Unreachable(SdkError):
    pass


class Unauthorized(SdkError):
    pass


class TimedOut(SdkError):
    pass


class JobEnded(SdkError):
    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        self.job = job


class Refused(SdkError):
    def __init__(self, code: int, message: str, details: tuple[Any, ...] = ()) -> None:
        """`details`: of a batch, why each item failed."""
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.details = details


class Invalid(Refused):
    pass


class Forbidden(Refused):
    pass


class Missing(Refused):
    pass


class Exists(Refused):
    pass


class NotOnThisNode(Refused):
    pass


KINDS: dict[type[Refused], tuple[int, ...]] = {
    Invalid: (11100,),
    Forbidden: (11102,),
    NotOnThisNode: (11104, 11105),
    Missing: (11305, 11404, 11506, 11705, 11806, 13105),
    Exists: (11306, 11405, 11507, 11704, 11805, 13106),
}
"""Of domains, routes, data, grants, sources and app images. For jobs and services the API has no such numbers."""
_BY_CODE = {code: kind for kind, codes in KINDS.items() for code in codes}


def refused(code: int, message: str, details: tuple[Any, ...] = ()) -> Refused:
    return _BY_CODE.get(code, Refused)(code, message, details)
