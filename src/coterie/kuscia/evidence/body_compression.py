"""How bodies of events and disclosed values are kept on disk: deflated with a dictionary of what events usually contain. Pure.

Most of an event are hexadecimal digests and names of fields: half of that needs no disk. Hashes are over the event itself, never over
this, and files for auditors contain it as it was written. The dictionary belongs to version 2 of the file and never changes.
"""

from __future__ import annotations

import zlib

from coterie.kuscia.api.evidence import MAX_EVENT, EvidenceError

_DEFLATED = b"\x01"
"""What is kept as it was written begins with no such byte: neither JSON nor a name does."""
_WINDOW, _MEMORY, _LEVEL = -12, 5, 6
_DICTIONARY = (
    b"system:serviceaccount:kuscia.secretflow/domaindatasources certificates.k8s.io/certificatesigningrequests "
    b"rbac.authorization.k8s.io/clusterrolebindings admissionregistration.k8s.io/core/secrets core/namespaces "
    b"kuscia.secretflow/partnerpolicies coterie.io/actiongrants kuscia.secretflow/domains kuscia.secretflow/appimages "
    b'kuscia.secretflow/domainroutes kuscia.secretflow/domaindatagrants kuscia.secretflow/kusciajobs {"count":1,'
    b'"head":[".coterie/evidence/1","more":{"key":"certificate":"outcome":"Failed","outcome":"Succeeded","partner":"'
    b'","reason":"","kind":"api.write","object":["kind":"checkpoint.received","kind":"grant.used","kind":"job.approved",'
    b'"kind":"job.created","kind":"job.ended","kind":"task.ended","verb":"delete","verb":"patch","verb":"update",'
    b'"verb":"create","version":"unknown"}},"grant":["0123456789abcdef"],"out":["}},{"agree":"{"digest":"sha256:",'
    b'"version":"1.0"}},"in":["],"job":"job-","kind":"task.started","parties":["alice","bob"],"t":1790000000000,'
    b'"task":"job-","v":1,"who":"'
)
# Copies of these two: making one costs more than the work itself.
_deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, _DICTIONARY)
_inflate = zlib.decompressobj(_WINDOW, _DICTIONARY)


def compressed(content: bytes) -> bytes:
    made = _deflate.copy()
    return _DEFLATED + made.compress(content) + made.flush()


def expanded(stored: bytes) -> bytes:
    """Raises EvidenceError for what was never written so."""
    if stored[:1] != _DEFLATED:
        return stored
    reader = _inflate.copy()
    try:
        content = reader.decompress(stored[1:], MAX_EVENT + 1)
    except zlib.error as problem:
        raise EvidenceError(f"a part of the evidence log cannot be read ({problem}): the file is damaged") from None
    if not reader.eof or reader.unused_data:
        raise EvidenceError("a part of the evidence log cannot be read: the file is damaged")
    return content
