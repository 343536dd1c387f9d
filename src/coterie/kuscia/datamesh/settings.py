"""What a data mesh is told: read by the node, and handed to the process that serves."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.paths import DomainPaths

HTTP_PORT, GRPC_PORT = 8070, 8071


@dataclass(frozen=True, slots=True)
class MeshSettings:
    domain: str
    paths: DomainPaths
    address: str = "127.0.0.1"
    http_port: int = HTTP_PORT
    grpc_port: int = GRPC_PORT
    recheck_seconds: float = 1.0
    """Seconds between two looks at a grant while rows flow."""
    log_rotation: Rotation = STANDARD
