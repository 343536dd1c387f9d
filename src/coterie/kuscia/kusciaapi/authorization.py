"""Who calls, and what that caller may touch. Pure.

external HTTP and gRPC, with the token     the operator of this node: role `master`, may do everything
through the gateway, from another domain   role `domain`: only operations opened to domains, only what is its own
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused


class Role(StrEnum):
    MASTER = "master"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True)
class ApiCaller:
    role: Role = Role.MASTER
    domain: str = ""
    """Of callers with the role `domain`."""

    @property
    def everything(self) -> bool:
        return self.role is Role.MASTER

    def is_one_of(self, *domains: str) -> bool:
        return self.everything or self.domain in domains

    def must_be_one_of(self, *domains: str, to: str) -> None:
        """Refused (11102) unless the caller is the operator or one of these domains. `to`: "query job x"."""
        if not self.is_one_of(*domains):
            raise CallRefused(ApiErrorCode.PERMISSION, f"domain {self.domain} may not {to}")


OPERATOR = ApiCaller()
