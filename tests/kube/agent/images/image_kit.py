"""Image archives made by hand, right ones and wrong ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def entry(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=kind, linkname=target)


def tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config(layers: list[bytes], architecture: str = ARCHITECTURE, **settings: Any) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [sha(layer) for layer in layers]}
    return json.dumps({"architecture": architecture, "os": "linux", "config": settings, "rootfs": rootfs}).encode()


def oci(layers: list[bytes], name: str = "team/app:1", *, forge: bool = False, **settings: Any) -> bytes:
    """An OCI layout; `forge` changes a layer but not its digest."""
    blobs: dict[str, bytes] = {}
    about = config(layers, **settings)
    packed = [gzip.compress(layer, 1, mtime=0) for layer in layers]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": {"digest": sha(about), "mediaType": "application/vnd.oci.image.config.v1+json"},
            "layers": [{"digest": sha(layer)} for layer in packed],
        }
    ).encode()
    for blob in (about, manifest, *packed):
        blobs[sha(blob)] = blob
    if forge:
        blobs[sha(packed[0])] = gzip.compress(tar([entry("etc/passwd", b"forged")]))
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": sha(manifest),
                "annotations": {"io.containerd.image.name": name} if name else {},
            }
        ],
    }
    files = [entry("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), entry("index.json", json.dumps(index).encode())]
    files += [entry(f"blobs/sha256/{digest[7:]}", blob) for digest, blob in blobs.items()]
    return tar(files)


def docker(layers: list[bytes], name: str = "team/app:2", **settings: Any) -> bytes:
    """What `docker save` wrote before it learned OCI."""
    about = config(layers, **settings)
    manifest = [
        {
            "Config": f"{sha(about)[7:]}.json",
            "RepoTags": [name],
            "Layers": [f"{number}/layer.tar" for number, _ in enumerate(layers)],
        }
    ]
    files = [entry(f"{sha(about)[7:]}.json", about), entry("manifest.json", json.dumps(manifest).encode())]
    files += [entry(f"{number}/layer.tar", layer) for number, layer in enumerate(layers)]
    return tar(files)
