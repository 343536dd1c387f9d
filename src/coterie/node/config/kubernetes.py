"""What is otherwise where `apiServer.kubeconfig` names somebody's Kubernetes: no store, no API server, no platform of our own.

What cannot work there is refused where somebody asked for it, and switched off where it is only the default.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coterie.node.config.reading import Block
from coterie.node.config.settings import IN_CLUSTER, NodeSettings

_OF_OUR_SERVER = ("host", "port", "names", "eventTTLSeconds", "auditLog", "auditPolicy")


def restrict(top: Block, made: NodeSettings) -> NodeSettings:
    """ConfigError for the first key that asks for what is not there."""
    api = top.block("apiServer")
    if not made.api.kubeconfig:
        return made
    if made.mode == "lite":
        raise api.refused(
            "kubeconfig",
            "is for control planes; a lite has masterEndpoint, and runs pods in another cluster with runtime: runk",
        )
    for key in _OF_OUR_SERVER:
        if api.raw(key) is not None:
            raise api.refused(
                key,
                "is for an API server of our own, and apiServer.kubeconfig names another one; leave one of them out",
            )
    if made.store is not None:
        key = "store" if top.text("store", "") else "datastoreEndpoint"
        raise top.refused(key, "is for an API server of our own; the cluster of apiServer.kubeconfig has its own store")
    for name, why in (
        ("functions", "functions need admission and controllers of our own API server"),
        ("console", "the console needs our own API server; use kubectl, KusciaAPI or the command line"),
    ):
        if top.block(name).flag("enabled", False):
            raise top.block(name).refused("enabled", f"cannot be true with apiServer.kubeconfig: {why}")
    if not made.gateway.enabled:
        raise top.block("gateway").refused(
            "enabled", "cannot be false with apiServer.kubeconfig: partners come in by the gateway"
        )
    if made.gateway.ingress is not None:
        raise top.block("gateway").refused(
            "ingress",
            "cannot be used with apiServer.kubeconfig: the cluster's own ingress controllers serve its Ingresses",
        )
    agent = made.agent
    if agent is not None:
        if not top.block("agent").flag("taint", True):
            raise top.block("agent").refused(
                "taint",
                "cannot be false with apiServer.kubeconfig: pods of others would come to a node that does not run them",
            )
        agent = replace(agent, taint=True)
    way = made.api.kubeconfig
    return replace(
        made,
        api=replace(made.api, kubeconfig=way if way == IN_CLUSTER else str(Path(way).expanduser().absolute())),
        gateway=replace(made.gateway, functions=False),
        agent=agent,
        only_namespace=made.domain if agent is not None else "",
        functions=replace(made.functions, enabled=False),
        console=replace(made.console, enabled=False),
    )
