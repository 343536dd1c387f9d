"""Compile our `.proto` files into the one descriptor set that is checked in (`make protos`).

It needs grpcio-tools, which only developers install. The program loads the result with the protobuf library alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
DEFINITIONS = ROOT / "src" / "coterie" / "kuscia" / "api" / "definitions"
PROTOS = DEFINITIONS / "protos"
DESCRIPTORS = DEFINITIONS / "descriptors.binpb"
_KUSCIA = "kuscia/proto/api/v1alpha1"
_NAMES = {
    "common": f"{_KUSCIA}/common.proto",
    "confmanager": f"{_KUSCIA}/confmanager/certificate.proto",
    "datamesh": f"{_KUSCIA}/datamesh/datamesh.proto",
    "flight": "arrow/flight/protocol/Flight.proto",
}
"""Names under which other files import ours and clients see them by reflection. The rest is `kusciaapi_<name>`."""


def import_name(file: Path) -> str:
    return _NAMES.get(file.stem) or f"{_KUSCIA}/kusciaapi/{file.stem.removeprefix('kusciaapi_')}.proto"


def compiled() -> bytes:
    """The FileDescriptorSet of all our files and what they import; the same bytes for the same text."""
    files = {import_name(file): file.read_text() for file in sorted(PROTOS.glob("*.proto"))}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        out = Path(folder, "out")
        include = Path(protoc.__file__).parent / "_proto"
        words = ["protoc", f"-I{folder}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*words, *sorted(files)]) != 0:
            raise SystemExit("the definitions do not compile")
        return out.read_bytes()


if __name__ == "__main__":
    DESCRIPTORS.write_bytes(compiled())
