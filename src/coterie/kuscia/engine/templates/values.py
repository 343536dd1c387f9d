"""Where the values come from, the first that knows a name: the task's values, what the node knows, the container's variables.

values ConfigMap (some of it compressed) ──┐
built in: KUSCIA_API_PROTOCOL, ..._TOKEN ──┼──> values ──(still missing)──> the domain's config store, asked once
variables of the container ────────────────┘
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Collection, Mapping

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.engine.templates.errors import TemplateError

LARGEST = 16 << 20
"""Bytes of all compressed values of one ConfigMap once opened: a few bytes can be made to unfold into any number."""


def of_config_map(obj: Object, wanted: Collection[str]) -> dict[str, str]:
    """The wanted values that a pod's values ConfigMap has."""
    name = obj["metadata"]["name"]
    annotation = (obj["metadata"].get("annotations") or {}).get(labels.KUSCIA_CONFIG_VALUE_COMPRESS_FIELDS) or ""
    compressed = {key.strip() for key in annotation.split(",")}
    found = {key.upper(): str(text) for key, text in (obj.get("data") or {}).items() if key.upper() in wanted}
    left = LARGEST
    for key, coded in (obj.get("binaryData") or {}).items():
        if key.upper() not in wanted:
            continue
        try:
            data = base64.b64decode(coded, validate=True)
            content = _opened(data, left) if key in compressed else data
            left -= len(content)
            found[key.upper()] = content.decode()
        except (binascii.Error, zlib.error, UnicodeDecodeError) as problem:
            raise TemplateError(f"the value {key} in configmap {name} is damaged: {problem}") from problem
        except _TooLarge as problem:
            raise TemplateError(f"the values in configmap {name} are larger than {LARGEST >> 20} MiB") from problem
    return found


def of_variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {name.upper(): value for name, value in variables.items()}


class _TooLarge(Exception):
    pass


def _opened(data: bytes, most: int) -> bytes:
    opener = zlib.decompressobj()
    content = opener.decompress(data, most + 1)
    if len(content) > most:
        raise _TooLarge
    if not opener.eof:
        raise zlib.error("it ends too early")
    return content
