"""Errors as HTTP responses: a Kubernetes `Status` in JSON, for the API's own errors and for those of the HTTP layer."""

from __future__ import annotations

import orjson

from coterie.http.errors import HttpProblem
from coterie.http.messages import Response
from coterie.kube.api.errors import ApiError, Status, from_status


def status_response(error: ApiError | HttpProblem) -> Response:
    """The body ends in a newline, as Go's encoder leaves it."""
    status = error.status() if isinstance(error, ApiError) else _status_of_problem(error)
    headers = [("Retry-After", str(error.retry_after))] if error.retry_after else []
    return Response(status["code"], orjson.dumps(status) + b"\n", headers=headers)


def _status_of_problem(problem: HttpProblem) -> Status:
    details = {"retryAfterSeconds": problem.retry_after}
    status = from_status({"message": problem.message, "reason": problem.reason, "details": details}).status()
    status["code"] = problem.status  # HTTP has closer codes than Kubernetes has reasons, such as 414 and 431
    return status
