"""The last step before an answer leaves: protobuf for clients that prefer it, gzip for remote ones that take it.

Verbs answer in JSON. Lists and watches, which may be long, are encoded where they are made (`presentation.py`); single
objects, Status and reviews are converted here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Request, Response
from coterie.kube.api import errors, wire
from coterie.kube.apiserver import content_negotiation, list_body, pretty

if TYPE_CHECKING:
    from coterie.kube.api.wire import encode as protobuf
else:
    protobuf = lazy_import("coterie.kube.api.wire.encode")

GZIP_ABOVE = 128 * 1024
_LOCAL = ("127.", "::1", "::ffff:127.")


def for_client(request: Request, answer: Response) -> Response:
    headers = request.headers
    if "pretty=" in request.query or headers.get("user-agent", "").startswith(pretty.READERS):
        answer = pretty.for_people(request, answer)
    if answer.verbatim:
        return answer
    if "protobuf" in headers.get("accept", ""):
        answer = _in_protobuf(headers["accept"], answer)
    if "accept-encoding" in headers and (len(answer.body) > GZIP_ABOVE or answer.stream is not None):
        return _compressed(request, answer)
    return answer


def _in_protobuf(accept: str, answer: Response) -> Response:
    if answer.content_type != "application/json" or answer.stream is not None or not answer.body:
        return answer
    try:
        want = content_negotiation.negotiate(accept, protobuf=True)
    except errors.NotAcceptable:
        return answer
    if not want.protobuf:
        return answer
    obj = orjson.loads(answer.body)
    body = protobuf.encode(obj) if isinstance(obj, dict) else None
    return answer if body is None else replace(answer, body=body, content_type=wire.MEDIA_TYPE)


def _compressed(request: Request, answer: Response) -> Response:
    """As Kubernetes: above 128 KiB, level 1; nothing for clients on this machine, who would only pay for it."""
    if not _takes_gzip(request.headers["accept-encoding"]) or not is_remote(request):
        return answer
    if any(name == "Content-Encoding" for name, _ in answer.headers):
        return answer
    headers = [*answer.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
    if answer.stream is None:
        return replace(answer, body=list_body.compressed(answer.body), headers=headers)
    if isinstance(answer.stream, list_body.ListStream):
        answer.stream.compress()
        return replace(answer, headers=headers, stream_length=-1)
    return answer


def is_remote(request: Request) -> bool:
    address = request.peer.address
    return request.peer.connected and bool(address) and not address.startswith(_LOCAL)


def _takes_gzip(header: str) -> bool:
    return any(token.strip() == "gzip" for token in header.split(","))
