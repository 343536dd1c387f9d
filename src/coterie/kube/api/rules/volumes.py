"""What is wrong with a pod's volumes: exactly one source each, and the source's own demands."""

from __future__ import annotations

from collections.abc import Callable

from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import config_key_faults, dns_label_faults, dns_subdomain_faults
from coterie.kube.api.rules.base import Errors, Obj
from coterie.kube.api.rules.common import named, optional_named, parse_quantity
from coterie.kube.api.rules.containers import relative_path_faults
from coterie.kube.api.rules.environment import check_field_ref, check_resource_ref

_MODE = "must be a number between 0 and 0777 (octal), both inclusive"
_HOST_PATH_TYPES = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")

# Sources whose demands are just these fields being present.
_REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "fc": (),
    "flexVolume": ("driver",),
    "flocker": (),
    "gcePersistentDisk": ("pdName",),
    "gitRepo": ("repository",),
    "glusterfs": ("endpoints", "path"),
    "image": ("reference",),
    "iscsi": ("targetPortal", "iqn"),
    "nfs": ("server", "path"),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "quobyte": ("registry", "volume"),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "storageos": (),
    "vsphereVolume": ("volumePath",),
}


def check_volumes(volumes: list[Obj], path: str) -> tuple[dict[str, Obj], Errors]:
    """The volumes by name, and their faults."""
    by_name: dict[str, Obj] = {}
    errors: Errors = []
    for index, volume in enumerate(volumes):
        name = volume.get("name")
        if not name or dns_label_faults(name):
            errors += named(name, f"{path}[{index}].name", dns_label_faults)
        elif name in by_name:
            errors.append(duplicate(f"{path}[{index}].name", name))
        if name:
            by_name[name] = volume
        errors += _check_source(volume, f"{path}[{index}]")
    return by_name, errors


def _check_source(volume: Obj, path: str) -> Errors:
    errors: Errors = []
    given = 0
    for key, source in volume.items():
        if key == "name" or source is None:
            continue
        given += 1
        if given > 1:
            errors.append(forbidden_field(f"{path}.{key}", "may not specify more than 1 volume type"))
        elif check := _CHECKS.get(key):
            errors += check(source, f"{path}.{key}")
        else:
            errors += [
                required(f"{path}.{key}.{field}") for field in _REQUIRED_FIELDS.get(key, ()) if not source.get(field)
            ]
    return errors if given else [required(path, "must specify a volume type")]


def _check_mode(source: Obj, path: str, key: str = "defaultMode") -> Errors:
    mode = source.get(key)
    return [] if mode is None or 0 <= mode <= 0o777 else [invalid(f"{path}.{key}", mode, _MODE)]


def _check_items(source: Obj, path: str) -> Errors:
    errors: Errors = []
    for index, item in enumerate(source.get("items") or ()):
        at = f"{path}.items[{index}]"
        errors += named(item.get("key"), f"{at}.key", config_key_faults)
        errors += _check_target(item.get("path"), f"{at}.path")
        errors += _check_mode(item, at, "mode")
    return errors


def _check_target(target: str | None, path: str) -> Errors:
    if not target:
        return [required(path)]
    faults = relative_path_faults(target)
    if target.startswith(".."):
        faults += ("must not start with '..'",)
    return [invalid(path, target, fault) for fault in faults]


def _check_config_map(source: Obj, path: str) -> Errors:
    errors = [] if source.get("name") else [required(f"{path}.name")]
    return errors + _check_mode(source, path) + _check_items(source, path)


def _check_secret(source: Obj, path: str) -> Errors:
    errors = [] if source.get("secretName") else [required(f"{path}.secretName")]
    return errors + _check_mode(source, path) + _check_items(source, path)


def _check_downward_items(source: Obj, path: str) -> Errors:
    errors: Errors = []
    for index, item in enumerate(source.get("items") or ()):
        at = f"{path}.items[{index}]"
        errors += _check_target(item.get("path"), f"{at}.path")
        errors += _check_mode(item, at, "mode")
        field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
        if field is not None:
            errors += check_field_ref(field, f"{at}.fieldRef")
            if resource is not None:
                errors.append(
                    invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
                )
        elif resource is not None:
            errors += check_resource_ref(resource, f"{at}.resourceFieldRef", in_volume=True)
        else:
            errors.append(required(at, "one of fieldRef and resourceFieldRef is required"))
    return errors


def _check_downward(source: Obj, path: str) -> Errors:
    return _check_mode(source, path) + _check_downward_items(source, path)


