"""The ConfigMap `kube-system/extension-apiserver-authentication`: how aggregated API servers authenticate callers.

An aggregated server accepts client certificates of `client-ca-file`, and user names in headers from whoever has a client
certificate of `requestheader-client-ca-file` with an allowed common name: that is this API server, as a proxy. Only
certificates are in the ConfigMap; the keys stay in files (`node/api_identity.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INFO_NAMESPACE = "kube-system"
INFO_NAME = "extension-apiserver-authentication"
FRONT_PROXY_USER = "front-proxy-client"
"""The common name of the certificate with which this server calls aggregated ones."""
USER_HEADER, UID_HEADER, GROUP_HEADER, EXTRA_PREFIX = (
    "X-Remote-User",
    "X-Remote-Uid",
    "X-Remote-Group",
    "X-Remote-Extra-",
)


@dataclass(frozen=True, slots=True)
class AuthenticationInfo:
    client_ca: str
    """Authorities of client certificates, PEM."""
    request_header_ca: str
    """Authority of the front-proxy certificate, PEM. Never the same one: its holder may name any user."""

    def config_map(self, existing: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As it should be; keys that others added stay."""
        data = {
            "client-ca-file": self.client_ca,
            "requestheader-allowed-names": json.dumps([FRONT_PROXY_USER]),
            "requestheader-client-ca-file": self.request_header_ca,
            "requestheader-extra-headers-prefix": json.dumps([EXTRA_PREFIX]),
            "requestheader-group-headers": json.dumps([GROUP_HEADER]),
            "requestheader-uid-headers": json.dumps([UID_HEADER]),
            "requestheader-username-headers": json.dumps([USER_HEADER]),
        }
        if existing is None:
            metadata: Mapping[str, Any] = {"name": INFO_NAME, "namespace": INFO_NAMESPACE}
            return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        return {**existing, "data": {**(existing.get("data") or {}), **data}}
