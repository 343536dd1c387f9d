"""A job folder of NVFlare: which app of it runs where, the values of a task in it, and whether two apps are the same.

meta.json    {"deploy_map": {"app": ["@ALL"]}, ...}
app/         config/config_fed_server.json, config/config_fed_client.json, custom/*.py
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.engines.launching.configuration import BadConfig

_EVERYWHERE = "@ALL"
_CONFIGS = ("config_fed_server.json", "config_fed_client.json")
_SIGNATURES = ".__nvfl_"
_SKIPPED = shutil.ignore_patterns("__pycache__", ".*", "*.pyc")


def prepared(job: Path, target: Path, values: Mapping[str, object], owners: tuple[str, ...]) -> None:
    """A copy with the values of the task. All owners have to take part: a model of fewer would be taken for one of all."""
    shutil.copytree(job, target, ignore=_SKIPPED)
    meta = _object(target / "meta.json")
    meta["min_clients"], meta["mandatory_clients"] = len(owners), list(owners)
    _write(target / "meta.json", meta)
    unknown = {*values}
    for path in sorted(target.glob("*/config/*")):
        if path.name not in _CONFIGS:
            continue
        config = _object(path)
        given = {key: value for key, value in values.items() if _settable(config, key)}
        unknown -= {*given}
        _write(path, {**config, **given})
    if unknown:
        raise BadConfig(
            f"task_input_config: config.{min(unknown)} is no value at the top of {' or '.join(_CONFIGS)} of the job"
        )


def app_of(job: Path, site: str) -> Path:
    """The folder of the app that a site runs."""
    deployed = _object(job / "meta.json").get("deploy_map")
    if not isinstance(deployed, dict) or not all(isinstance(each, list) for each in deployed.values()):
        raise BadConfig(f"{job} is no job of NVFlare: meta.json has no deploy_map of lists")
    found: list[str] = [name for name, sites in deployed.items() if site in sites or _EVERYWHERE in sites or not sites]
    if len(found) != 1 or not (job / found[0]).is_dir() or Path(found[0]).name != found[0]:
        raise BadConfig(f"the job of the image has no one app for {site}: see deploy_map in its meta.json")
    return job / found[0]


def difference(own: Path, given: Path) -> str:
    """The first file in which the given app is not the own one; empty: it is. NVFlare's signatures do not count."""
    ours, theirs = _files(own), _files(given)
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            return name
    return ""


def _files(folder: Path) -> dict[str, str]:
    """What lies there, with what is in it."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.name.startswith(_SIGNATURES):
            continue
        if path.is_symlink():
            found[name] = "link"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _settable(config: dict[str, Any], key: str) -> bool:
    return key != "format_version" and isinstance(config.get(key), str | int | float)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise BadConfig(f"the job of the image cannot be used: {path.name}: {problem}") from problem
    if not isinstance(found, dict):
        raise BadConfig(f"the job of the image cannot be used: {path.name} is no JSON object")
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
