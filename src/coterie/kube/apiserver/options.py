"""Query parameters of requests, read into plain values; what cannot be read is refused by name."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.http.messages import Request
from coterie.kube.api import errors

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False", ""))
_MAX_MANAGER = 128


def boolean(request: Request, name: str) -> bool:
    """A boolean as Go's ParseBool reads it (some clients send `watch=True`)."""
    if not request.query:
        return False
    value = request.param(name)
    if value in _FALSE:
        return False
    if value in _TRUE:
        return True
    raise errors.BadRequest(f'the query parameter {name} must be true or false, not "{value[:64]}"')


def integer(request: Request, name: str, default: int = 0) -> int:
    value = request.param(name)
    if not value:
        return default
    try:
        number = int(value)
    except ValueError:
        number = -1
    if not 0 <= number < 2**63 or len(value) > 20:
        raise errors.BadRequest(f'the query parameter {name} must be a non-negative integer, not "{value[:64]}"')
    return number


@dataclass(frozen=True, slots=True)
class ListOptions:
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    label_selector: str = ""
    field_selector: str = ""
    watch: bool = False
    bookmarks: bool = False
    send_initial_events: bool | None = None
    """None when the client does not say: `false` is a choice, too."""
    timeout: int = 0

    @property
    def revision(self) -> int:
        return int(self.resource_version or 0)


_DEFAULT_LIST = ListOptions()


def list_options(request: Request) -> ListOptions:
    if not request.query:
        return _DEFAULT_LIST
    options = ListOptions(
        limit=integer(request, "limit"),
        continue_token=request.param("continue"),
        resource_version=request.param("resourceVersion"),
        resource_version_match=request.param("resourceVersionMatch"),
        label_selector=request.param("labelSelector"),
        field_selector=request.param("fieldSelector"),
        watch=boolean(request, "watch"),
        bookmarks=boolean(request, "allowWatchBookmarks"),
        send_initial_events=boolean(request, "sendInitialEvents") if "sendInitialEvents" in request.params else None,
        timeout=integer(request, "timeoutSeconds"),
    )
    if options.resource_version and not (options.resource_version.isdecimal() and len(options.resource_version) < 20):
        raise errors.Invalid(
            f'resourceVersion: Invalid value: "{options.resource_version[:64]}": must be a number this server gave'
        )
    _check_match(options)
    return options


def _check_match(options: ListOptions) -> None:
    match = options.resource_version_match
    if options.watch:
        if options.send_initial_events is not None and match != "NotOlderThan":
            raise errors.Invalid(
                "sendInitialEvents is set: resourceVersionMatch must be NotOlderThan, so that the watch has a beginning"
            )
        if match and options.send_initial_events is None:
            raise errors.Invalid("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        return
    if options.send_initial_events is not None:
        raise errors.Invalid("sendInitialEvents is forbidden for list")
    if not match:
        return
    if match not in ("Exact", "NotOlderThan"):
        raise errors.Invalid(
            f'resourceVersionMatch: Unsupported value: "{match[:64]}": supported values: "Exact", "NotOlderThan"'
        )
    if options.continue_token:
        raise errors.Invalid("resourceVersionMatch is forbidden with continue")
    if not options.resource_version:
        raise errors.Invalid("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match == "Exact" and options.resource_version == "0":
        raise errors.Invalid('resourceVersionMatch "Exact" is forbidden for resourceVersion "0"')


@dataclass(frozen=True, slots=True)
class WriteOptions:
    dry_run: bool = False
    manager: str = ""
    """Who is recorded as the owner of the fields that this write sets."""
    explicit_manager: bool = False
    validation: str = "Warn"
    """Strict, Warn or Ignore: what happens to fields that the schema does not know."""
    explicit_validation: bool = False
    force: bool = False


def write_options(request: Request) -> WriteOptions:
    manager = request.param("fieldManager") if request.query else ""
    if len(manager) > _MAX_MANAGER or not manager.isprintable():
        raise errors.Invalid(f"fieldManager: must be printable and at most {_MAX_MANAGER} characters long")
    field_validation = request.param("fieldValidation") if request.query else ""
    validation = field_validation or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        raise errors.Invalid(
            f'fieldValidation: Unsupported value: "{validation[:64]}": supported values: "Ignore", "Warn", "Strict"'
        )
    return WriteOptions(
        dry_run=dry_run(request.params.get("dryRun")) if request.query else False,
        manager=manager or _agent_name(request),
        explicit_manager=bool(manager),
        validation=validation,
        explicit_validation=bool(field_validation),
        force=boolean(request, "force"),
    )


def dry_run(values: list[str] | None) -> bool:
    if not values:
        return False
    if values != ["All"]:
        raise errors.Invalid(f'dryRun: Unsupported value: "{",".join(values)[:64]}": supported values: "All"')
    return True


def _agent_name(request: Request) -> str:
    """The field manager of a client that names none: the first word of its User-Agent."""
    agent = request.headers.get("user-agent", "")
    name = agent.partition("/")[0].strip()[:_MAX_MANAGER]
    return name if name and name.isprintable() else "unknown"
