"""What requests about objects of a domain have in common: names, whose domain it is, pages of lists."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from coterie.kube.api.errors import BadRequest, Gone, NotFound
from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import invalid
from coterie.kuscia.kusciaapi.domains import check_name, known_domain
from coterie.kuscia.kusciaapi.operations import Mode, OperationContext

T = TypeVar("T")


class Named(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


N = TypeVar("N", bound=Named)


def check_object_name(field: str, name: str) -> None:
    """Of a DomainData, an AppImage ..."""
    if not name:
        raise invalid(field, "must be given")
    for fault in dns_subdomain_faults(name):
        raise invalid(field, fault)


def check_domain(here: OperationContext, caller: ApiCaller, domain: str, field: str, to: str) -> None:
    """Whether the caller may have this domain's objects, here. `to`: "create data"."""
    check_name(field, domain)
    caller.must_be_one_of(domain, to=f"{to} of {domain}")
    if here.mode is Mode.LITE and domain != here.domain:
        raise invalid(field, f"must be {here.domain}: a lite has only what is its own")


async def check_known(here: OperationContext, domain: str) -> None:
    """Refused (11305) when there is no such domain. A lite cannot look, and needs not: it has only its own."""
    if domain != here.domain:
        await known_domain(here, domain)


async def find(here: OperationContext, kind: Kind[T], name: str, domain: str) -> T | None:
    try:
        return await here.client.get(kind, name, domain)
    except NotFound:
        return None


async def find_all(here: OperationContext, kind: Kind[T], wanted: Iterable[tuple[str, str]]) -> list[T]:
    """Those that exist. `wanted`: (name, domain)."""
    found: list[T] = []
    for name, domain in wanted:
        each = await find(here, kind, name, domain)
        if each is not None:
            found.append(each)
    return found


# Pages.


async def page(
    here: OperationContext, kind: Kind[T], namespace: str, size: int, token: str, at: str = "", labels: str = ""
) -> tuple[list[T], str]:
    """One page as the API gives it, all of one moment, and the token of the next; everything when no size is asked for.

    `at`: where size and token stand in the request, as `data.`.
    """
    check_size(at, size)
    if not size and not token:
        return (await here.client.list(kind, namespace, labels=labels)).items, ""
    try:
        found = await here.client.page(kind, namespace, labels=labels, limit=size, continue_=token)
    except Gone as problem:
        raise invalid(f"{at}page_token", "is too old; begin with the first page again") from problem
    except BadRequest as problem:
        raise invalid(f"{at}page_token", "is none that was given here, or of another list") from problem
    return found.items, found.continue_


def page_by_name(found: Sequence[N], size: int, token: str, at: str = "") -> tuple[list[N], str]:
    """The same of objects that were picked out already: the next ones by name."""
    check_size(at, size)
    after = _opened(token, at)
    rest = [each for each in sorted(found, key=lambda each: each.metadata.name) if each.metadata.name > after]
    if not size or len(rest) <= size:
        return rest, ""
    return rest[:size], base64.urlsafe_b64encode(rest[size - 1].metadata.name.encode()).decode()


def check_size(at: str, size: int) -> None:
    if size < 0:
        raise invalid(f"{at}page_size", "must not be negative")


def _opened(token: str, at: str) -> str:
    try:
        return base64.b64decode(token.encode(), b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as problem:
        raise invalid(f"{at}page_token", "is none that was given here") from problem
