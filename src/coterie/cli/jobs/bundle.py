"""The files of a job's bundle: what happened, without secrets. Pure.

    objects, events, lines of logs, versions, clocks  ──bundle_files──>  {path: text}  ──write_archive──>  .tar.gz

Everything passes the same redactor, which knows the credentials of the own domains. At the end each file is searched for them
once more, also in base64: a file in which one is found is left out, and the README says so.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from coterie.base.clock import rfc3339
from coterie.base.redaction import Redactor, encodings_of
from coterie.cli.output import as_yaml
from coterie.kube.api.meta import Object
from coterie.kuscia.api.log_query import LogLine, printable
from coterie.kuscia.api.secret_values import without_secrets
from coterie.kuscia.api.types.log_request import LogRequest, LogRequestPhase

MOST_LINES: Final = 20_000
"""Lines of one source."""
_LARGEST_LOG: Final = 16 << 20
_SHORTEST_CHECKED: Final = 8


@dataclass(frozen=True, slots=True)
class BundleContent:
    """What was collected, as it is: nothing of it is fit for others yet."""

    job: str
    made: datetime
    own: tuple[str, ...]
    """Our parties of the job."""
    partners: tuple[str, ...]
    objects: tuple[Object, ...] = ()
    """With their kinds."""
    events: tuple[Object, ...] = ()
    logs: Mapping[str, Sequence[LogLine]] = field(default_factory=dict)
    """By source."""
    requests: tuple[LogRequest, ...] = ()
    """Made here, about this job."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    clocks: Mapping[str, Any] = field(default_factory=dict)
    routes: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """What could not be collected, one sentence each."""
    known_secrets: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Rules of our policies."""


def belongs(obj: Object, names: Iterable[str]) -> bool:
    """Whether an object is one of these or was made for one of them."""
    meta = obj.get("metadata") or {}
    known = tuple(names)
    marks = (*(meta.get("labels") or {}).values(), *(meta.get("annotations") or {}).values())
    name = str(meta.get("name", ""))
    return any(name == each or name.startswith(f"{each}-") or each in marks for each in known)


def bundle_files(content: BundleContent) -> dict[str, str]:
    redactor = Redactor(content.known_secrets, content.patterns)
    files: dict[str, str] = {}
    for obj in content.objects:
        files[_object_path(obj)] = as_yaml(without_secrets(obj, redactor))
    files["events.txt"] = "".join(f"{line}\n" for line in _event_lines(content.events, redactor))
    for source, lines in sorted(content.logs.items()):
        files[f"logs/own/{source}.log"] = _log_text(lines, redactor)
    for request in content.requests:
        answer = request.status.answer
        if request.status.phase == LogRequestPhase.ANSWERED and answer is not None:
            # Redacted by its owner; once more by our rules, because it may name what is secret here.
            files[f"logs/{request.spec.owner}/{request.metadata.name}.log"] = redactor.text(answer.text)
    files["versions.json"] = _json(content.versions, redactor)
    files["clocks.json"] = _json(content.clocks, redactor)
    files["routes.json"] = _json(content.routes, redactor)
    safe, unsafe = _checked(files, content.known_secrets)
    safe["manifest.json"] = _json(_manifest(content, safe, redactor), redactor)
    safe["README.md"] = redactor.text(_readme(content, unsafe, redactor))
    return dict(sorted(safe.items()))


def _object_path(obj: Object) -> str:
    meta = obj.get("metadata") or {}
    place = f"{meta['namespace']}." if meta.get("namespace") else ""
    return f"objects/{str(obj.get('kind', 'Object')).lower()}/{place}{meta.get('name', 'unnamed')}.yaml"


def _event_lines(events: Iterable[Object], redactor: Redactor) -> list[str]:
    out = []
    for event in events:
        about = event.get("involvedObject") or {}
        at = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
        where = f"{about.get('kind', '')} {about.get('namespace', '')}/{about.get('name', '')}"
        text = f"{at} {event.get('type', '')} {event.get('reason', '')} {where}: {event.get('message', '')}"
        out.append(printable(redactor.line(text.replace("\n", " "))))
    return sorted(out)


def _log_text(lines: Sequence[LogLine], redactor: Redactor) -> str:
    out: list[str] = []
    size = 0
    for line in lines:
        where = "/".join(each for each in (line.party, line.task, line.pod, line.container) if each)
        stream = f"{line.source}/{line.party}/{line.pod}/{line.container}"
        out.append(f"{line.at or '-'} {where} | {printable(redactor.line(line.text, stream))}\n")
    kept: list[str] = []
    for text in reversed(out[-MOST_LINES:]):
        size += len(text)
        if size > _LARGEST_LOG:
            break
        kept.append(text)
    return "".join(reversed(kept))


def _json(value: object, redactor: Redactor) -> str:
    return json.dumps(_clean(value, redactor), indent=2, sort_keys=True, default=str) + "\n"


def _clean(value: object, redactor: Redactor) -> object:
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, Mapping):
        return {str(key): _clean(each, redactor) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(each, redactor) for each in value]
    return value


def _checked(files: Mapping[str, str], secrets: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    forms = [form for value in secrets if len(value) >= _SHORTEST_CHECKED for form in encodings_of(value)]
    unsafe = tuple(path for path, text in files.items() if any(form in text for form in forms))
    return {path: text for path, text in files.items() if path not in unsafe}, unsafe


def _manifest(content: BundleContent, files: Mapping[str, str], redactor: Redactor) -> dict[str, object]:
    return {
        "job": content.job,
        "made": rfc3339(content.made),
        "own": list(content.own),
        "partners": list(content.partners),
        "redactions": dict(redactor.counts),
        "requests": [
            {
                "name": each.metadata.name,
                "owner": each.spec.owner,
                "phase": each.status.phase,
                "message": each.status.message,
                "decidedBy": each.status.decided_by,
                "sha256": f"sha256:{each.status.digest}" if each.status.digest else "",
            }
            for each in content.requests
        ],
        "files": {path: len(text.encode()) for path, text in files.items()},
        "missing": list(content.missing),
    }


def _readme(content: BundleContent, unsafe: Sequence[str], redactor: Redactor) -> str:
    answered = {each.spec.owner for each in content.requests if each.status.phase == LogRequestPhase.ANSWERED}
    partners = []
    for name in content.partners:
        asked = [each for each in content.requests if each.spec.owner == name]
        if name in answered:
            partners.append(f"- `logs/{name}/`: lines that {name} approved")
        elif asked:
            partners.append(
                f"- {name}: none; {asked[-1].metadata.name} is {asked[-1].status.phase}: {asked[-1].status.message}"
            )
        else:
            how = f'coterie logrequest create {content.job} --party {name} --reason "..."'
            partners.append(f"- {name}: none, nobody asked; `{how}`")
    missing = "".join(f"- {each}\n" for each in content.missing) or "- nothing\n"
    left_out = "".join(f"- {path}: left out: it would have held a credential\n" for path in unsafe)
    return f"""# Bundle of job {content.job}

