"""An extension point of the controllers that make pods: a hook sees each pod before it is created and may change it."""

from __future__ import annotations

from typing import Protocol

from coterie.kube.api.meta import Object


class PodHookProblem(Exception):
    """The pod cannot be made now; the message says why. The controller tries again later."""


class PodHook(Protocol):
    def prepare_pod(self, pod: Object) -> Object:
        """The pod as it is to be created. Raises PodHookProblem."""

    def abandon_pod(self, pod: Object) -> None:
        """A prepared pod was not created after all."""
