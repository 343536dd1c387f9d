"""What a request must show before anything is done for it: our own Host, our own Origin, the header that only our page sends.

A cookie alone proves nothing: pages on other ports of the same machine send it too, also for WebSockets.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.http.errors import HttpProblem

CSRF = "x-coterie-csrf"
_SAFE = ("GET", "HEAD")
_FETCH_SITES = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    hosts: tuple[str, ...]
    """With ports, as browsers write them."""

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(f"{self.scheme}://{host}" for host in self.hosts)


def check_host(headers: Mapping[str, str], origin: Origin) -> None:
    if headers.get("host", "") not in origin.hosts:
        raise HttpProblem(
            421, "MisdirectedRequest", f"this is the console of {origin.hosts[0]}; it answers under no other name"
        )


def check_origin(
    method: str, headers: Mapping[str, str], origin: Origin, *, websocket: bool = False, page: bool = False
) -> None:
    """Other sites get nothing done here, and open no connection that stays. Links of theirs lead to a `page`, which shows
    nothing by itself."""
    given = headers.get("origin")
    if given is None:
        if websocket or method not in _SAFE:
            raise HttpProblem(403, "Forbidden", "the request does not say from which page it comes (Origin)")
        visits = page and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if not visits and headers.get("sec-fetch-site", "none") not in _FETCH_SITES:
            raise HttpProblem(403, "Forbidden", "requests of other sites are not answered")
    elif given not in origin.all:
        raise HttpProblem(403, "Forbidden", "requests of other sites are not answered")


def check_csrf(headers: Mapping[str, str], expected: str) -> None:
    if not hmac.compare_digest(headers.get(CSRF, "").encode(), expected.encode()):
        raise HttpProblem(403, "Forbidden", f"the header {CSRF} is missing or of another session; load the page again")


def cookie_of(headers: Mapping[str, str], name: str) -> str:
    for part in headers.get("cookie", "").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


def cookie_name(domain: str) -> str:
    """`__Host-`: no other host and no plain connection can set it. Browsers take it on loopback without TLS as well."""
    return f"__Host-coterie-{domain}"


def set_cookie(name: str, value: str, *, seconds: int) -> str:
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Strict"
