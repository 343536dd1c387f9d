"""The three ways to patch an object by a document that describes the change.

    jsonpatch.py   a list of operations on paths (RFC 6902)
    merge.py       a partial object, null deletes (RFC 7386)
    strategic.py   a partial object that merges lists by key, with directives (Kubernetes, built-in kinds only)

Server-side apply is no patch in this sense: it needs to know owners, see `coterie.kube.api.fields`.
All are pure: the current object is never changed, and what the patch does not touch is shared with the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import BadRequest, UnsupportedMediaType
from coterie.kube.api.patch.merge import merge_patch
from coterie.kube.api.schema.node import Schema

if TYPE_CHECKING:
    from coterie.kube.api.patch import jsonpatch, strategic
else:
    jsonpatch = lazy_import("coterie.kube.api.patch.jsonpatch")
    strategic = lazy_import("coterie.kube.api.patch.strategic")

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"

__all__ = [
    "JSON_PATCH",
    "MERGE_PATCH",
    "STRATEGIC_MERGE_PATCH",
    "apply_patch",
    "check_media_type",
    "merge_patch",
]


def apply_patch(
    kind_of_patch: str, current: dict[str, Any], patch_body: Any, schema: Schema | None = None
) -> dict[str, Any]:
    """The object after a patch. `kind_of_patch` is the media type; `patch_body` the parsed document.

    `schema` is needed for strategic merge patches only; None means that the kind has none (a custom resource), which
    Kubernetes answers with 415.
    """
    try:
        if kind_of_patch == JSON_PATCH:
            return jsonpatch.json_patch(current, patch_body)
        if kind_of_patch == MERGE_PATCH:
            return merge_patch(current, patch_body)
        if kind_of_patch == STRATEGIC_MERGE_PATCH and schema is not None:
            return strategic.strategic_merge_patch(current, patch_body, schema)
    except RecursionError:
        raise BadRequest("the patch is nested too deep") from None
    raise _unknown_format(schema)


def check_media_type(kind_of_patch: str, schema: Schema | None) -> None:
    """Refuse a patch by its type alone, before its body is read."""
    known = (JSON_PATCH, MERGE_PATCH) if schema is None else (JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH)
    if kind_of_patch not in known:
        raise _unknown_format(schema)


def _unknown_format(schema: Schema | None) -> UnsupportedMediaType:
    accepted = [JSON_PATCH, MERGE_PATCH, *([STRATEGIC_MERGE_PATCH] if schema is not None else [])]
    return UnsupportedMediaType(
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join([*accepted, "application/apply-patch+yaml"])
    )
