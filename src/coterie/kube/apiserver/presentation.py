"""How objects leave: as themselves, as rows of a Table, or as metadata only; one, many, or events of a watch.

Objects are bytes and stay bytes wherever the client wants them as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import orjson

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Response
from coterie.http.server import Tasks
from coterie.kube.api import errors
from coterie.kube.api.errors import Status
from coterie.kube.api.wire import MEDIA_TYPE
from coterie.kube.apiserver import list_body, pretty
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.content_negotiation import NegotiatedFormat
from coterie.kube.apiserver.state.entry import ObjectEntry, VersionView
from coterie.kube.apiserver.state.watching import Encode

if TYPE_CHECKING:
    import yaml

    from coterie.kube.api.wire import encode as protobuf
    from coterie.kube.apiserver.tables.build import Include
else:
    protobuf = lazy_import("coterie.kube.api.wire.encode")
    yaml = lazy_import("yaml")

_INCLUDES = ("None", "Metadata", "Object")
_MOST_WARNINGS = 20
_LONGEST_WARNING = 256


class _WithMetadata(msgspec.Struct):
    """Only this is looked into: the rest is skipped, and what is taken stays bytes."""

    metadata: msgspec.Raw


_metadata = msgspec.json.Decoder(_WithMetadata)


class Presenter:
    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._clock = clock
        self._tasks = tasks

    # -- one ----------------------------------------------------------------------------------------------------

    def one(self, call: ResourceRequest, raw: bytes, want: NegotiatedFormat, status: int = 200) -> Response:
        headers = warning_headers(call.warnings) if call.warnings else []
        body = call.view.render(raw)
        if want.shape == "plain":
            if want.yaml:
                return Response(status, _yaml(body), "application/yaml", headers)
            return Response(status, body, headers=headers)
        if want.shape == "table":
            builder = call.strategy.table
            version = orjson.loads(body)["metadata"].get("resourceVersion", "")
            row = builder.row_json(body, version, self._moment(), _include(call))
            return Response(status, builder.table([row], resource_version=version), headers=headers)
        return Response(status, _partial(body, want.version), headers=headers)

    # -- many ---------------------------------------------------------------------------------------------------

    def many(
        self,
        call: ResourceRequest,
        entries: Sequence[ObjectEntry],
        want: NegotiatedFormat,
        revision: int,
        token: str,
        remaining: int,
    ) -> Response:
        view = call.view
        view.require(entries)
        if want.shape == "table":
            builder, now, include = call.strategy.table, self._moment(), _include(call)
            rows = [builder.row_json(view.render(entry.raw), "", now, include) for entry in entries]
            body = builder.table(
                rows, resource_version=str(revision), continue_token=token, remaining=remaining or None
            )
            return Response(200, body)
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if token:
            metadata["continue"] = token
        if remaining:
            metadata["remainingItemCount"] = remaining
        if want.shape == "partial":
            kind, version = "PartialObjectMetadataList", f"meta.k8s.io/{want.version}"
        else:
            kind, version = view.resource.list_kind, view.resource.api_version
        is_long = call.request.peer.connected and list_body.is_long(entries) and not pretty.is_wanted(call.request)
        if want.protobuf:
            return self._many_protobuf(view, entries, want, protobuf.envelope_head(version, kind), metadata, is_long)
        head = b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[' % (
            kind.encode(),
            version.encode(),
            orjson.dumps(metadata),
        )
        if is_long and view.is_storage and want.shape == "plain" and not want.yaml:
            stream = list_body.ListStream(list_body.stored_pieces(head, entries), self._tasks)
            return Response(200, stream=stream, stream_length=list_body.stored_length(head, entries))
        if is_long and not want.yaml:
            pieces = list_body.json_pieces(head, entries, _json_item(view, want))
            return Response(200, stream=list_body.ListStream(pieces, self._tasks))
        if want.shape == "partial":
            items = [_partial(view.render(entry.raw), want.version) for entry in entries] or [b""]
        elif view.is_storage:
            items = [entry.raw for entry in entries] or [b""]
        else:
            items = [view.render(entry.raw) for entry in entries] or [b""]
        # One join for all of it: each further copy would cost time.
        items[0] = head + items[0]
        items[-1] += b"]}\n"
        body = b",".join(items)
        if want.yaml:
            return Response(200, _yaml(body), "application/yaml")
        return Response(200, body)

    def _many_protobuf(
        self,
        view: VersionView,
        entries: Sequence[ObjectEntry],
        want: NegotiatedFormat,
        envelope_head: bytes,
        metadata: dict[str, Any],
        is_long: bool,
    ) -> Response:
        meta = protobuf.message_encoder("meta.v1.ListMeta")(metadata)
        first = b"\x0a%b%b" % (protobuf.varint(len(meta)), meta)
        item = _protobuf_item(view, want)
        if is_long:
            pieces = list_body.protobuf_pieces(envelope_head, first, entries, item)
            return Response(200, content_type=MEDIA_TYPE, stream=list_body.ListStream(pieces, self._tasks))
        return Response(200, list_body.protobuf_list(envelope_head, first, entries, item), MEDIA_TYPE)

    # -- events -------------------------------------------------------------------------------------------------

    def watch_encoder(self, call: ResourceRequest, want: NegotiatedFormat) -> tuple[Encode, Hashable]:
        """How events are written for this client, and what identifies that way: equal keys, equal bytes."""
        view = call.view
        key: tuple[object, ...] = (view, want.shape, want.version, want.protobuf)
        if want.protobuf:
            return _protobuf_events(view, want), key
        if want.shape == "plain":
            return _plain_events(view), key
        if want.shape == "partial":

            def partial(kind: str, entry: ObjectEntry, first: bool) -> bytes:
                return _event(kind, _partial(view.render(entry.raw), want.version))

            return partial, key
        builder, include = call.strategy.table, _include(call)

        def table(kind: str, entry: ObjectEntry, first: bool) -> bytes:
            row = builder.row_json(view.render(entry.raw), "", self._moment(), include)
            return _event(kind, builder.table([row], resource_version=str(entry.revision), no_headers=not first))

        return table, (*key, include)

    def bookmark_encoder(self, call: ResourceRequest, want: NegotiatedFormat) -> Callable[[int, bool], bytes]:
        """A bookmark is an object of the watched kind with nothing in it but a resourceVersion."""
        resource, strategy = call.resource, call.strategy

        def bookmark(revision: int, initial_end: bool) -> bytes:
            metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
            if initial_end:
                metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
            kind, version = resource.kind, resource.api_version
            if want.shape == "table":
                partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
                row = b'{"cells":[],"object":%b}' % orjson.dumps(partial)
                table = strategy.table.table([row], resource_version=str(revision), no_headers=True)
                return _event("BOOKMARK", table)
            if want.shape == "partial":
                kind, version = "PartialObjectMetadata", f"meta.k8s.io/{want.version}"
            shown = {"kind": kind, "apiVersion": version, "metadata": metadata}
            if want.protobuf:
                return protobuf.watch_event("BOOKMARK", protobuf.encode(shown) or b"")
            return _event("BOOKMARK", orjson.dumps(shown))

        return bookmark

    def _moment(self) -> float:
        return self._clock.now().timestamp()


def error_event(status: Status, want: NegotiatedFormat) -> bytes:
    if want.protobuf:
        return protobuf.watch_event("ERROR", protobuf.encode(status) or b"")
    return _event("ERROR", orjson.dumps(status))


def _json_item(view: VersionView, want: NegotiatedFormat) -> list_body.ItemEncoder:
    if want.shape == "partial":
        return lambda entry: _partial(view.render(entry.raw), want.version)
    return lambda entry: view.render(entry.raw)


def _protobuf_item(view: VersionView, want: NegotiatedFormat) -> list_body.ItemEncoder:
    """An object without its envelope, as it stands in a list or, with one, in an event."""
    if want.shape == "partial":
        partial = protobuf.kind_encoder("meta.k8s.io/v1", "PartialObjectMetadata")
        assert partial is not None
        return lambda entry: partial(orjson.loads(entry.raw))
    encoder = protobuf.kind_encoder(view.resource.api_version, view.resource.kind)
    assert encoder is not None, "protobuf was negotiated for a kind that has it"
    return lambda entry: encoder(view.load(entry.raw))


def _protobuf_events(view: VersionView, want: NegotiatedFormat) -> Encode:
    item = _protobuf_item(view, want)
    if want.shape == "partial":
        version, kind = f"meta.k8s.io/{want.version}", "PartialObjectMetadata"
    else:
        version, kind = view.resource.api_version, view.resource.kind
    return lambda event, entry, first: protobuf.watch_event(event, protobuf.envelope(version, kind, item(entry)))


def _plain_events(view: VersionView) -> Encode:
    if view.is_storage:
        return lambda kind, entry, first: _event(kind, entry.raw)
    return lambda kind, entry, first: _event(kind, view.render(entry.raw))


def _event(kind: str, obj: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), obj)


def _partial(body: bytes, version: str) -> bytes:
    metadata = _metadata.decode(body).metadata
    return b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/%b","metadata":%b}' % (
        version.encode(),
        metadata,
    )


def _include(call: ResourceRequest) -> Include:
    include = call.request.param("includeObject") if call.request.query else ""
    if not include:
        return "Metadata"
    if include not in _INCLUDES:
        raise errors.BadRequest(f'includeObject must be None, Metadata or Object, not "{include[:64]}"')
    return cast("Include", include)


def _yaml(body: bytes) -> bytes:
    text: str = yaml.dump(orjson.loads(body), Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
    return text.encode()


def warning_headers(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Headers for the first few: clients refuse answers whose head is too large."""
    return [warning_header(text) for text in texts[:_MOST_WARNINGS]]


def warning_header(text: str) -> tuple[str, str]:
    return "Warning", f'299 - "{_quoted(text[:_LONGEST_WARNING])}"'


def _quoted(text: str) -> str:
    """Text for a Warning header: one line, no bare quotes."""
    return "".join(ch if ch.isprintable() else " " for ch in text).replace("\\", "\\\\").replace('"', '\\"')
