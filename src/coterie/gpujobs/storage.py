"""Bytes of a job in the API: an archive as several objects of at most 512 KiB, which are deleted with the job.

gpujob-UID-in-N       ConfigMap: what the user uploaded (`coterie gpujob run`)
gpujob-UID-files-N    Secret: the files of a pod; among them may be data of the domain
gpujob-UID-out-N      ConfigMap: the artifacts
gpujob-UID-output     ConfigMap: the end of what the job printed
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.gpujobs.files import split
from coterie.gpujobs.types import GPU_JOBS, JOB_LABEL, GpuJob
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, SECRETS
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client

_CONFIG_MAP, _SECRET = CONFIG_MAPS.as_dynamic, SECRETS.as_dynamic


def part_name(uid: str, what: str, number: int) -> str:
    return f"gpujob-{uid}-{what}-{number}"


def output_name(uid: str) -> str:
    return f"gpujob-{uid}-output"


def owner_of(job: GpuJob, *, controller: bool = False) -> Object:
    resource = GPU_JOBS.resource
    owner: Object = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
    }
    return {**owner, "controller": True, "blockOwnerDeletion": True} if controller else owner


def part_bodies(job: GpuJob, what: str, data: bytes, *, secret: bool = False) -> list[Object]:
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret" if secret else "ConfigMap",
            "metadata": _head(job, part_name(job.metadata.uid, what, number)),
            ("data" if secret else "binaryData"): {"data": base64.b64encode(part).decode()},
        }
        for number, part in enumerate(split(data))
    ]


def _head(job: GpuJob, name: str) -> Object:
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {JOB_LABEL: job.metadata.name[:63].rstrip("-.")},
        "ownerReferences": [owner_of(job)],
    }


async def store(client: Client, job: GpuJob, what: str, data: bytes, *, secret: bool = False) -> int:
    """The number of parts. Parts that are there already are replaced: they were written before a crash."""
    kind: Kind[Object] = _SECRET if secret else _CONFIG_MAP
    bodies = part_bodies(job, what, data, secret=secret)
    for body in bodies:
        await _put(client, kind, body)
    return len(bodies)


async def load(client: Client, namespace: str, uid: str, what: str, parts: int) -> list[bytes] | None:
    """None when one is missing."""
    found = []
    for number in range(parts):
        try:
            part = await client.get(CONFIG_MAPS, part_name(uid, what, number), namespace)
        except NotFound:
            return None
        found.append(decoded((part.binary_data or {}).get("data", "")))
    return found


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream, and how long the whole is."""

    size: int = 0
    data: bytes = b""


async def store_output(client: Client, job: GpuJob, streams: Mapping[str, StreamEnd]) -> None:
    body: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _head(job, output_name(job.metadata.uid)),
        "data": {f"{name}Size": str(stream.size) for name, stream in streams.items()},
        "binaryData": {name: base64.b64encode(stream.data).decode() for name, stream in streams.items()},
    }
    await _put(client, _CONFIG_MAP, body)


async def load_output(client: Client, namespace: str, uid: str) -> dict[str, StreamEnd]:
    try:
        found = await client.get(CONFIG_MAPS, output_name(uid), namespace)
    except NotFound:
        return {}
    sizes = found.data or {}
    return {
        name: StreamEnd(int(sizes.get(f"{name}Size") or 0), decoded(text))
        for name, text in (found.binary_data or {}).items()
    }


async def _put(client: Client, kind: Kind[Object], body: Object) -> None:
    try:
        await client.create(kind, body)
    except AlreadyExists:
        meta = body["metadata"]
        content = {key: value for key, value in body.items() if key in ("data", "binaryData")}
        await client.patch(kind, meta["name"], meta["namespace"], content)


def decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""
