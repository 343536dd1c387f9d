"""Tables of the domain: in calls of the domain itself those that `spec.tables` of the action names, in a partner's call those that its ActionGrant names.

    from serverless.tables import read_rows

    rows = read_rows("customers", columns=["id", "segment"], where={"id": req.param("id")})      # [{"id": "C7", "segment": "gold"}]

The data mesh answers. For a partner it looks at the DomainDataGrants: other tables and columns cannot be read, and each read is a use of the grant.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["TableError", "read_rows"]

_ADDRESS = "datamesh", 8070
_PATH = "/api/v1/datamesh/domaindata/rows"
_SECONDS = 30.0
_START = os.getcwd()
"""Where the certificates are named from: the code may change the directory."""
_FILES = {"TRUSTED_CA_FILE": "ca.crt", "CLIENT_CERT_FILE": "client.crt", "CLIENT_PRIVATE_KEY_FILE": "client.key"}


class TableError(Exception):
    """The table cannot be read; the text says why. `status`: 403 when it is not granted."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def read_rows(
    table: str,
    columns: Sequence[str] = (),
    where: Mapping[str, str | int | float | bool] | None = None,
    limit: int = 100_000,
) -> list[dict[str, Any]]:
    """`columns`: none: all that are granted. `where`: rows that have these values. Raises TableError."""
    query = {"domaindata_id": table, "columns": list(columns), "where": dict(where or {}), "limit": limit}
    connection = http.client.HTTPSConnection(*_ADDRESS, timeout=_SECONDS, context=_context())
    try:
        connection.request("POST", _PATH, json.dumps(query), {"Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as problem:
        raise TableError(f"the data mesh cannot be asked: {problem}") from problem
    finally:
        connection.close()
    try:
        answer = json.loads(body)
        if response.status == 200:
            rows: list[dict[str, Any]] = answer["rows"]
            return rows
        raise TableError(str(answer["status"]["message"]), response.status)
    except (ValueError, LookupError, TypeError) as problem:
        raise TableError(f"the data mesh answered {response.status}", response.status) from problem


def _context() -> ssl.SSLContext:
    authorities, certificate, key = (
        os.path.join(_START, os.environ.get(variable) or f"kuscia/certs/{name}") for variable, name in _FILES.items()
    )
    if not os.path.exists(certificate):
        raise TableError(
            "this actor reads no tables: neither `spec.tables` of its action nor the ActionGrant of the partner who calls names some"
        )
    context = ssl.create_default_context(cafile=authorities)
    context.load_cert_chain(certificate, key)
    return context
