"""get and list: bytes from memory, or from the store when an older snapshot is asked for."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable

import orjson

from coterie.http.messages import Response
from coterie.kube.api import errors, selectors
from coterie.kube.apiserver import content_negotiation, options, presentation
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.state.entry import ObjectEntry
from coterie.kube.apiserver.state.filters import ObjectFilter
from coterie.kube.apiserver.state.state import ResourceStorage

_SNAPSHOT_PAGE = 500


class ReadVerbs:
    def __init__(self, state: ResourceStorage, presenter: presentation.Presenter) -> None:
        self._state = state
        self._present = presenter

    def get(self, call: ResourceRequest) -> Response:
        request = call.request
        want = content_negotiation.negotiate(request.headers.get("accept", ""), call.view.resource)
        if request.query:
            version = request.param("resourceVersion")
            if version:
                self.check_revision(_revision(version))
        return self._present.one(call, call.entry().raw, want)

    def list(self, call: ResourceRequest) -> Response | Awaitable[Response]:
        asked = options.list_options(call.request)
        want = content_negotiation.negotiate(call.request.headers.get("accept", ""), call.resource)
        wanted = filter_of(call, asked)
        revision, after = self._state.revision, ""
        if asked.continue_token:
            if asked.resource_version not in ("", "0"):
                raise errors.BadRequest("specifying resource version is not allowed when using continue")
            revision, after = read_continue(asked.continue_token)
            self.check_revision(revision)
        elif asked.resource_version_match == "Exact" or (
            asked.resource_version not in ("", "0") and asked.limit and not asked.resource_version_match
        ):
            revision = asked.revision
            self.check_revision(revision)
        elif asked.resource_version:
            self.check_revision(asked.revision)
        if call.collection.changed > revision:
            return self._list_past(call, asked, want, wanted, revision, after)
        entries, left = call.collection.page(wanted, after, asked.limit)
        token = write_continue(revision, entries[-1].key) if left else ""
        remaining = left if left and wanted.everything else 0
        return self._present.many(call, entries, want, revision, token, remaining)

    async def _list_past(
        self,
        call: ResourceRequest,
        asked: options.ListOptions,
        want: content_negotiation.NegotiatedFormat,
        wanted: ObjectFilter,
        revision: int,
        after: str,
    ) -> Response:
        """A page of the collection as it was: later pages of a list must show the snapshot of the first."""
        found: list[ObjectEntry] = []
        more = True
        while more and not (asked.limit and len(found) > asked.limit):
            size = max(_SNAPSHOT_PAGE, asked.limit + 1)
            entries, more = await self._state.snapshot(call.collection, revision, after, size)
            found.extend(entry for entry in entries if wanted.matches(entry))
            if entries:
                after = entries[-1].key
        token = ""
        if asked.limit and len(found) > asked.limit:
            del found[asked.limit :]
            token = write_continue(revision, found[-1].key)
        return self._present.many(call, found, want, revision, token, 0)

    def check_revision(self, revision: int) -> None:
        """Refuse a revision that this server has not reached."""
        current = self._state.revision
        if revision > current:
            raise errors.Timeout(
                f"Too large resource version: {revision}, current: {current}",
                causes=[errors.StatusCause("ResourceVersionTooLarge", "Too large resource version")],
                retry_after=1,
            )


def filter_of(call: ResourceRequest, asked: options.ListOptions) -> ObjectFilter:
    """Namespace, name and selectors of a request as one predicate."""
    if not asked.label_selector and not asked.field_selector:
        return ObjectFilter(call.namespace, call.name)
    labels = selectors.parse_label_selector(asked.label_selector)
    fields = selectors.parse_field_selector(asked.field_selector)
    call.strategy.check_fields(fields)
    return ObjectFilter(
        call.namespace,
        call.name or fields.exact("metadata.name") or "",
        labels=None if labels.everything else labels.matches,
        fields=fields.matches if fields.terms else None,
        selectable=call.strategy.selectable,
        text=f"{asked.label_selector}\n{asked.field_selector}",
    )


def write_continue(revision: int, last_key: str) -> str:
    token = orjson.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": last_key})
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def read_continue(token: str) -> tuple[int, str]:
    try:
        content = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        revision, start = content["rv"], content["start"]
    except (binascii.Error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as problem:
        raise errors.BadRequest(
            "continue key is not valid: it must be one that a list of this server gave"
        ) from problem
    if not isinstance(revision, int) or not isinstance(start, str) or not 0 < revision < 2**63:
        raise errors.BadRequest("continue key is not valid: it must be one that a list of this server gave")
    return revision, start


def _revision(text: str) -> int:
    if not text.isdecimal() or len(text) > 19:
        raise errors.Invalid(f'resourceVersion: Invalid value: "{text[:64]}": must be a number this server gave')
    return int(text)