Made {rfc3339(content.made)} by `coterie job bundle`, for {", ".join(content.own) or "nobody"}. It holds what is needed to find out why
the job failed. Look through it before you pass it on.

| Path | Content |
|---|---|
| `objects/` | the job, its tasks, reservations, pods, services, routes, domains, gateways, engines, without secrets |
| `events.txt` | events about these objects, by time |
| `logs/own/` | log lines of our parties about this job: engine, gateway, scheduler, datamesh, controller |
| `logs/PARTNER/` | log lines that a partner approved |
| `versions.json` | coterie, the API server, Envoy, the engines' images |
| `clocks.json` | our time, and by how many seconds each partner's clock is ahead |
| `routes.json` | what `coterie route check` finds about the ways to the partners |
| `manifest.json` | files, sizes, log requests with their digests, what was cut out |

## Logs of the partners

{chr(10).join(partners) or "There are none: all parties are ours."}

## What is not in it

Values of Secrets, ConfigMaps and variables, tokens and keys are removed by name. Texts were searched for private keys, tokens, passwords in URLs,
key=value secrets, long keys and the known credentials of our domains, also in base64: {redactor.total} pieces were cut out and marked
`[redacted:RULE]`.

{left_out}## What could not be collected

{missing}"""


def _entry_name(path: str) -> str:
    """Below the folder, whatever somebody has named an object."""
    parts = (re.sub(r"[^\w.:@+-]", "_", part) for part in path.split("/"))
    return "/".join(f"_{part}" if part in ("", ".", "..") else part for part in parts)


def write_archive(files: Mapping[str, str], folder: str, made: datetime) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, text in files.items():
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{folder}/{_entry_name(path)}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(made.timestamp())
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()
