"""Grants of tables from the page: made as `coterie data grant` makes them, and signed by the node's controller with the owner's key."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from coterie.http.errors import HttpProblem
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS
from coterie.kuscia.sources import grant_entries
from coterie.kuscia.sources.catalogue_entries import InvalidEntry

_LONGEST_SECONDS: Final = 3660 * 86400
_MOST_COLUMNS: Final = 2000


class GrantRequest(msgspec.Struct, frozen=True):
    partner: str
    columns: list[str] = []
    """None: all of them."""
    uses: int = 0
    """0: without a count."""
    seconds: int = 0
    """0: without an end."""
    components: list[str] = []
    metadata_only: bool = msgspec.field(name="metadataOnly", default=False)


async def grant(client: Client, owner: str, table: str, asked: GrantRequest, now: datetime) -> Object:
    data = await client.get(DOMAIN_DATAS, table, owner)
    known = {each.name for each in data.spec.columns or ()}
    if unknown := [each for each in asked.columns if each not in known]:
        raise HttpProblem(400, "BadRequest", f"{table} has no column {unknown[0][:64]}")
    if data.spec.author != owner:
        raise HttpProblem(409, "Conflict", f"{table} belongs to {data.spec.author}, which alone can grant it")
    taken = {each.metadata.name for each in (await client.list(DOMAIN_DATA_GRANTS, owner)).items}
    name = grant_entries.name_for(table, asked.partner, taken)
    try:
        spec = grant_entries.completed(spec_of(owner, table, asked, now))
    except InvalidEntry as problem:
        raise HttpProblem(400, "BadRequest", str(problem)) from problem
    await client.create(DOMAIN_DATA_GRANTS.as_dynamic, grant_entries.grant(name, spec), owner)
    return {"grant": name}


async def revoke(client: Client, owner: str, name: str) -> Object:
    found = await client.get(DOMAIN_DATA_GRANTS, name, owner)
    if found.spec.author != owner:
        raise HttpProblem(409, "Conflict", f"{name} was given by {found.spec.author}, which alone can revoke it")
    await client.delete(DOMAIN_DATA_GRANTS.as_dynamic, name, owner)
    return {"revoked": name}


def spec_of(owner: str, table: str, asked: GrantRequest, now: datetime) -> Object:
    if asked.uses < 0 or not 0 <= asked.seconds <= _LONGEST_SECONDS or len(asked.columns) > _MOST_COLUMNS:
        raise HttpProblem(400, "BadRequest", "uses, time and columns must be within reason")
    limit = grant_entries.limit_of(
        asked.columns,
        uses=asked.uses,
        until=now + timedelta(seconds=asked.seconds) if asked.seconds else None,
        components=asked.components,
        metadata_only=asked.metadata_only,
    )
    return {"author": owner, "domainDataID": table, "grantDomain": asked.partner, **({"limit": limit} if limit else {})}
