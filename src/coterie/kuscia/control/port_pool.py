"""Port numbers for engines, one pool for each domain.

Processes of one machine share its ports, so each pod of a domain has numbers of its own. Those of other domains are avoided
too, until there are no others left: two domains may be on one machine. The pool is only a view of what
objects say: numbers are written down before anything uses them, and a restart or another leader begins with every number
that is in use already taken.

    tasks         in their status, by pod and port                     `learn`, `allot`
    deployments   the numbers that their template names                 `learn`, `allot`
    their pods    those if no other pod has them, otherwise others      `prepare_pod`, `follow`

A template asks for numbers of its own for each pod by annotations `port.coterie.io/<name>: <number>`; in the pods they say
which numbers these are, and variables refer to them. Whoever makes pods without knowing this makes pods with the numbers of
the template, which is right where each pod has an address of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.pod_hooks import PodHookProblem
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import PartyAllocatedPorts

if TYPE_CHECKING:
    from coterie.kuscia.api import engine_template
else:
    engine_template = lazy_import("coterie.kuscia.api.engine_template")

_TRIES = 10


@dataclass(frozen=True, slots=True)
class PortRange:
    """From the first to the last, both included. Domains that share a machine need ranges that do not meet."""

    first: int = 20000
    last: int = 32766


class PortPool:
    """Which numbers are taken, by domain and by who has them. With `informers` it follows pods by itself."""

    def __init__(
        self,
        range_: PortRange = PortRange(),  # noqa: B008 - frozen
        random: Random | None = None,
        informers: Informers | None = None,
    ) -> None:
        self._range = range_
        self._random = random or Random()
        self._taken: dict[str, dict[int, set[str]]] = {}
        self._by_owner: dict[str, set[tuple[str, int]]] = {}
        if informers is not None:
            informers.get(PODS).add_handler(self.follow)

    # What is known.

    def learn(self, owner: str, allotted: Iterable[PartyAllocatedPorts] | None) -> None:
        """All that the owner has; nothing any more when it is None."""
        self.release(owner)
        for party in allotted or ():
            for number in (party.named_port or {}).values():
                self._take(owner, party.domain_id, number)

    def follow(self, change: ObjectChange[Pod]) -> None:
        """Pods with numbers of their own have them until they end or are gone."""
        pod = change.object
        meta = pod.metadata
        numbers = _numbers(meta.annotations or {})
        if not numbers:
            return
        self.release(meta.uid)
        for number in numbers.values():
            self.release(_loan(meta.namespace, number))
            if change.type != "deleted" and not pod.ended:
                self._take(meta.uid, meta.namespace, number)

    def release(self, owner: str) -> None:
        for domain, number in self._by_owner.pop(owner, ()):
            owners = self._taken[domain][number]
            owners.discard(owner)
            if not owners:
                del self._taken[domain][number]

    def _take(self, owner: str, domain: str, number: int) -> None:
        self._taken.setdefault(domain, {}).setdefault(number, set()).add(owner)
        self._by_owner.setdefault(owner, set()).add((domain, number))

    # Giving out.

    def allot(self, owner: str, domain: str, names: Sequence[str]) -> dict[str, int]:
        """A number for each name. KitFault when the domain has no more."""
        numbers = self._free(domain, len(names))
        for number in numbers:
            self._take(owner, domain, number)
        return dict(zip(names, numbers, strict=True))

    def prepare_pod(self, pod: Object) -> Object:
        """A pod from a template, with numbers of its own where the template asks for it; it is to be made now.
        PodHookProblem when the domain has no more."""
        marks = pod["metadata"].get("annotations") or {}
        declared = _numbers(marks)
        if not declared:
            return pod
        domain = pod["metadata"]["namespace"]
        deployment = (pod["metadata"].get("labels") or {}).get(labels.KUSCIA_KD_UID, "")
        taken = self._taken.get(domain, {})
        lacking = [name for name, number in declared.items() if taken.get(number, set()) - {deployment}]
        try:
            found = self._free(domain, len(lacking))
        except engine_template.EngineTemplateError as problem:
            raise PodHookProblem(str(problem)) from problem
        numbers = {**declared, **dict(zip(lacking, found, strict=True))}
        for number in numbers.values():
            self._take(_loan(domain, number), domain, number)
        return _with_numbers(pod, declared, numbers)

    def abandon_pod(self, pod: Object) -> None:
        """The pod was not made after all."""
        for number in _numbers(pod["metadata"].get("annotations") or {}).values():
            self.release(_loan(pod["metadata"]["namespace"], number))

    def _free(self, domain: str, count: int) -> list[int]:
        """Numbers that no domain has, as long as there are such: domains of one machine share its ports as well."""
        own = self._taken.get(domain, {})
        found = self._unlike({number for each in self._taken.values() for number in each}, count)
        if len(found) < count:
            found = self._unlike(own.keys(), count)
        if len(found) < count:
            raise engine_template.EngineTemplateError(f"domain {domain} has no free ports left")
        return found

    def _unlike(self, taken: Set[int], count: int) -> list[int]:
        size = self._range.last - self._range.first + 1
        # Neighbours are easier on people's eyes; a random start keeps a number from being used again at once.
        start = self._random.randrange(size)
        for _ in range(_TRIES):
            if self._range.first + start not in taken:
                break
            start = self._random.randrange(size)
        found: list[int] = []
        for step in range(size):
            if len(found) == count:
                break
            number = self._range.first + (start + step) % size
            if number not in taken:
                found.append(number)
        return found


def _loan(domain: str, number: int) -> str:
    """Who has a number that was given to a pod of which there is no news yet."""
    return f"loan:{domain}:{number}"


def _numbers(marks: Mapping[str, str]) -> dict[str, int]:
    """Of ports by name, as annotations tell them."""
    prefix = labels.COTERIE_PORT_PREFIX
    return {
        key.removeprefix(prefix): int(value)
        for key, value in marks.items()
        if key.startswith(prefix) and value.isascii() and value.isdigit()
    }


def _with_numbers(pod: Object, declared: Mapping[str, int], numbers: Mapping[str, int]) -> Object:
    renamed = {declared[name]: numbers[name] for name in declared}
    meta, spec = pod["metadata"], pod["spec"]
    marks = dict(meta["annotations"])
    marks |= {f"{labels.COTERIE_PORT_PREFIX}{name}": str(number) for name, number in numbers.items()}
    if (shown := marks.get(labels.KUSCIA_METRIC_PORT, "")).isdigit():
        marks[labels.KUSCIA_METRIC_PORT] = str(renamed.get(int(shown), int(shown)))
    containers = [
        {
            **each,
            "ports": [
                {**port, "containerPort": numbers.get(port.get("name", ""), port["containerPort"])}
                for port in each["ports"]
            ],
        }
        if each.get("ports")
        else each
        for each in spec["containers"]
    ]
    return {**pod, "metadata": {**meta, "annotations": marks}, "spec": {**spec, "containers": containers}}
