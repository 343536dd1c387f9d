"""Write a software bill of materials (CycloneDX 1.6, JSON): what Coterie is built from, with versions, licences and hashes.

    python scripts/write_sbom.py sbom.json

Components come from the metadata of the installed packages, hashes from requirements.txt, the packages of engines from their
own requirements. Addresses of package indexes are not written. The same inputs give the same file.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_REQUIREMENT = re.compile(r"^[A-Za-z0-9._-]+")
_LONGEST_LICENCE = 100


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{normal(name)}@{version}"


def hashes_in(path: Path) -> dict[tuple[str, str], list[str]]:
    """By name and version, the SHA-256 of the files that may be installed."""
    found: dict[tuple[str, str], list[str]] = {}
    current: list[str] = []
    for line in path.read_text().splitlines():
        if pin := _PIN.match(line):
            current = found.setdefault((normal(pin[1]), pin[2]), [])
        elif digest := _HASH.search(line):
            current.append(digest[1])
    return found


def licences(about: metadata.PackageMetadata) -> list[dict[str, Any]]:
    expression = about.get("License-Expression") or ""
    if expression:
        return [{"expression": expression}]
    named = (about.get("License") or "").strip()
    if named and len(named) <= _LONGEST_LICENCE and "\n" not in named:
        return [{"license": {"name": named}}]
    classified = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if "License ::" in line]
    return [{"license": {"name": each}} for each in classified]


def component(name: str, version: str, digests: list[str], scope: str, groups: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(name, version),
        "name": name,
        "version": version,
        "purl": purl(name, version),
        "scope": scope,
    }
    if digests:
        # One package has a file for each platform. CycloneDX has room for the hash of one, so they are properties.
        made["properties"] = [{"name": "coterie:sha256", "value": each} for each in sorted(digests)]
    made["properties"] = [*made.get("properties", []), *({"name": "coterie:used-by", "value": each} for each in groups)]
    return made


def needed_by(dependencies: list[str]) -> set[str]:
    """What these packages need, and what those need in turn, as far as it is installed."""
    found: set[str] = set()
    waiting = [normal(match[0]) for each in dependencies if (match := _REQUIREMENT.match(each))]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for each in distribution.requires or ():
            if "extra ==" not in each and (match := _REQUIREMENT.match(each)):
                waiting.append(normal(match[0]))
    return found


def sbom(root: Path = ROOT) -> dict[str, Any]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    runtime = needed_by(project["dependencies"])
    components: dict[str, dict[str, Any]] = {}
    dependencies = []
    for (name, version), digests in hashes_in(root / "requirements.txt").items():
        used = "runtime" if name in runtime else "development"
        made = component(name, version, digests, "required" if used == "runtime" else "excluded", [used])
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            distribution = None
        if distribution is not None and distribution.version == version:
            made["licenses"] = licences(distribution.metadata)
        components[made["bom-ref"]] = made
    for path in sorted(root.glob("src/coterie/engines/*/requirements.txt")):
        engine = f"engine {path.parent.name}"
        for (name, version), digests in hashes_in(path).items():
            known = components.get(purl(name, version))
            if known is None:
                components[purl(name, version)] = component(name, version, digests, "optional", [engine])
            else:
                known["properties"].append({"name": "coterie:used-by", "value": engine})
    own = purl(project["name"], project["version"])
    direct = {normal(match[0]) for each in project["dependencies"] if (match := _REQUIREMENT.match(each))}
    dependencies.append(
        {"ref": own, "dependsOn": sorted(ref for ref, each in components.items() if normal(each["name"]) in direct)}
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"expression": project["license"]}],
            }
        },
        "components": [components[ref] for ref in sorted(components)],
        "dependencies": dependencies,
    }


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: write_sbom.py FILE", file=sys.stderr)
        return 2
    Path(sys.argv[1]).write_text(json.dumps(sbom(), indent=1, sort_keys=True) + "\n")
    print(f"{sys.argv[1]}: {len(sbom()['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
