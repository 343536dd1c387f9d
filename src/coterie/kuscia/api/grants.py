"""Whether a grant covers a use of data. Pure, so that control planes (before a task starts) and data meshes (when it reads)
decide alike.

    Use (who, for what, which columns) + grants of the table ──decide──> the grant that covers it, or why none does

The rule: data stays where it is; what a grant gives is the right to have the owner's own engines work on it. A task that
the owner itself began needs none. A task that another domain began may use a table when a grant

    - is given by the owner to the domain that began the task; or, where `limit.initiator` names that domain, to any domain
      that takes part in it,
    - bears the owner's signature, has not ended and was not used up,
    - and whose limits (component, flow, input, columns, mode) the use keeps.

`limit.components` names a component (`data_prep/psi:1.0.0`, `data_prep/psi`, `psi`), an AppImage (`psi`, `psi@sha256:...`), or
both (`secretflow-image#data_prep/psi`, `secretflow-image@sha256:...#psi`). Which AppImage runs is what the owner's control
plane recorded on the pod; a component counts only where the engine of that AppImage reads it (`component_field`): whatever
else a task input claims is not believed.

Kuscia has no field for columns. A `limit.inputConfig` that is a JSON object with only `columns` limits them, and passes
through control planes that know nothing of it; any other text there means: only with just this task input.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from coterie.base.clock import parse_rfc3339, rfc3339
from coterie.base.lazy_import import lazy_import
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import FILE, METADATA, NORMAL, DomainData, DomainDataGrant, DomainDataGrantSpec

if TYPE_CHECKING:
    from coterie.base import signatures
    from coterie.base.pki import PublicKey
else:
    signatures = lazy_import("coterie.base.signatures")

EXPIRED = "Expirated"
"""Message of a grant whose time is over, in Kuscia's spelling."""
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, slots=True)
class DataUse:
    """What a task wants to do with a table."""

    data: str
    initiator: str
    """The domain that began the task's job."""
    parties: frozenset[str] = frozenset()
    components: tuple[str, ...] = ()
    """The names under which the task's component and AppImage are known, the fullest first."""
    flow: str = ""
    input_config: str = ""
    columns: tuple[str, ...] | None = None
    """Those that are read, also only to choose rows by them; None: nothing is read yet."""
    mode: str = NORMAL
    """normal: a table; file: the bytes as they are; metadata: what it is, not what is in it."""


@dataclass(frozen=True, slots=True)
class GrantRefusal:
    limit: str
    """The field that stands against it, as `useCount`."""
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class GrantDecision:
    grant: DomainDataGrant | None
    refusals: tuple[GrantRefusal, ...] = ()

    @property
    def sentence(self) -> str:
        return "; ".join(str(each) for each in self.refusals)


# The decision.


def decide(
    grants: Sequence[DomainDataGrant], use: DataUse, owner: str, now: datetime, key: PublicKey | None = None
) -> GrantDecision:
    """`grants`: those of the owner's namespace. `key`: the owner's, to check signatures by; None: they are not checked."""
    refusals: list[GrantRefusal] = []
    covering: list[DomainDataGrant] = []
    for grant in sorted(grants, key=lambda each: each.metadata.name):
        if grant.spec.domain_data_id != use.data or grant.spec.author != owner:
            continue
        refusal = refusals_of(grant, use, now, key)
        if refusal is None:
            covering.append(grant)
        else:
            refusals.append(refusal)
    if covering:
        # One without a count first: others are kept for uses that have nothing else.
        return GrantDecision(min(covering, key=lambda each: (each.limit.use_count > 0, each.metadata.name)))
    if not refusals:
        sentence = f'"{use.initiator}" began the task and has no grant for "{use.data}" of "{owner}"'
        refusals.append(GrantRefusal("grant", sentence))
    return GrantDecision(None, tuple(refusals))


def refusals_of(
    grant: DomainDataGrant, use: DataUse, now: datetime, key: PublicKey | None = None
) -> GrantRefusal | None:
    """The first thing that stands against the use; None: the grant covers it."""
    return next(_against(grant, use, now, key), None)


