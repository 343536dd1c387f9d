"""Decisions by looking up instead of trying one rule after the other: a thousand partners cost a request what one does.

    by_header("kuscia-source", {"alice": then(...), "bob": verdict(...)}, otherwise)

Envoy's matching trees, as its RBAC filter takes them. A header that is missing is found nowhere. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.kuscia.gateway.names import Json, T

_HEADER = T + "envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
_INPUTS = T + "envoy.extensions.matching.common_inputs.network.v3."
_CONNECTION = _INPUTS + "DirectSourceIPInput"
_SENDER = _INPUTS + "SourceIPInput"
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


def header_like(name: str, pattern: str, found: Json, otherwise: Json) -> Json:
    """By a regular expression for the header's whole value."""
    source = {"name": name, "typed_config": {"@type": _HEADER, "header_name": name}}
    like: Json = {"input": source, "value_match": {"safe_regex": {"google_re2": {}, "regex": pattern}}}
    matchers = [{"predicate": {"single_predicate": like}, "on_match": found}]
    return {"matcher_list": {"matchers": matchers}, "on_no_match": otherwise}


def by_sender(found: Sequence[tuple[Sequence[str], Json]], otherwise: Json, *, proxied: bool = False) -> Json:
    """By the address that the connection comes from, whatever its headers say: CIDR blocks and what follows from each.

    `proxied`: by the address that stands in the connection's PROXY protocol header.
    """
    listed = [{"ranges": [_range(each) for each in blocks], "on_match": then} for blocks, then in found if blocks]
    if not listed:
        return {"on_no_match": otherwise}
    ranges = {"@type": _RANGES, "range_matchers": listed}
    return {
        "matcher_tree": {
            "input": {"name": "sender", "typed_config": {"@type": _SENDER if proxied else _CONNECTION}},
            "custom_match": {"name": "ranges", "typed_config": ranges},
        },
        "on_no_match": otherwise,
    }


def _range(block: str) -> Json:
    prefix, _, length = block.partition("/")
    return {"address_prefix": prefix, "prefix_len": int(length)}
