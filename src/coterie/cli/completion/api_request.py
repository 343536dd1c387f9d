"""Reads objects of an API server for completion: one connection, blocking, with the standard library only.

The client of the other commands is asynchronous and takes four times as long to load as everything here together. A password,
a proxy or a program for credentials is not supported: then no names are offered.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coterie.kube.client.kubeconfig import ClusterConnection

_METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
_MOST_BYTES = 8 << 20


class ApiReader:
    def __init__(self, connection: ClusterConnection, timeout: float) -> None:
        self.namespace = connection.namespace
        self._connection = connection
        self._timeout = timeout
        self._http: http.client.HTTPConnection | None = None

    def get(self, path: str, *, metadata_only: bool = False, discovery: bool = False) -> Mapping[str, Any]:
        accept = _METADATA if metadata_only else _DISCOVERY if discovery else "application/json"
        try:
            if self._http is None:
                self._http = _open(self._connection, self._timeout)
            self._http.request("GET", urlsplit(self._connection.server).path + path, headers=self._headers(accept))
            answer = self._http.getresponse()
            body = answer.read(_MOST_BYTES)
            document = json.loads(body) if answer.status == http.client.OK else {}
        except (OSError, http.client.HTTPException, ValueError):
            self.close()
            return {}
        return document if isinstance(document, dict) else {}

    def _headers(self, accept: str) -> dict[str, str]:
        connection = self._connection
        headers = {"Accept": accept, "User-Agent": "coterie-completion"}
        token = connection.token
        if not token and connection.token_file:
            token = Path(connection.token_file).read_text().strip()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if connection.impersonate:
            headers["Impersonate-User"] = connection.impersonate
        return headers

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None


def _open(connection: ClusterConnection, timeout: float) -> http.client.HTTPConnection:
    parts = urlsplit(connection.server)
    host = parts.hostname or ""
    if connection.proxy_url or connection.exec is not None or connection.username:
        raise OSError("completion does not support this kubeconfig")
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port or 80, timeout=timeout)
    opened = http.client.HTTPSConnection(host, parts.port or 443, timeout=timeout, context=_tls(connection))
    if connection.tls_server_name:
        plain = socket.create_connection((host, parts.port or 443), timeout)
        opened.sock = _tls(connection).wrap_socket(plain, server_hostname=connection.tls_server_name)
    return opened


def _tls(connection: ClusterConnection) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=connection.ca.decode("ascii", "replace") if connection.ca else None)
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if connection.certificate:
        # The ssl module reads a key only from a file; this one is in memory and has no name.
        handle = os.memfd_create("coterie-completion", os.MFD_CLOEXEC)
        try:
            os.write(handle, connection.certificate + b"\n" + connection.key)
            context.load_cert_chain(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
    return context