def _against(grant: DomainDataGrant, use: DataUse, now: datetime, key: PublicKey | None) -> Iterator[GrantRefusal]:
    spec, limit, name = grant.spec, grant.limit, f'grant "{grant.metadata.name}"'
    if grant.metadata.deleting:
        yield GrantRefusal("grant", f"{name} is being revoked")
    if limit.initiator and limit.initiator != use.initiator:
        yield GrantRefusal("initiator", f'{name} is for tasks of "{limit.initiator}", not of "{use.initiator}"')
    elif spec.grant_domain != use.initiator and not (limit.initiator and spec.grant_domain in use.parties):
        yield GrantRefusal("grantDomain", f'{name} is for "{spec.grant_domain}", not for "{use.initiator}"')
    if key is not None and (unsigned := signature_refusal(grant, key)) is not None:
        yield unsigned
    ends = parse_rfc3339(limit.expiration_time) if limit.expiration_time else None
    if ends is not None and now >= ends:
        yield GrantRefusal("expirationTime", f"{name} ended at {limit.expiration_time}")
    if limit.use_count > 0 and len(grant.uses) >= limit.use_count and use.mode != METADATA:
        yield GrantRefusal(
            "useCount", f"{name} was used {len(grant.uses)} times and may be used {limit.use_count} times"
        )
    if limit.flow_id and limit.flow_id != use.flow:
        yield GrantRefusal("flowID", f'{name} is for flow "{limit.flow_id}", not "{use.flow}"')
    if limit.components and not set(limit.components) & set(use.components):
        asked = use.components[0] if use.components else "an unknown one"
        yield GrantRefusal("components", f"{name} is for component {', '.join(limit.components)}, not {asked}")
    modes = limit.grant_mode or ()
    if modes and use.mode not in modes and not (use.mode == METADATA or NORMAL in modes):
        yield GrantRefusal("grantMode", f"{name} is for {', '.join(modes)}, not {use.mode}")
    columns = granted_columns(grant)
    if columns is None:
        if limit.input_config and not _same_input(limit.input_config, use.input_config):
            yield GrantRefusal("inputConfig", f"{name} is for another task input")
        return
    beyond = [each for each in use.columns or () if each not in columns]
    if beyond:
        yield GrantRefusal("columns", f"{name} does not give column {', '.join(beyond)}")
    if use.mode == FILE:
        yield GrantRefusal("columns", f"{name} gives some columns only, not the file")


def signature_refusal(grant: DomainDataGrant, key: PublicKey) -> GrantRefusal | None:
    """A grant is the owner's word, so it must bear the owner's signature: whoever keeps the objects could write one."""
    name = f'grant "{grant.metadata.name}"'
    if not grant.spec.signature:
        return GrantRefusal(
            "signature", f"{name} does not bear the owner's signature; grant it again at the owner's node"
        )
    if not signature_good(grant.spec, key):
        return GrantRefusal("signature", f"{name} bears a signature that is not the owner's")
    return None


def granted_columns(grant: DomainDataGrant) -> frozenset[str] | None:
    """None: the grant does not limit columns."""
    parsed = _json(grant.limit.input_config)
    if isinstance(parsed, dict) and parsed.keys() == {"columns"} and isinstance(parsed["columns"], list):
        return frozenset(each for each in parsed["columns"] if isinstance(each, str))
    return None


def columns_limit(columns: Sequence[str]) -> str:
    """What `limit.inputConfig` says to grant just these columns."""
    return json.dumps({"columns": list(columns)}, ensure_ascii=False)


def _same_input(wanted: str, given: str) -> bool:
    if wanted == given:
        return True
    parsed = _json(wanted)
    return parsed is not None and parsed == _json(given)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# Tasks, before they start.


SECRETFLOW_FIELD, PLAIN_FIELD, NO_FIELD = "sf_node_eval_param", "component", "none"


def component_field(annotations: Mapping[str, str] | None, image: str) -> str:
    """The field of the task input that tells the engines of an AppImage their component: what the AppImage says, else
    SecretFlow's for images of SecretFlow; empty: none."""
    named = mark(annotations, labels.COTERIE_COMPONENT_FIELD)
    if named:
        return "" if named == NO_FIELD else named
    return SECRETFLOW_FIELD if image.rpartition("/")[2].startswith("secretflow") else ""


def use_names(app_image: str, digests: Collection[str], components: Sequence[str], engine: str = "") -> tuple[str, ...]:
    """All names by which a grant may speak of what runs, those of the component first. `engine`: that the AppImage is a version of."""
    named = dict.fromkeys(each for each in (app_image, engine) if each)
    images = [*named, *(f"{each}@{digest}" for each in named for digest in digests)]
    return (*components, *images, *(f"{image}#{each}" for image in images for each in components))


