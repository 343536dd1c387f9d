"""The own table of a task as a CSV file, from the domain's data mesh. Grants are looked at there."""

from __future__ import annotations

import csv
import http.client
import json
import os
import ssl
from pathlib import Path
from typing import Any

ADDRESS = "datamesh", 8070
LIMIT = 100_000
"""Rows that the data mesh gives at once."""
_PATH = "/api/v1/datamesh/domaindata/rows"
_SECONDS = 120.0
_FILES = {"TRUSTED_CA_FILE": "ca.crt", "CLIENT_CERT_FILE": "client.crt", "CLIENT_PRIVATE_KEY_FILE": "client.key"}


class TableUnreadable(Exception):
    """The sentence goes to the log."""


def fetch(table: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    authorities, certificate, key = (
        os.environ.get(variable) or f"kuscia/certs/{name}" for variable, name in _FILES.items()
    )
    query = {"domaindata_id": table, "columns": list(columns), "limit": LIMIT}
    try:
        context = ssl.create_default_context(cafile=authorities)
        context.load_cert_chain(certificate, key)
        connection = http.client.HTTPSConnection(*ADDRESS, timeout=_SECONDS, context=context)
        connection.request("POST", _PATH, json.dumps(query), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise TableUnreadable(f"the table {table} cannot be read: {answer['status']['message']}")
        rows: list[dict[str, Any]] = answer["rows"]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as problem:
        raise TableUnreadable(f"the table {table} cannot be read: {problem}") from problem
    if len(rows) >= LIMIT:
        raise TableUnreadable(f"the table {table} has {LIMIT} rows or more; this engine takes fewer")
    return rows


def write(path: Path, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    names = list(columns) or (list(rows[0]) if rows else [])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
