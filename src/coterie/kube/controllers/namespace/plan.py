"""What a terminating namespace's conditions are, and when it may go. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.kube.api.meta import Condition, set_condition

DISCOVERY_FAILURE = "NamespaceDeletionDiscoveryFailure"
PARSING_FAILURE = "NamespaceDeletionGroupVersionParsingFailure"
CONTENT_FAILURE = "NamespaceDeletionContentFailure"
CONTENT_REMAINING = "NamespaceContentRemaining"
FINALIZERS_REMAINING = "NamespaceFinalizersRemaining"

POD_PAUSE = 1.0
PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What one pass over a namespace saw."""

    undiscovered: Sequence[str] = ()
    """Group versions whose resources are not known."""
    failures: Sequence[str] = ()
    """Sentences about resources that could not be listed or deleted."""
    remaining: Mapping[str, int] = field(default_factory=dict)
    """Objects that are still there, by `<plural>.<group>`."""
    finalizers: Mapping[str, int] = field(default_factory=dict)
    """Objects that are still there, by finalizer."""

    @property
    def empty(self) -> bool:
        return not (self.undiscovered or self.failures or self.remaining)


def conditions(old: Sequence[Condition] | None, found: Findings, now: str) -> tuple[Condition, ...]:
    out = tuple(old or ())
    for condition in _desired_conditions(found):
        out = set_condition(out, condition, now)
    return out


def _desired_conditions(found: Findings) -> list[Condition]:
    remaining = ", ".join(f"{name} has {count} resource instances" for name, count in sorted(found.remaining.items()))
    held = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(found.finalizers.items()))
    return [
        _condition(
            DISCOVERY_FAILURE,
            "DiscoveryFailed",
            f"Discovery failed for some groups: {', '.join(found.undiscovered)}" if found.undiscovered else "",
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        _condition(PARSING_FAILURE, "", "", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
        _condition(
            CONTENT_FAILURE,
            "ContentDeletionFailed",
            f"Failed to delete all resource types: {'; '.join(found.failures)}" if found.failures else "",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        _condition(
            CONTENT_REMAINING,
            "SomeResourcesRemain",
            f"Some resources are remaining: {remaining}" if remaining else "",
            "ContentRemoved",
            "All content successfully removed",
        ),
        _condition(
            FINALIZERS_REMAINING,
            "SomeFinalizersRemain",
            f"Some content in the namespace has finalizers remaining: {held}" if held else "",
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ]


def _condition(type_: str, bad_reason: str, bad: str, good_reason: str, good: str) -> Condition:
    if bad:
        return Condition(type=type_, status="True", reason=bad_reason, message=bad)
    return Condition(type=type_, status="False", reason=good_reason, message=good)


def pause(found: Findings) -> float:
    """Seconds until the next look: pods go by themselves, and often soon."""
    return POD_PAUSE if set(found.remaining) == {"pods"} else PAUSE
