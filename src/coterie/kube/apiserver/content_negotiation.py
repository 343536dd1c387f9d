"""Content negotiation: which shape of the answer a client wants, from its Accept header."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from coterie.kube.api import errors, wire
from coterie.kube.api.resources import Resource


@dataclass(frozen=True, slots=True)
class NegotiatedFormat:
    """`shape` is plain, table or partial (metadata only); `version` is that of meta.k8s.io for the latter two."""

    shape: str = "plain"
    version: str = "v1"
    yaml: bool = False
    protobuf: bool = False


PLAIN = NegotiatedFormat()
_PROTOBUF = NegotiatedFormat(protobuf=True)
_SHAPES: dict[tuple[str, str | None, str | None], str] = {
    (kind, "meta.k8s.io", version): shape
    for kind, shape in (
        ("Table", "table"),
        ("PartialObjectMetadata", "partial"),
        ("PartialObjectMetadataList", "partial"),
    )
    for version in ("v1", "v1beta1")
}
_JSON_LIKE = frozenset(("application/json", "application/*", "*/*"))


def negotiate(header: str, resource: Resource | None = None, *, protobuf: bool = False) -> NegotiatedFormat:
    """What a client wants. Protobuf is among the offers where the resource has that form (custom ones have not)."""
    if not header or header == "application/json" or header == "*/*":
        return PLAIN
    if resource is not None and "protobuf" in header:
        protobuf = wire.message_of_kind(resource.api_version, resource.kind) is not None
    return _negotiate(header[:2048], protobuf)


@lru_cache(maxsize=256)
def _negotiate(header: str, protobuf: bool) -> NegotiatedFormat:
    """The first acceptable form in the client's order of quality (clients list what they prefer first)."""
    offers: list[tuple[float, int, str, dict[str, str]]] = []
    for index, part in enumerate(header.split(",")):
        media, *params = [piece.strip() for piece in part.split(";")]
        options = dict(piece.partition("=")[::2] for piece in params)
        try:
            quality = float(options.get("q", "1"))
        except ValueError:
            quality = 0.0
        if quality > 0:
            offers.append((-quality, index, media.lower(), options))
    for _, _, media, options in sorted(offers, key=lambda offer: offer[:2]):
        shape = options.get("as")
        if shape is None:
            if media in _JSON_LIKE:
                return PLAIN
            if media == "application/yaml":
                return NegotiatedFormat(yaml=True)
            if media == wire.MEDIA_TYPE and protobuf:
                return _PROTOBUF
            continue
        found = _SHAPES.get((shape, options.get("g"), options.get("v")))
        if found is not None and media == "application/json":
            return NegotiatedFormat(found, options["v"])
        if found == "partial" and media == wire.MEDIA_TYPE:
            return NegotiatedFormat(found, options["v"], protobuf=True)
    raise errors.NotAcceptable(
        "only the following media types are accepted: application/json, application/yaml, "
        + (f"{wire.MEDIA_TYPE}, " if protobuf else "")
        + "application/json;as=Table;v=v1;g=meta.k8s.io, application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    )
