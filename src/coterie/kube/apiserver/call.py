"""One request for API objects, taken apart: what every verb is called with."""

from __future__ import annotations

from coterie.http.messages import Request, UserInfo
from coterie.kube.api import errors
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.kinds import Strategy
from coterie.kube.apiserver.paths import RequestInfo
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry, VersionView


class ResourceRequest:
    __slots__ = ("collection", "request", "strategy", "target", "user", "verb", "view", "warnings")

    def __init__(
        self,
        request: Request,
        target: RequestInfo,
        verb: str,
        view: VersionView,
        collection: Collection,
        strategy: Strategy,
        user: UserInfo,
    ) -> None:
        self.request = request
        self.target = target
        self.verb = verb
        self.view = view
        self.collection = collection
        self.strategy = strategy
        self.user = user
        self.warnings: list[str] = []

    @property
    def resource(self) -> Resource:
        return self.view.resource

    @property
    def namespace(self) -> str:
        return self.target.namespace

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def converts(self) -> bool:
        """Objects come to this version through a webhook, or some of them do."""
        view = self.view
        return view.conversion is not None and (not view.is_storage or bool(self.collection.other_versions))

    def entry(self) -> ObjectEntry:
        """The object the request names; NotFound if it does not exist."""
        entry = self.collection.get(self.target.namespace, self.target.name)
        if entry is None:
            raise self.not_found()
        return entry

    def not_found(self) -> errors.NotFound:
        return not_found(self.resource, self.target.name)

    def conflict(self, why: str) -> errors.Conflict:
        resource = self.resource
        return errors.Conflict(
            f'Operation cannot be fulfilled on {resource.group_resource} "{self.target.name}": {why}',
            name=self.target.name,
            group=resource.group,
            kind=resource.plural,
        )


def not_found(resource: Resource, name: str) -> errors.NotFound:
    return errors.NotFound(
        f'{resource.group_resource} "{name}" not found', name=name, group=resource.group, kind=resource.plural
    )


STALE = "the object has been modified; please apply your changes to the latest version and try again"