def components_of(input_config: str, field: str | None = None) -> tuple[str, ...]:
    """The names of the component that a task input asks for: SecretFlow's `domain/name:version`, or our `component`.

    `field`: the only one that the engine reads; None: it is not known."""
    parsed = _json(input_config)
    if not isinstance(parsed, dict):
        return ()
    if field is not None:
        parsed = {name: value for name, value in parsed.items() if name == field}
    node = parsed.get(SECRETFLOW_FIELD)
    if isinstance(node, str):
        node = _json(node)
    if isinstance(node, dict) and isinstance(node.get("name"), str):
        domain, version = (node.get(each) for each in ("domain", "version"))
        short = node["name"]
        full = f"{domain}/{short}" if isinstance(domain, str) and domain else short
        names = (f"{full}:{version}" if isinstance(version, str) and version else full, full, short)
        return tuple(dict.fromkeys(names))
    named = parsed.get(PLAIN_FIELD if field in (None, SECRETFLOW_FIELD) else field)
    return (named,) if isinstance(named, str) and named else ()


def data_named(input_config: str, known: Collection[str]) -> tuple[str, ...]:
    """Those of the known ids that stand as a value somewhere in the task input, also in JSON inside of its texts."""
    return tuple(sorted({text for text in texts_of(input_config) if text in known}))


def texts_of(given: Any) -> Iterator[str]:
    """All texts that are values somewhere in it, also in JSON inside of texts. A text is taken for JSON first."""
    waiting: list[Any] = [_json(given) if isinstance(given, str) else given]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            yield value
            if value[:1] in ("{", "["):
                waiting.append(_json(value))


def check_task(
    use: DataUse, owner: str, datas: Sequence[DomainData], grants: Sequence[DomainDataGrant], now: datetime
) -> tuple[GrantRefusal, ...]:
    """Why a task must not start in the owner's domain; empty: nothing stands against it.

    `use.input_config` is looked through for the owner's tables (`use.data` is not looked at). Results of earlier jobs of
    the same initiator are left to the data mesh, which knows what the task does with them.
    """
    if use.initiator == owner:
        return ()
    own = {each.metadata.name: each for each in datas if each.spec.author == owner}
    out: list[GrantRefusal] = []
    for name in data_named(use.input_config, own.keys()):
        if mark(own[name].metadata.annotations, labels.COTERIE_MADE_FOR) == use.initiator:
            continue
        out += decide(grants, for_table(use, name), owner, now).refusals
    return tuple(out)


def for_table(use: DataUse, name: str) -> DataUse:
    """The use of this table, before anything is read of it."""
    return DataUse(name, use.initiator, use.parties, use.components, use.flow, use.input_config)


def mark(marks: Mapping[str, str] | None, key: str) -> str:
    return (marks or {}).get(key) or ""


# Signatures.


def signed_text(spec: DomainDataGrantSpec) -> bytes:
    """What the owner signs: the grant without signature, as Kuscia's control planes write it, to the letter."""
    limit: dict[str, Any] | None = None
    if spec.limit is not None:
        given = spec.limit
        limit = {
            "expirationTime": rfc3339(parse_rfc3339(given.expiration_time)) if given.expiration_time else None,
            "useCount": given.use_count,
            "flowID": given.flow_id,
            "components": list(given.components or ()),
            "initiator": given.initiator,
            "inputConfig": given.input_config,
        }
        limit = {key: value for key, value in limit.items() if value}
        # The one field that is written even when it is not set.
        modes = {"grantMode": list(given.grant_mode) if given.grant_mode is not None else None}
        before = {key: limit.pop(key) for key in ("expirationTime", "useCount") if key in limit}
        limit = before | modes | limit
    out: dict[str, Any] = {"author": spec.author, "domainDataID": spec.domain_data_id, "grantDomain": spec.grant_domain}
    if limit is not None:
        out["limit"] = limit
    if spec.description:
        out["description"] = dict(sorted(spec.description.items()))
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":"))
    return "".join(_ESCAPED.get(each, each) for each in text).encode()


def signature_good(spec: DomainDataGrantSpec, key: PublicKey) -> bool:
    try:
        signature = base64.b64decode(spec.signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    return signatures.is_valid(signature, signed_text(spec), key)
