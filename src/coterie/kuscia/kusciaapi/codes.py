"""What goes wrong, with the numbers that clients of KusciaAPI know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, unique
from typing import Any


@unique
class ApiErrorCode(IntEnum):
    SUCCESS = 0
    # Common.
    VALIDATION = 11100
    UNEXPECTED = 11101
    PERMISSION = 11102
    CALL_TO_MASTER = 11103
    NOT_ON_LITE = 11104
    NOT_ON_MASTER = 11105
    # Jobs.
    CREATE_JOB = 11201
    QUERY_JOB = 11202
    QUERY_JOB_STATUS = 11203
    DELETE_JOB = 11204
    STOP_JOB = 11205
    APPROVE_JOB = 11206
    SUSPEND_JOB = 11207
    RESTART_JOB = 11208
    CANCEL_JOB = 11209
    SUSPEND_NOT_RUNNING = 11210
    RESTART_NOT_ENDED = 11211
    # Domains.
    CREATE_DOMAIN = 11300
    QUERY_DOMAIN = 11301
    QUERY_DOMAIN_STATUS = 11302
    UPDATE_DOMAIN = 11303
    DELETE_DOMAIN = 11304
    NO_DOMAIN = 11305
    DOMAIN_EXISTS = 11306
    # Routes.
    CREATE_ROUTE = 11400
    QUERY_ROUTE = 11401
    QUERY_ROUTE_STATUS = 11402
    DELETE_ROUTE = 11403
    NO_ROUTE = 11404
    ROUTE_EXISTS = 11405
    # Data.
    CREATE_DATA = 11500
    DELETE_DATA = 11501
    GET_DATA = 11502
    LIST_DATA = 11503
    MERGE_DATA = 11504
    PATCH_DATA = 11505
    NO_DATA = 11506
    DATA_EXISTS = 11507
    # Serving.
    CREATE_SERVING = 11600
    QUERY_SERVING = 11601
    QUERY_SERVING_STATUS = 11602
    UPDATE_SERVING = 11603
    DELETE_SERVING = 11604
    # Grants.
    CREATE_GRANT = 11700
    UPDATE_GRANT = 11701
    QUERY_GRANT = 11702
    DELETE_GRANT = 11703
    GRANT_EXISTS = 11704
    NO_GRANT = 11705
    # Sources.
    CREATE_SOURCE = 11800
    UPDATE_SOURCE = 11801
    QUERY_SOURCE = 11802
    BATCH_QUERY_SOURCE = 11803
    DELETE_SOURCE = 11804
    SOURCE_EXISTS = 11805
    NO_SOURCE = 11806
    ENCODE_SOURCE = 11807
    LIST_SOURCE = 11808
    # Config.
    CREATE_CONFIG = 11900
    QUERY_CONFIG = 11901
    UPDATE_CONFIG = 11902
    DELETE_CONFIG = 11903
    BATCH_QUERY_CONFIG = 11904
    # App images.
    CREATE_IMAGE = 13100
    QUERY_IMAGE = 13101
    UPDATE_IMAGE = 13102
    DELETE_IMAGE = 13103
    BATCH_QUERY_IMAGE = 13104
    NO_IMAGE = 13105
    IMAGE_EXISTS = 13106
    LIST_IMAGE = 13107
    # Logs.
    QUERY_LOG = 13200
    QUERY_POD_NODE = 13201
    # Bandwidth; ours.
    QUERY_BANDWIDTH = 13900
    SET_BANDWIDTH = 13901
    # Logs of partners; ours.
    QUERY_PARTNER_LOG = 13910
    ASK_PARTNER_LOG = 13911
    REVIEW_PARTNER_LOG = 13912
    # Evidence; ours.
    QUERY_EVIDENCE = 13920
    PROVE_EVIDENCE = 13921
    EXPORT_EVIDENCE = 13922
    # Dry runs; ours.
    PLAN_JOB = 13930
    # Those of ConfManager, which signs certificates.
    BAD_CERTIFICATE_REQUEST = 2000
    GENERATE_CERTIFICATE = 2200


class CallRefused(Exception):
    """A call that is not carried out. The message is a sentence for the caller and holds no secret."""

    def __init__(
        self,
        code: ApiErrorCode,
        message: str,
        details: Sequence[tuple[ApiErrorCode, str]] = (),
        found: Mapping[str, Any] | None = None,
    ) -> None:
        """`details`: for each item of a batch that failed, why; `found`: what the answer has of the others."""
        super().__init__(message)
        self.code = code
        self.details = tuple(details)
        self.found = dict(found or {})


def invalid(field: str, problem: str) -> CallRefused:
    """A field of the request cannot be taken: `invalid("tasks[0].alias", "must be given")`."""
    return CallRefused(ApiErrorCode.VALIDATION, f"{field}: {problem}")
