"""Decisions by looking up instead of trying one rule after the other: a thousand partners cost a request what one does.

    by_header("kuscia-source", {"alice": then(...), "bob": verdict(...)}, otherwise)

Envoy's matching trees, as its RBAC filter takes them. A header that is missing is found nowhere. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.kuscia.gateway.names import Json, T

_HEADER = T + "envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
_SENDER = T + "envoy.extensions.matching.common_inputs.network.v3.DirectSourceIPInput"
_RANGES = T + "xds.type.matcher.v3.IPMatcher"
_VERDICT = T + "envoy.config.rbac.v3.Action"


def verdict(name: str, action: str) -> Json:
    """The end of a search. The name stands in the access log and in the reason of a refusal."""
    return {"action": {"name": name, "typed_config": {"@type": _VERDICT, "name": name, "action": action}}}


def then(tree: Json) -> Json:
    """The search goes on."""
    return {"matcher": tree}


def by_header(name: str, found: Mapping[str, Json], otherwise: Json) -> Json:
    """By the header's whole value."""
    if not found:
        return {"on_no_match": otherwise}
    source = {"name": name, "typed_config": {"@type": _HEADER, "header_name": name}}
    return {
        "matcher_tree": {"input": source, "exact_match_map": {"map": dict(sorted(found.items()))}},
        "on_no_match": otherwise,
    }


def by_sender(ranges: Sequence[Json], inside: Json, otherwise: Json) -> Json:
    """By the address that the connection comes from, whatever its headers say."""
    if not ranges:
        return {"on_no_match": otherwise}
    listed = {"@type": _RANGES, "range_matchers": [{"ranges": list(ranges), "on_match": inside}]}
    return {
        "matcher_tree": {
            "input": {"name": "sender", "typed_config": {"@type": _SENDER}},
            "custom_match": {"name": "ranges", "typed_config": listed},
        },
        "on_no_match": otherwise,
    }