def _check_token(source: Obj, path: str) -> Errors:
    errors: Errors = []
    seconds = source.get("expirationSeconds")
    if seconds is not None and seconds < 600:
        errors.append(invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes"))
    elif seconds is not None and seconds > 1 << 32:
        errors.append(
            invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
        )
    if not source.get("path"):
        errors.append(required(f"{path}.path"))
    return errors


def _check_projected_config_map(source: Obj, path: str) -> Errors:
    return ([] if source.get("name") else [required(f"{path}.name")]) + _check_items(source, path)


def _check_trust_bundle(source: Obj, path: str) -> Errors:
    return _check_target(source.get("path"), f"{path}.path")


_PROJECTIONS: dict[str, Callable[[Obj, str], Errors]] = {
    "secret": _check_projected_config_map,
    "configMap": _check_projected_config_map,
    "downwardAPI": _check_downward_items,
    "serviceAccountToken": _check_token,
    "clusterTrustBundle": _check_trust_bundle,
}


def _check_projected(source: Obj, path: str) -> Errors:
    errors = _check_mode(source, path)
    for index, part in enumerate(source.get("sources") or ()):
        at = f"{path}.sources[{index}]"
        given = [key for key in _PROJECTIONS if part.get(key) is not None]
        if not given:
            errors.append(required(at, "must specify at least one projection type"))
        for place, key in enumerate(given):
            if place:
                errors.append(forbidden_field(f"{at}.{key}", "may not specify more than 1 volume type per source"))
            else:
                errors += _PROJECTIONS[key](part[key], f"{at}.{key}")
    return errors


def _check_host_path(source: Obj, path: str) -> Errors:
    target, kind = source.get("path"), source.get("type") or ""
    errors: Errors = []
    if not target:
        errors.append(required(f"{path}.path"))
    elif ".." in target.split("/"):
        errors.append(invalid(f"{path}.path", target, "must not contain '..'"))
    if kind not in _HOST_PATH_TYPES:
        errors.append(not_supported(f"{path}.type", kind, _HOST_PATH_TYPES))
    return errors


def _check_empty_dir(source: Obj, path: str) -> Errors:
    limit = source.get("sizeLimit")
    if limit is None:
        return []
    parsed = parse_quantity(limit)
    if parsed is None or parsed.nanos < 0:
        return [forbidden_field(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")]
    return []


def _check_claim(source: Obj, path: str) -> Errors:
    return [] if source.get("claimName") else [required(f"{path}.claimName")]


def _check_nfs(source: Obj, path: str) -> Errors:
    errors = [required(f"{path}.{field}") for field in ("server", "path") if not source.get(field)]
    if source.get("path") and not source["path"].startswith("/"):
        errors.append(invalid(f"{path}.path", source["path"], "must be an absolute path"))
    return errors


def _check_csi(source: Obj, path: str) -> Errors:
    return named(source.get("driver"), f"{path}.driver", dns_subdomain_faults)


def _check_ephemeral(source: Obj, path: str) -> Errors:
    template = source.get("volumeClaimTemplate")
    if template is None:
        return [required(f"{path}.volumeClaimTemplate")]
    return check_claim_spec(template.get("spec") or {}, f"{path}.volumeClaimTemplate.spec")


_CHECKS: dict[str, Callable[[Obj, str], Errors]] = {
    "configMap": _check_config_map,
    "secret": _check_secret,
    "downwardAPI": _check_downward,
    "projected": _check_projected,
    "hostPath": _check_host_path,
    "emptyDir": _check_empty_dir,
    "persistentVolumeClaim": _check_claim,
    "nfs": _check_nfs,
    "csi": _check_csi,
    "ephemeral": _check_ephemeral,
}


def check_access_modes(modes: list[str], path: str) -> Errors:
    errors = [not_supported(path, mode, ACCESS_MODES) for mode in modes if mode not in ACCESS_MODES]
    if not modes:
        errors.append(required(path, "at least 1 access mode is required"))
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        errors.append(forbidden_field(path, "may not use ReadWriteOncePod with other access modes"))
    return errors


def check_claim_spec(spec: Obj, path: str) -> Errors:
    """Faults of a claim's spec, which also stands inside ephemeral volumes and stateful sets."""
    errors = check_access_modes(spec.get("accessModes") or [], f"{path}.accessModes")
    requests = (spec.get("resources") or {}).get("requests") or {}
    at = f"{path}.resources[storage]"
    if "storage" not in requests:
        errors.append(required(at))
    else:
        parsed = parse_quantity(requests["storage"])
        if parsed is None or parsed.nanos <= 0:
            errors.append(invalid(at, requests["storage"], "must be greater than zero"))
    if spec.get("volumeMode") not in (None, "Block", "Filesystem"):
        errors.append(not_supported(f"{path}.volumeMode", spec["volumeMode"], ("Block", "Filesystem")))
    errors += optional_named(spec.get("storageClassName"), f"{path}.storageClassName", dns_subdomain_faults)
    return errors
