"""Which images must be signed, and by whom: `image.signatures` of the node's configuration. Pure; `signatures.py` verifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from coterie.kube.agent.images.model import split


@dataclass(frozen=True, slots=True)
class SignatureRule:
    images: tuple[str, ...]
    """Patterns of image names without tag, such as `registry.example/team/*`."""
    keys: tuple[str, ...] = ()
    """PEM files with public keys; a signature by one of them is enough."""
    required: bool = True


def required_rule(rules: Sequence[SignatureRule], *names: str) -> SignatureRule | None:
    """The rule that demands a signature of an image; None: it needs none. For each of its names the first rule that fits
    counts, and one that demands a signature wins over one that does not."""
    for name in names:
        repository = split(name.partition("@")[0])[0]
        found = next((rule for rule in rules if any(fnmatchcase(repository, each) for each in rule.images)), None)
        if found is not None and found.required:
            return found
    return None
