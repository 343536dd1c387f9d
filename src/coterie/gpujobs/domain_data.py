"""Files of the domain's own tables, for jobs that ask for them.

Only of the control plane's own domain, from its default data source, and only what the domain or nobody else has made: a table that came
of a partner's job belongs to the partner too.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from coterie.gpujobs.files import MAX_UNPACKED, InvalidFiles
from coterie.kube.api.errors import NotFound
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.data import (
    DEFAULT_MESH_SOURCE,
    DEFAULT_SOURCE,
    DOMAIN_DATA_RECORDS,
    DOMAIN_DATAS,
    DomainData,
)
from coterie.kuscia.sources.confined_files import check_regular, open_beneath
from coterie.kuscia.sources.paths import parts_of
from coterie.kuscia.sources.protocol import SourceError


async def read_domain_data(
    client: Client, domain: str, directory: Path, namespace: str, name: str
) -> tuple[str, bytes]:
    """Name of the file and its content; raises InvalidFiles."""
    if namespace != domain:
        raise InvalidFiles(f"data of {namespace} does not lie on the control plane's machine")
    try:
        data = await client.get(DOMAIN_DATAS, name, namespace)
    except NotFound as error:
        raise InvalidFiles(f"there is no DomainData {name}") from error
    records = (await client.list(DOMAIN_DATA_RECORDS, namespace)).items
    if fault := data_fault(data, domain, {each.spec.initiator for each in records if each.spec.domain_data_id == name}):
        raise InvalidFiles(f"DomainData {name}: {fault}")
    try:
        parts = parts_of(data.spec.relative_uri)
        return parts[-1], await asyncio.to_thread(_read, directory, parts)
    except (OSError, SourceError, IndexError) as error:
        raise InvalidFiles(f"DomainData {name}: the file cannot be read: {error}") from error


def data_fault(data: DomainData, domain: str, initiators: set[str]) -> str:
    """Why a job may not have it; empty: it may. `initiators`: who began the jobs that made it. Pure."""
    if data.spec.author != domain:
        return f"it belongs to {data.spec.author}"
    if others := initiators - {domain, ""}:
        return f"it was made for {', '.join(sorted(others))}"
    if data.spec.data_source not in (DEFAULT_SOURCE, DEFAULT_MESH_SOURCE):
        return f"only files of {DEFAULT_SOURCE} can be taken, this one is in {data.spec.data_source}"
    if data.spec.partitions is not None:
        return "it has partitions"
    return ""


def _read(directory: Path, parts: tuple[str, ...]) -> bytes:
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        descriptor = open_beneath(root, parts, os.O_RDONLY | os.O_NONBLOCK)
    finally:
        os.close(root)
    with os.fdopen(descriptor, "rb") as file:
        found = check_regular(file.fileno(), parts[-1])
        if found.st_size > MAX_UNPACKED:
            raise OSError(f"it has more than {MAX_UNPACKED} bytes")
        return file.read(MAX_UNPACKED)
