"""JSON that people read: indented where `?pretty` asks for it, and for programs with which people look at answers."""

from __future__ import annotations

from dataclasses import replace

import orjson

from coterie.http.messages import Request, Response

READERS = ("curl", "Wget", "Mozilla/5.0")
_TRUE, _FALSE = ("1", "t", "T", "true", "True", "TRUE"), ("0", "f", "F", "false", "False", "FALSE")


def for_people(request: Request, answer: Response) -> Response:
    """The answer as it is, or indented."""
    if answer.content_type != "application/json" or answer.stream is not None or not answer.body or answer.verbatim:
        return answer
    if not is_wanted(request):
        return answer
    return replace(answer, body=orjson.dumps(orjson.loads(answer.body), option=orjson.OPT_INDENT_2))


def is_wanted(request: Request) -> bool:
    asked = request.param("pretty") if "pretty=" in request.query else ""
    if asked in _TRUE or asked in _FALSE:
        return asked in _TRUE
    return request.headers.get("user-agent", "").startswith(READERS)
