"""How fast images are unpacked and packed, beside what GNU tar does with the same archive on the same disk.

The layer is like one of an engine: source files, libraries and a few large files. Coterie also checks the digest of every
layer, keeps what is needed to pack it again, and never leaves the layer's directory; tar does none of it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.kube.agent.images import export
from coterie.kube.agent.images.layers import install_layer, stored_image
from coterie.kube.agent.images.model import StoredImage
from coterie.kube.agent.images.store import ImageStore


def layer(size: int) -> bytes:
    """A tar of about this size: of 20 bytes, 13 in files of 20 kB, 7 in files of 4 MB; half of it is text."""
    rng = random.Random(1)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        number = 0
        while out.tell() < size:
            large = number % 300 == 299
            length = min(4 << 20, size) if large else 20_000
            content = rng.randbytes(length // 2) + (b"def function(argument):\n    return argument\n" * (length // 80))
            info = tarfile.TarInfo(f"opt/engine/part{number // 50}/file{number}.{'so' if large else 'py'}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            number += 1
    return out.getvalue()


def images(bench: Bench) -> list[Row]:
    size = bench.plan.image_bytes
    plain = layer(size)
    packed = gzip.compress(plain, 6)
    digest = f"sha256:{hashlib.sha256(plain).hexdigest()}"
    rows = []
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        folder = Path(place)
        for name, data, option in (("gzip", packed, "-xzf"), ("plain", plain, "-xf")):
            file = folder / f"{name}.tar"
            file.write_bytes(data)
            bare, bare_cpu = _best(bench, folder, lambda target, file=file, option=option: _tar(option, file, target))
            ours, ours_cpu = _best(bench, folder, lambda target, file=file: _install(target, digest, file))
            rate, byhand = len(plain) / ours / 1e6, len(plain) / bare / 1e6
            cpu = f"CPU {ours_cpu:.2f} s, tar {bare_cpu:.2f} s"
            files = f"{len(plain) >> 20} MiB, {len(data) >> 20} MiB packed; compared with GNU tar; {cpu}"
            rows.append(Row(f"image: unpack a layer, {name}", rate, "MB/s", None, byhand, note=files))
        store = ImageStore(folder / "store")
        install_layer(store, digest, lambda: io.BytesIO(plain))
        document = f'{{"rootfs":{{"type":"layers","diff_ids":["{digest}"]}}}}'.encode()
        image = store.save(stored_image("bench:1", document, size=len(plain)))
        store.keep_config(document)
        saved, _ = _best(bench, folder, lambda target: _save(store, image, target))
        rows.append(
            Row("image: save as a docker archive", len(plain) / saved / 1e6, "MB/s", note="the same bytes again")
        )
    return rows


def _best(bench: Bench, folder: Path, work: Callable[[Path], None]) -> tuple[float, float]:
    """Seconds of the best round, and of CPU time in the best one; each has a fresh directory."""
    found = []
    for _ in range(bench.plan.rounds):
        with tempfile.TemporaryDirectory(dir=folder) as target:
            before, began = sum(os.times()[:4]), time.perf_counter()
            work(Path(target))
            found.append((time.perf_counter() - began, sum(os.times()[:4]) - before))
    return min(each for each, _ in found), min(cpu for _, cpu in found)


def _tar(option: str, file: Path, target: Path) -> None:
    subprocess.run(["tar", option, str(file), "-C", str(target)], check=True)


def _install(target: Path, digest: str, file: Path) -> None:
    install_layer(ImageStore(target), digest, lambda: file.open("rb"))


def _save(store: ImageStore, image: StoredImage, target: Path) -> None:
    with (target / "saved.tar").open("wb") as out:
        (saved,) = export.save(store, [image], out, export.DOCKER)
    assert saved.exact
