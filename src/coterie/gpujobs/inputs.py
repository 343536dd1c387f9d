"""The files of a job, gathered from where its spec says they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from coterie.gpujobs import storage
from coterie.gpujobs.files import InvalidFiles, JobFile, checked_path, join, joined, read_archive
from coterie.gpujobs.types import GpuJob, JobFiles
from coterie.kube.api.errors import NotFound
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client.client import Client

ReadTable = Callable[[str, str], Awaitable[tuple[str, bytes]]]
"""(namespace, name of a DomainData) -> name of its file and the content; raises InvalidFiles."""


class FilesMissing(Exception):
    """Something is not there yet; the message says what."""


async def gather(client: Client, job: GpuJob, read_table: ReadTable | None) -> dict[str, JobFile]:
    """Later sources replace files of earlier ones. Raises FilesMissing and InvalidFiles."""
    found: dict[str, JobFile] = {}
    for source in job.spec.files or ():
        found |= await _from(client, job, source, read_table)
    return found


async def _from(client: Client, job: GpuJob, source: JobFiles, read_table: ReadTable | None) -> dict[str, JobFile]:
    namespace, uid = job.metadata.namespace, job.metadata.uid
    if source.config_map is not None:
        try:
            config = await client.get(CONFIG_MAPS, source.config_map.name, namespace)
        except NotFound as error:
            raise FilesMissing(f"waiting for the ConfigMap {source.config_map.name}") from error
        texts = {joined(source.path, name): JobFile(text.encode()) for name, text in (config.data or {}).items()}
        binary = {
            joined(source.path, name): JobFile(storage.decoded(text))
            for name, text in (config.binary_data or {}).items()
        }
        return {**texts, **binary}
    if source.domain_data is not None:
        if read_table is None:
            raise InvalidFiles("this control plane holds no data of a domain")
        name, data = await read_table(namespace, source.domain_data.name)
        return {checked_path(source.path or name): JobFile(data)}
    assert source.upload is not None  # the schema
    parts = await storage.load(client, namespace, uid, "in", source.upload.parts)
    if parts is None:
        raise FilesMissing(f"waiting for the upload of {source.upload.parts} part(s)")
    files = await asyncio.to_thread(read_archive, join(parts, source.upload.sha256))
    return {joined(source.path, name): file for name, file in files.items()}
