"""Which service account a namespace lacks. Pure."""

from __future__ import annotations

from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.core import Namespace, ServiceAccount

NAME = "default"


def missing_account(namespace: Namespace | None, account: ServiceAccount | None) -> ServiceAccount | None:
    """What to create, if anything: nothing for a namespace that is gone or going."""
    if namespace is None or not namespace.active or account is not None:
        return None
    return ServiceAccount(metadata=ObjectMeta(name=NAME, namespace=namespace.metadata.name))
