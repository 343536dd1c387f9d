"""An HTTP request as a call, and an answer as an HTTP response. Nothing here waits."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

import orjson

from coterie.base.ids import uid4
from coterie.base.trace import new_span_id, parse_traceparent, traceparent
from coterie.functions.gateway.link_messages import TriggerRoute
from coterie.functions.messages import FunctionResponse, Invoke, body_of, payload_of
from coterie.http.errors import HttpProblem, bad_request
from coterie.http.messages import Request, Response

TOPICS_PATH = "/coterie/topics/"
DEFAULT_SECONDS = 90.0
MAX_SECONDS = 3600.0
_MAX_KEY = 256
_MAX_HEADER = 8192
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TOPIC = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{7,63}")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_CONTENT_TYPE = re.compile(r"[\x20-\x7e]{1,255}")
_PASSED_ON = frozenset(
    ("accept", "accept-language", "content-encoding", "if-none-match", "if-modified-since", "referer", "user-agent", "x-request-id")
)  # fmt: skip
"""Headers of a request that code sees: no credentials, no cookies, nothing that says who asks."""
_NOT_FOR_CODE = frozenset(
    (
        "connection", "content-length", "content-type", "date", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "server", "set-cookie", "set-cookie2", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
"""Headers of an answer that code may not set: those of the connection, and cookies, which all functions of the address would share."""
_WITHOUT_BODY = frozenset((204, 205, 304))


class RouteIndex:
    """Which action serves a path."""

    def __init__(self, routes: Sequence[TriggerRoute] = ()) -> None:
        self._paths: dict[str, list[TriggerRoute]] = {}
        for route in routes:
            self._paths.setdefault(route.path, []).append(route)

    def find(self, method: str, path: str) -> TriggerRoute:
        routes = self._paths.get(path)
        if not routes:
            raise HttpProblem(404, "NotFound", "no trigger has this path")
        for route in routes:
            if not route.methods or method in route.methods:
                return route
        allowed = sorted({each for route in routes for each in route.methods})
        raise MethodRefused(allowed)


class MethodRefused(HttpProblem):
    def __init__(self, allowed: Sequence[str]) -> None:
        super().__init__(405, "MethodNotAllowed", f"this path takes {', '.join(allowed)}")
        self.allowed = ", ".join(allowed)


def action_of(path: str) -> str:
    """The name in `/actions/NAME`."""
    name = path.removeprefix("/actions/")
    if not _NAME.fullmatch(name):
        raise HttpProblem(404, "NotFound", "this is no name of an action")
    return name


def request_id_of(path: str) -> str:
    """The ID in `/calls/ID`."""
    found = path.removeprefix("/calls/")
    if not _REQUEST_ID.fullmatch(found):
        raise HttpProblem(404, "NotFound", "there is no such call")
    return found


def topic_of(path: str) -> str:
    """The name in `/coterie/topics/NAME`."""
    name = path.removeprefix(TOPICS_PATH)
    if not _TOPIC.fullmatch(name):
        raise HttpProblem(404, "NotFound", "this is no name of a topic")
    return name


def record_key(request: Request) -> str:
    """Of a record of a topic; empty: it has none. Whatever else a request for a record says is refused and not left out."""
    if request.method != "POST":
        raise MethodRefused(["POST"])
    if request.query:
        raise bad_request("records of topics have no parameters; the Trigger has those of its calls")
    for name in ("idempotency-key", "prefer", "coterie-timeout"):
        if name in request.headers:
            raise bad_request(f"records of topics have no {name}")
    key = request.headers.get("coterie-key", "")
    if len(key) > _MAX_KEY:
        raise bad_request(f"the key of a record has at most {_MAX_KEY} characters")
    return key


def is_asynchronous(request: Request) -> bool:
    preferences = request.headers.get("prefer", "").lower().split(",")
    return any(each.strip() == "respond-async" for each in preferences)


def seconds_of(request: Request, default: float) -> float:
    """How long the client waits (`Coterie-Timeout`)."""
    text = request.headers.get("coterie-timeout")
    if text is None:
        return default
    try:
        seconds = float(text.strip().removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise bad_request(f"Coterie-Timeout must be a number of seconds, at most {MAX_SECONDS:.0f}")
    return seconds


def params_of(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, values in request.params.items():
        if len(values) > 1:
            raise bad_request(f"the query has the parameter {name[:80]!r} more than once")
        found[name] = values[0]
    return found


def invoke_of(request: Request, route: TriggerRoute, secret: bytes, now: int, seconds: float) -> tuple[Invoke, bool]:
    """The call, and whether it may be a repetition. `now` in milliseconds; `seconds` 0: without a deadline."""
    params = params_of(request)
    content_type = request.headers.get("content-type", "")
    body = b"" if request.method in ("GET", "HEAD") else request.body
    if request.method != "GET" and content_type.partition(";")[0].strip().lower() == "application/json":
        _check_json(body)
    uid, repeated = _request_uid(request, route, body, secret)
    payload, payload_base64 = payload_of(body)
    key = request.headers.get("coterie-key", "") or (params.get(route.key, "") if route.key else "")
    if len(key) > _MAX_KEY:
        raise bad_request(f"the key of a call has at most {_MAX_KEY} characters")
    headers = {name: value for name, value in request.headers.items() if name in _PASSED_ON}
    headers["coterie-method"] = request.method
    return (
        Invoke(
            request_uid=uid,
            action=route.action,
            return_topic="",
            trigger_path=route.path,
            params=params,
            content_type=content_type,
            payload=payload,
            payload_base64=payload_base64,
            headers=headers,
            key=key,
            deadline=now + int(seconds * 1000) if seconds else 0,
            traceparent=_trace(request, uid),
        ),
        repeated,
    )


def _check_json(body: bytes) -> None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise bad_request("the body is not JSON, but its type says so") from None
    if not isinstance(value, dict):
        raise bad_request("a JSON body must be an object")


def _request_uid(request: Request, route: TriggerRoute, body: bytes, secret: bytes) -> tuple[str, bool]:
    """Of requests with an `Idempotency-Key` it follows from all that they say, the same at every replica: so a repetition gets the first answer, and
    the same key with another content is another call. Nobody can guess it from the key."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return uid4(), False
    if not key.strip() or len(key) > _MAX_KEY:
        raise bad_request(f"Idempotency-Key has 1 to {_MAX_KEY} characters")
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for piece in (route.action, request.method, request.path, request.query, key):
        digest.update(piece.encode() + b"\0")
    digest.update(body)
    return digest.hexdigest()[:32], True


def _trace(request: Request, uid: str) -> str:
    given = request.headers.get("traceparent", "")
    if given and parse_traceparent(given) is not None:
        return given.strip()
    return traceparent(uid.replace("-", ""), new_span_id())


def passed_headers(response: FunctionResponse) -> list[tuple[str, str]]:
    """What code may say in headers; the rest is dropped."""
    found: list[tuple[str, str]] = []
    for name, value in response.headers.items():
        text = str(value)
        if (
            _TOKEN.fullmatch(name)
            and name.lower() not in _NOT_FOR_CODE
            and not name.lower().startswith("coterie-")
            and _VALUE.fullmatch(text)
            and len(text) <= _MAX_HEADER
        ):
            found.append(("Cache-Control" if name.lower() == "cache-control" else name, text))
    return found[:64]


def http_response(response: FunctionResponse) -> Response:
    content_type = response.content_type if _CONTENT_TYPE.fullmatch(response.content_type) else "text/plain"
    headers = [*passed_headers(response), ("Coterie-Request", response.request_uid)]
    body = b"" if response.status_code in _WITHOUT_BODY else body_of(response)
    return Response(response.status_code, body, content_type, headers)
