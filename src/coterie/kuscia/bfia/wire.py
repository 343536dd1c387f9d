"""Messages of BFIA's scheduling interface, as JSON with the names of its definitions. Pure.

What a partner sends is read strictly where it decides something, and bounded; parameters of components stay plain data, because only the
engine knows what they mean.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

SCHEDULER_SERVICE = "interconn-scheduler"
SCHEDULE = "/v1/interconn/schedule/"
JOB_CREATE, JOB_START, JOB_STOP = "job/create", "job/start", "job/stop"
JOB_STATUS = "job/status_all"
TASK_START, TASK_STOP, TASK_POLL = "task/start", "task/stop", "task/poll"
POSTS = tuple(SCHEDULE + path for path in (JOB_CREATE, JOB_START, JOB_STOP, TASK_START, TASK_STOP, TASK_POLL))
GETS = (SCHEDULE + JOB_STATUS,)
OK, BAD_REQUEST, FAILED = 200, 400, 500
"""Codes in answers; the HTTP status is 200."""
VERSION = "2.0.0"
ROLES = ("host", "guest", "arbiter")
PENDING, RUNNING, SUCCESS, FAILURE = "PENDING", "RUNNING", "SUCCESS", "FAILED"
MAX_COMPONENTS = 200
MAX_NODES = 64
MAX_BODY = 4 << 20

Plain = dict[str, Any]


class BfiaRefused(Exception):
    """A request that is answered with a code and a sentence."""

    def __init__(self, message: str, code: int = BAD_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class BfiaMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ComponentIO(BfiaMessage, frozen=True, kw_only=True):
    type: str = ""
    key: str = ""


class Component(BfiaMessage, frozen=True, kw_only=True, omit_defaults=False):
    code: str
    """The AppImage."""
    name: str
    """The task's alias."""
    module_name: str = ""
    version: str = VERSION
    input: tuple[ComponentIO, ...] = ()
    output: tuple[ComponentIO, ...] = ()


class Dag(BfiaMessage, frozen=True, kw_only=True, omit_defaults=False):
    components: tuple[Component, ...]
    version: str = VERSION


class ConfigInitiator(BfiaMessage, frozen=True, kw_only=True):
    role: str
    node_id: str


class ConfigRole(BfiaMessage, frozen=True, kw_only=True):
    """Node ids by role; their places are the indexes in parameters."""

    arbiter: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    guest: tuple[str, ...] = ()

    def of(self, role: str) -> tuple[str, ...]:
        return {"arbiter": self.arbiter, "host": self.host, "guest": self.guest}.get(role, ())


class ConfigParams(BfiaMessage, frozen=True, kw_only=True):
    """Of roles by the index of the node, then by component; in common by component."""

    host: Plain = {}
    arbiter: Plain = {}
    guest: Plain = {}
    common: Plain = {}

    def of(self, role: str) -> Plain:
        return {"arbiter": self.arbiter, "host": self.host, "guest": self.guest}.get(role, {})


class JobConfig(BfiaMessage, frozen=True, kw_only=True, omit_defaults=False):
    role: ConfigRole
    initiator: ConfigInitiator
    job_params: ConfigParams = ConfigParams()
    task_params: ConfigParams = ConfigParams()
    version: str = VERSION


class CreateJobRequest(BfiaMessage, frozen=True, kw_only=True):
    job_id: str
    dag: Dag
    config: JobConfig
    flow_id: str = ""


class JobRequest(BfiaMessage, frozen=True, kw_only=True):
    """Of job/start and job/stop."""

    job_id: str


class StartTaskRequest(BfiaMessage, frozen=True, kw_only=True):
    task_id: str
    job_id: str
    task_name: str


class StopTaskRequest(BfiaMessage, frozen=True, kw_only=True):
    task_id: str


class PollTaskRequest(BfiaMessage, frozen=True, kw_only=True):
    task_id: str
    role: str = ""


class CommonAnswer(msgspec.Struct, frozen=True, kw_only=True):
    code: int = OK
    msg: str = "success"
    data: Plain = {}


class TaskInput(BfiaMessage, frozen=True, kw_only=True):
    """The input of a KusciaTask of a BFIA job."""

    name: str
    module_name: str = ""
    input: tuple[ComponentIO, ...] = ()
    output: tuple[ComponentIO, ...] = ()
    role: ConfigRole
    initiator: ConfigInitiator
    task_params: ConfigParams = ConfigParams()


T = TypeVar("T")


def read(body: bytes, kind: type[T]) -> T:
    """Raises BfiaRefused."""
    if len(body) > MAX_BODY:
        raise BfiaRefused(f"a request has at most {MAX_BODY} bytes")
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(body)), kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise BfiaRefused(f"the request cannot be read: {problem}") from problem


_FREE = frozenset(("job_params", "task_params"))
"""What is the engine's: null means something to it."""


def _without_nulls(value: Any) -> Any:
    """In the JSON of protocol buffers null is the same as a field that is missing; some libraries write it for empty lists."""
    if isinstance(value, dict):
        return {key: each if key in _FREE else _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def write(message: Any) -> bytes:
    return msgspec.json.encode(message)
