"""The section `image`: Kuscia's keys, and mirrors and authorities of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from coterie.base.secret import SecretValue
from coterie.kube.agent.images.collect import CollectionSettings
from coterie.kube.agent.images.model import ImageError
from coterie.kube.agent.images.references import RegistryEndpoint
from coterie.kube.agent.images.signature_policy import SignatureRule
from coterie.kube.agent.images.sources import ConfiguredRegistry, PullSettings
from coterie.node.config.reading import Block

_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PROXY = re.compile(r"(?:http://)?([A-Za-z0-9.-]+:[0-9]{1,5})/?")


def read(block: Block) -> PullSettings:
    policy = block.choice("pullPolicy", "local", ("local", "remote"))
    registries = tuple(_registry(each) for each in _blocks(block, "registries") if each.raw("endpoint"))
    wanted = block.text("defaultRegistry", "")
    default = next((each for each in registries if wanted in (each.name, each.endpoint.host)), None)
    if wanted and default is None:
        default = ConfiguredRegistry("", _endpoint(block, "defaultRegistry", wanted))
    proxy = block.text("httpProxy", "")
    found = _PROXY.fullmatch(proxy)
    if proxy and not found:
        raise block.refused("httpProxy", f'"{proxy}" is not a proxy such as http://proxy.example:3128')
    return PullSettings(
        policy == "remote",
        default,
        found[1] if found else "",
        registries,
        shared_store=_absolute(block, "sharedStore"),
        signatures=tuple(_signature_rule(each) for each in _blocks(block, "signatures")),
        collection=_collection(block.block("gc")),
    )


def _absolute(block: Block, key: str) -> str:
    text = block.text(key, "")
    if text and (not text.startswith("/") or ".." in text.split("/")):
        raise block.refused(key, f'"{text}" is not an absolute path')
    return text.rstrip("/")


def _signature_rule(block: Block) -> SignatureRule:
    images, files = block.texts("images", "image names"), block.texts("keys", "files")
    required = block.choice("policy", "required", ("required", "none")) == "required"
    if not images:
        raise block.refused("images", 'is missing; write patterns of image names such as "registry.example/team/*"')
    if required and not files:
        raise block.refused("keys", "is missing; name the files with the public keys (cosign.pub)")
    return SignatureRule(images, files, required)


def _collection(block: Block) -> CollectionSettings:
    known = CollectionSettings()
    high = block.number("highThresholdPercent", known.high_percent, 1, 100)
    low = block.number("lowThresholdPercent", min(known.low_percent, high), 0, 100)
    if low > high:
        raise block.refused("lowThresholdPercent", f"must not be above highThresholdPercent, which is {high}")
    return CollectionSettings(
        high,
        low,
        _seconds(block, "minimumAge", known.minimum_age),
        _seconds(block, "maximumAge", known.maximum_age),
        max(1.0, _seconds(block, "period", known.period)),
    )


def _seconds(block: Block, key: str, default: float) -> float:
    """`90s`, `10m`, `48h`, `30d`."""
    text = block.text(key, "")
    found = _DURATION.fullmatch(text)
    if text and not found:
        raise block.refused(key, f'"{text}" is not a duration such as 30m, 48h or 30d')
    return float(found[1]) * _UNITS[found[2]] if found else default


def _blocks(block: Block, key: str) -> list[Block]:
    values = block.raw(key) or []
    if not isinstance(values, list) or not all(isinstance(each, Mapping) for each in values):
        raise block.refused(key, "must be a list of mappings")
    return [Block(each, f"{block.path(key)}[{index}]") for index, each in enumerate(values)]


def _registry(block: Block) -> ConfiguredRegistry:
    endpoint = _endpoint(block, "endpoint", block.text("endpoint"))
    endpoint = replace(
        endpoint,
        username=block.text("username", ""),
        password=block.secret("password") or SecretValue(""),
        ca_file=block.text("caFile", ""),
    )
    mirrors = tuple(_endpoint(block, "mirrors", each) for each in block.texts("mirrors", "registries"))
    return ConfiguredRegistry(block.text("name", ""), endpoint, mirrors)


def _endpoint(block: Block, key: str, text: str) -> RegistryEndpoint:
    try:
        return RegistryEndpoint.of(text)
    except ImageError as problem:
        raise block.refused(key, str(problem)) from problem
