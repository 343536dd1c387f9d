"""The API server as the logged-in person sees it: each call carries that person's token, so rights and audit are the server's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from coterie.console import static_files
from coterie.console.sessions import Login
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response
from coterie.kube.api.errors import ApiError
from coterie.kube.client.transport import Transport, TransportError, TransportRequest, TransportResponse

PREFIX = "/kube"
FIELD_MANAGER = "coterie-console"
_PATH = re.compile(r"/(api|apis|version|openapi)(/[^\x00-\x1f\x7f]*)?")
_QUERY = re.compile(r"[\x21-\x7e]*")
_ELSEWHERE = re.compile(
    r"/api/v1/(?:namespaces/[^/]+/)?(?:pods|services|nodes)/[^/]+/(?:proxy|exec|attach|portforward)(?:/.*)?"
    r"|/api/v1/namespaces/[^/]+/serviceaccounts/[^/]+/token"
)
"""What leads into pods and nodes, past the switches of this console, and what makes credentials that outlive the session."""
_SELF_REVIEWS = (
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
)
READ_ONLY = "this console is read-only (console.readOnly in the node's configuration)"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_PASSED = ("accept", "content-type")
_SHOWN = ("application/json", "text/plain")
"""Types that a browser gets as they are. Everything else is shown as text: an answer is data, never a page of ours."""
LONGEST_ANSWER = 16 << 20


class PersonalTransport:
    """A transport that shows one person's token. Sockets are shared with the others'."""

    def __init__(self, shared: Transport, login: Login, refused: Callable[[], None] = lambda: None) -> None:
        """`refused` is called when the API server does not accept the token any more."""
        self._shared = shared
        self._login = login
        self._refused = refused

    async def send(self, call: TransportRequest) -> TransportResponse:
        headers = {**call.headers, "Authorization": f"Bearer {self._login.token.reveal()}"}
        reply = await self._shared.send(replace(call, headers=headers))
        if reply.status == 401:
            self._refused()
        return reply

    async def close(self) -> None:
        """The sockets belong to everybody."""


@contextmanager
def api_problems() -> Iterator[None]:
    """What the API server refuses is refused to the page in the same words."""
    try:
        yield
    except ApiError as problem:
        raise HttpProblem(problem.code, problem.reason, problem.message) from problem
    except TransportError as problem:
        raise HttpProblem(502, "BadGateway", f"the API server does not answer: {problem}") from problem


async def pass_on(request: Request, transport: Transport, *, read_only: bool) -> Response:
    """One call of the page to the API: `/kube/api/v1/...` without the prefix."""
    path = request.path.removeprefix(PREFIX)
    if _PATH.fullmatch(path) is None or "/../" in f"{path}/":
        raise HttpProblem(404, "NotFound", "the console passes on calls of the Kubernetes API only")
    if _ELSEWHERE.fullmatch(path) is not None:
        raise HttpProblem(403, "Forbidden", "the console passes on nothing into pods and nodes, and makes no tokens")
    if request.method not in _METHODS:
        raise HttpProblem(405, "MethodNotAllowed", "the console passes on GET, POST, PUT, PATCH and DELETE")
    if read_only and not _only_reads(request.method, path):
        raise HttpProblem(403, "Forbidden", READ_ONLY)
    if _QUERY.fullmatch(request.query) is None:
        raise HttpProblem(400, "BadRequest", "the query must be percent-encoded")
    if any(name in request.params for name in ("watch", "follow")):
        raise HttpProblem(400, "BadRequest", "use /live for what goes on without end")
    headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
    call = TransportRequest(request.method, path, request.query, headers, request.body)
    try:
        reply = await transport.send(call)
    except TransportError as problem:
        raise HttpProblem(502, "BadGateway", f"the API server does not answer: {problem}") from problem
    if len(reply.body) > LONGEST_ANSWER:
        raise HttpProblem(502, "BadGateway", "the answer is too long for a page; ask for less, or use the command line")
    headers_back = [*static_files.security_headers(), ("Cache-Control", "no-store")]
    return Response(reply.status, reply.body, _content_type(reply.headers), headers_back)


def _only_reads(method: str, path: str) -> bool:
    """Reviews and checks of one's own rights are POSTs that change nothing."""
    return method == "GET" or (method == "POST" and path in _SELF_REVIEWS)


def _content_type(headers: Mapping[str, str]) -> str:
    given = headers.get("content-type", "").partition(";")[0].strip()
    return given if given in _SHOWN else "text/plain"
