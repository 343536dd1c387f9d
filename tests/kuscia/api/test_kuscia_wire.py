"""The annotation by which a route asks for weaker forms of Kuscia's wire."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coterie.kuscia.api.kuscia_wire import WEAKNESSES, KusciaWireForm, wire_faults, wire_forms, written
from coterie.kuscia.api.types.domain import BodyEncryption, MtlsConfig, RouteSpec, Transit

KEY = "coterie.io/kuscia-wire"
PLAIN = RouteSpec(source="alice", destination="bob", authentication_type="Token")
ENCRYPTED = replace(PLAIN, body_encryption=BodyEncryption(algorithm="AES"))


def test_each_form_has_its_weakness_and_all_are_off_by_default() -> None:
    assert set(WEAKNESSES) == set(KusciaWireForm)
    assert wire_forms(None) == wire_forms({}) == wire_forms({KEY: " , "}) == frozenset()
    forms = wire_forms({KEY: "no-client-certificate, body-encryption,no-client-certificate"})
    assert written(forms) == "body-encryption,no-client-certificate"


@pytest.mark.parametrize(
    ("text", "spec", "fault"),
    [
        ("", PLAIN, ""),
        ("no-client-certificate,changing-certificate", PLAIN, ""),
        ("body-encryption", ENCRYPTED, ""),
        ("Body-Encryption", ENCRYPTED, "is none of"),
        ("body-encryption", PLAIN, "needs bodyEncryption"),
        ("no-client-certificate", replace(PLAIN, authentication_type="None"), "needs authenticationType Token"),
        ("no-client-certificate", replace(PLAIN, authentication_type="MTLS"), "needs authenticationType Token"),
        ("changing-certificate", replace(PLAIN, transit=Transit()), "dialled directly"),
        ("reverse-tunnel", PLAIN, "needs transit.transitMethod REVERSE-TUNNEL"),
        ("reverse-tunnel", replace(PLAIN, transit=Transit(transit_method="REVERSE-TUNNEL")), ""),
        ("body-encryption", replace(ENCRYPTED, transit=Transit()), "dialled directly"),
        ("changing-certificate", replace(PLAIN, mtls_config=MtlsConfig(tls_ca="eA==")), "is not needed"),
    ],
    ids=[
        "off",
        "certificates",
        "bodies",
        "unknown",
        "no-encryption",
        "no-token",
        "mtls",
        "transit",
        "no-tunnel",
        "tunnel",
        "bodies-transit",
        "authority",
    ],
)
def test_what_cannot_be_is_said(text: str, spec: RouteSpec, fault: str) -> None:
    faults = wire_faults({KEY: text}, spec)
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)
