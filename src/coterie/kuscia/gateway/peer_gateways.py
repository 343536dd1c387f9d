"""Several gateways of one domain, and a tunnel that ends at one of them. Pure.

    pod -> any gateway -> cluster <us>-to-<partner>-gateways -> the gateway that has the tunnel -> partner

Each gateway asks itself and its peer gateways every two seconds whether the partner answers there, through the tunnel itself, and
leads calls where it does: to itself first. Gateways reach each other by their internal addresses, in plain text: whoever
can reach those is this domain anyway. Where pods have a network of their own the internal address is inside it, so a gateway
has no peer gateways then.

Only calls of our own pods find a sister. What we carry for others goes down a tunnel at the gateway it came to.
"""

from __future__ import annotations

from coterie.kuscia.gateway.clusters import cluster, http2_options
from coterie.kuscia.gateway.egress import polled
from coterie.kuscia.gateway.model import Route, SnapshotInputs
from coterie.kuscia.gateway.names import HANDSHAKE_SERVICE, TUNNEL_HERE, Json, header
from coterie.kuscia.gateway.service_hosts import ALL, send_to
from coterie.kuscia.gateway.tunnel import obstacle


def _shared_name(route: Route) -> str:
    return f"{route.source}-to-{route.destination}-gateways"


def clusters(inputs: SnapshotInputs) -> list[Json]:
    """For each tunnelled destination: our domain's gateways at which it answers now."""
    if not inputs.peer_gateways:
        return []
    tunnelled = (route for route in inputs.outbound if route.tunnel and not route.via and not polled(route))
    return [_gateways(inputs, route) for route in tunnelled if not obstacle(inputs, route)]


def _gateways(inputs: SnapshotInputs, route: Route) -> Json:
    options: Json = {
        "use_downstream_protocol_config": {
            "http_protocol_options": {}, "http2_protocol_options": http2_options(inputs.tuning),
        }
    }  # fmt: skip
    made = cluster(_shared_name(route), [inputs.node_socket, *sorted(inputs.peer_gateways)], 5.0, options)
    ((first, *others),) = (each["lb_endpoints"] for each in made["load_assignment"]["endpoints"])
    made["load_assignment"]["endpoints"] = [
        {"priority": 0, "lb_endpoints": [first]},
        {"priority": 1, "lb_endpoints": others},
    ]
    question: Json = {
        # Bob answers that there is no such thing, which he does without a token too: he is there.
        "host": f"{HANDSHAKE_SERVICE}.{route.destination}.svc",
        "path": "/tunnel",
        "expected_statuses": [{"start": 200, "end": 500}],
        "request_headers_to_add": [header(TUNNEL_HERE, "here")],
    }
    every: Json = dict.fromkeys(("interval", "no_traffic_interval", "unhealthy_interval"), "2s")
    check = {"timeout": "3s", "healthy_threshold": 1, "unhealthy_threshold": 1, "http_health_check": question}
    # No guessing: where nobody has the tunnel the call fails at once.
    return made | {"health_checks": [every | check], "common_lb_config": {"healthy_panic_threshold": {"value": 0}}}


def among_gateways(inputs: SnapshotInputs, carrier: Route | None, host: Json) -> Json:
    """The virtual host of a destination where we have peer gateways, when a tunnel leads to it or to its carrier.

    What comes marked goes down the tunnel here or nowhere, so that gateways never send each other round in circles.
    What our pods send is marked and goes to the gateway that has the tunnel, which names us and limits and encrypts.
    """
    if carrier is None or not carrier.tunnel or polled(carrier) or not inputs.peer_gateways:
        return host
    marked = {"name": TUNNEL_HERE, "present_match": True}
    naming = host.pop("request_headers_to_add", [])
    here = [
        {
            **each,
            "match": {**each["match"], "headers": [*each["match"].get("headers", ()), marked]},
            "request_headers_to_add": [*naming, *each.get("request_headers_to_add", ())],
            "request_headers_to_remove": [TUNNEL_HERE],
        }
        for each in host["routes"]
    ]
    elsewhere = {
        "match": ALL,
        "route": send_to(inputs.tuning.idle_stream_seconds, _shared_name(carrier)),
        "request_headers_to_add": [header(TUNNEL_HERE, "here")],
    }
    return {**host, "routes": [*here, elsewhere]}
