"""Whose a domain is. Pure.

own           this control plane hosts it (`spec.role` is empty): its own domain, or a lite's that joined it
partner       another control plane hosts it (`spec.role: partner`); its namespace here is only a mirror
partner lite  a partner whose control plane is another domain (`spec.master`) and speaks Kuscia's protocol
"""

from __future__ import annotations

from coterie.kuscia.api.types.domain import KUSCIA_PROTOCOL, Domain


def is_own(domain: Domain | None) -> bool:
    """A domain that is not known here is nobody's."""
    return domain is not None and not domain.partner


def is_partner(domain: Domain | None) -> bool:
    return domain is not None and domain.partner


def is_partner_lite(domain: Domain) -> bool:
    return (
        domain.partner
        and domain.spec.master not in ("", domain.metadata.name)
        and domain.protocol in ("", KUSCIA_PROTOCOL)
    )


def master_of(name: str, domain: Domain | None) -> str:
    """The domain of the control plane that hosts a partner."""
    return (domain.spec.master if domain is not None else "") or name
