"""Who may call ConfManager: engines of the domain that work for the domain itself.

What ConfManager signs, others take for the domain's. So a task that a partner began gets nothing of it, even where the network
lets it come here.
"""

from __future__ import annotations

from coterie.base.log import logger
from coterie.http.messages import Request
from coterie.kube.api.errors import ApiError
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.client import Reader
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api import labels
from coterie.kuscia.control import running_engines
from coterie.kuscia.control.running_engines import NotAnEngine
from coterie.kuscia.identity.engine_certificates import EngineIdentity
from coterie.kuscia.kusciaapi.authorization import OPERATOR, ApiCaller

log = logger("kusciaapi.confmanager")


class OwnEngines:
    def __init__(self, client: Reader, domain: str) -> None:
        self._client = client
        self._domain = domain

    async def recognise(self, request: Request) -> ApiCaller | None:
        """Of HTTP."""
        engine = running_engines.engine_of_user(request.peer.certificate_user)
        return None if await self._refusal(engine) else OPERATOR

    async def refusal(self, pem: bytes) -> str:
        """Of gRPC. Empty: it is served."""
        return await self._refusal(running_engines.engine_of_pem(pem))

    async def _refusal(self, engine: EngineIdentity | None) -> str:
        try:
            why = fault(await running_engines.running_pod(self._client, engine, self._domain), self._domain)
        except NotAnEngine as problem:
            why = str(problem)
        except (ApiError, TransportError) as problem:
            why = f"the domain's API cannot be asked: {problem}"
        if why:
            log.warning("A call of ConfManager was refused", pod=engine.pod if engine else "", why=why)
        return why


def fault(pod: Pod, domain: str) -> str:
    """Why the pod gets no certificates; empty: it may. Pure."""
    marks = pod.metadata.annotations or {}
    initiator = marks.get(labels.KUSCIA_INITIATOR) or ""
    belongs = any(marks.get(each) for each in (labels.KUSCIA_TASK_ID, labels.KUSCIA_JOB_ID))
    if initiator == domain or (not initiator and not belongs):
        return ""
    return f'"{initiator}" began what pod "{pod.metadata.name}" works on; only tasks of "{domain}" get certificates'
