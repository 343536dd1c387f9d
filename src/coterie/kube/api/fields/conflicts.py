"""The refusal of an apply that would change what other managers own, worded as Kubernetes words it."""

from __future__ import annotations

from coterie.kube.api.errors import ApplyConflict, StatusCause
from coterie.kube.api.fields.entries import APPLY, Entry, identity
from coterie.kube.api.fields.fieldset import FieldsV1, paths, pretty

Conflicts = list[tuple[Entry, FieldsV1]]
"""Other managers' entries, each with those of its fields that would change."""


def conflict_error(conflicts: Conflicts) -> ApplyConflict:
    messages: list[str] = []
    causes: list[StatusCause] = []
    for entry, fields in sorted(conflicts, key=lambda conflict: identity(conflict[0])):
        manager = _show_manager(entry)
        messages.append(f"conflicts with {manager}:")
        for path in map(pretty, paths(fields)):
            messages.append(f"- {path}")
            causes.append(StatusCause("FieldManagerConflict", f"conflict with {manager}", path))
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0].message}: {causes[0].field}"
    else:
        message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(messages)
    return ApplyConflict(message, causes=causes)


def _show_manager(entry: Entry) -> str:
    shown = _quote(entry.get("manager") or "")
    if entry.get("subresource"):
        shown += f" with subresource {_quote(entry['subresource'])}"
    if entry.get("operation") != APPLY:
        shown += f" using {entry.get('apiVersion') or ''}"
    return shown


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
