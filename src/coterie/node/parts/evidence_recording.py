"""What the controllers of a control plane record evidence with, whoever serves its API."""

from __future__ import annotations

from pathlib import Path

from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.kuscia.evidence import statement_exchange
from coterie.kuscia.evidence.access_follower import AccessFollower
from coterie.kuscia.evidence.follower import EvidenceFollower
from coterie.kuscia.evidence.job_events import JobEvents
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.evidence.statement_exchange import StatementExchange
from coterie.kuscia.evidence.witness_transport import WitnessTransport
from coterie.kuscia.evidence.witnesses import Witnesses
from coterie.kuscia.gateway.names import ERROR, ORIGIN
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.parts.context import NodeContext
from coterie.node.parts.controllers import Recording


def recording_parts(
    node: NodeContext, recorder: EvidenceService, client: Client, informers: Informers
) -> tuple[Recording, list[Runnable]]:
    """What the controllers record with, and what runs beside them."""
    places, clock = GatewayPaths.of(node.settings.paths), node.clock
    transport = WitnessTransport(Path(places.node_socket.host), ERROR)
    events = JobEvents(recorder)
    statements = StatementExchange(recorder, events, informers, transport, clock)
    cosigning = Witnesses(
        recorder,
        client,
        informers,
        transport,
        Path(places.witness_socket.host),
        ORIGIN,
        clock,
        statements=statements.answer,
    )
    events.witnesses = cosigning
    beside: list[Runnable] = [
        cosigning,
        EvidenceFollower(recorder, events, informers, clock),
        AccessFollower(recorder, informers, clock),
        statement_exchange.make(statements, clock),
    ]
    return Recording(recorder, events, cosigning), beside
