"""Whose a domain is."""

from __future__ import annotations

import msgspec
import pytest

from coterie.kuscia.api.domain_ownership import is_own, is_partner, is_partner_lite, master_of
from coterie.kuscia.api.types.domain import Domain

ROWS = [
    # role, master, protocols, own, partner, partner lite, the master
    ("", "", [], True, False, False, "d"),
    ("partner", "", ["kuscia"], False, True, False, "d"),
    ("partner", "d", ["kuscia"], False, True, False, "d"),
    ("partner", "m", ["kuscia"], False, True, True, "m"),
    ("partner", "m", [], False, True, True, "m"),
    ("partner", "m", ["bfia"], False, True, False, "m"),
]


@pytest.mark.parametrize(("role", "master", "protocols", "own", "partner", "lite", "hosted_by"), ROWS)
def test_whose_a_domain_is(
    role: str, master: str, protocols: list[str], own: bool, partner: bool, lite: bool, hosted_by: str
) -> None:
    spec = {"role": role, "master": master, "interConnProtocols": protocols}
    domain = msgspec.convert({"metadata": {"name": "d"}, "spec": spec}, Domain)
    assert (is_own(domain), is_partner(domain), is_partner_lite(domain)) == (own, partner, lite)
    assert master_of("d", domain) == hosted_by


def test_an_unknown_domain_is_nobodys() -> None:
    assert not is_own(None) and not is_partner(None)
    assert master_of("d", None) == "d"
