"""Write src/coterie/kube/api/wire/messages.tsv from the types of the Kubernetes release in tests/real_kubernetes/binaries.

    scripts/get-kubernetes && .venv/bin/python scripts/write_wire_table.py

Messages that are not reachable from a kind, and those whose JSON is not an object, keep the rows that they have.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/coterie/kube/api/wire/messages.tsv"
CODEC = ROOT / ".tools/kubernetes/protobuf-codec"
HEAD = (
    "# Wire facts of the Kubernetes API (1.36): one row per field of a message.\n"
    "# message\tfield number\tJSON name\ttype\tshape (one, list, inline, map<K,V>)"
    "\tzero value kept in JSON (1) or dropped (0)\n"
)


def main() -> None:
    found = subprocess.run([CODEC, "fields"], check=True, capture_output=True, text=True).stdout.splitlines()
    known = {row.partition("\t")[0] for row in found}
    kept = [
        row for row in TABLE.read_text().splitlines() if not row.startswith("#") and row.partition("\t")[0] not in known
    ]
    rows = sorted([*found, *kept], key=lambda row: (row.split("\t")[0], int(row.split("\t")[1])))
    TABLE.write_text(HEAD + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
