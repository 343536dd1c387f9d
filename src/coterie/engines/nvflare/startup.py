"""Startup startup of NVFlare, made for one task: certificates, and what each program is told.

The party with the server has an authority that lives as long as the task. A client makes its own key and asks for a
certificate through the gateways, which say who asks: no key leaves its party.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.engines.nvflare.task import SERVER_SITE

ADMINISTRATOR = "admin@coterie"
PROJECT = "coterie"
_ROLE = "project_admin"
_DAYS = 30
_KEY, _CERTIFICATE, _ROOT = "client.key", "client.crt", "rootCA.pem"


class BadCertificateRequest(Exception):
    """A request for a certificate that is none."""


class TaskAuthority:
    """Gives certificates to the programs of one task."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._name = _name(PROJECT)
        self.root = pem(self._signed(self._name, self._key.public_key(), None))

    def certificate(self, name: str, request: bytes, *, server: bool = False) -> bytes:
        """For the key in the request. What name is asked for does not matter: the gateways know it."""
        try:
            asked = x509.load_pem_x509_csr(request)
            valid = asked.is_signature_valid
            key = asked.public_key()
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as problem:
            raise BadCertificateRequest("this is no request for a certificate") from problem
        if not valid or not isinstance(key, rsa.RSAPublicKey) or not 2048 <= key.key_size <= 8192:
            raise BadCertificateRequest(
                "a request for a certificate has an RSA key of 2048 bits or more, and is signed with it"
            )
        return pem(self._signed(_name(name, server=server), key, server))

    def _signed(self, subject: x509.Name, key: CertificatePublicKeyTypes, server: bool | None) -> x509.Certificate:
        """`server` None: the root itself."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=server is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=server is not None,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=server is None,
                    crl_sign=server is None,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        if server is not None:
            usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(name: str, *, server: bool = False) -> x509.Name:
    """NVFlare reads the role of administrators in it."""
    role = {ADMINISTRATOR: _ROLE, PROJECT: ""}.get(name, "server" if server else "client")
    named = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if role:
        named += [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, PROJECT),
            x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role),
        ]
    return x509.Name(named)


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_and_request(folder: Path, key_name: str = _KEY) -> bytes:
    """Write a new key; its request for a certificate."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = folder / "startup" / key_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def write_server(folder: Path, authority: TaskAuthority, port: int, admin_port: int) -> None:
    """For the server. Clients and administrators have ports of their own: relays lead to the first only."""
    certificate = authority.certificate(SERVER_SITE, key_and_request(folder, "server.key"), server=True)
    _bytes(folder, "server.crt", certificate)
    _bytes(folder, _ROOT, authority.root)
    server = {
        "name": PROJECT,
        "service": {"target": f"127.0.0.1:{port}", "scheme": "http"},
        "admin_server": "127.0.0.1",
        "admin_host": "127.0.0.1",
        "admin_port": admin_port,
        "ssl_private_key": "server.key",
        "ssl_cert": "server.crt",
        "ssl_root_cert": _ROOT,
        "connection_security": "clear",
    }
    # Jobs need no signature: each client compares the app with the one of its own image.
    started = {"format_version": 2, "require_signed_jobs": False, "servers": [server]}
    _json(folder, "startup/fed_server.json", started)
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    snapshots = {"path": storage, "args": {"root_dir": str(folder / "snapshots"), "uri_root": "/"}}
    jobs = {"uri_root": str(folder / "jobs"), "job_store_id": "job_store"}
    common = "nvflare.app_common"
    resources = {
        "format_version": 2,
        "class_allow_list": ["*"],
        "servers": [
            {"admin_storage": "transfer", "max_num_clients": 1000, "heart_beat_timeout": 60, "admin_timeout": 30.0}
        ],
        "snapshot_persistor": {
            "path": f"{common}.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {"uri_root": "/", "storage": snapshots},
        },
        "components": [
            _component("job_scheduler", f"{common}.job_schedulers.job_scheduler.DefaultJobScheduler", max_jobs=1),
            _component("job_manager", "nvflare.apis.impl.job_def_manager.SimpleJobDefManager", **jobs),
            _component("job_store", storage),
            _component("process_launcher", f"{common}.job_launcher.server_process_launcher.ServerProcessJobLauncher"),
        ],
    }
    _json(folder, "local/resources.json", resources)
    _json(folder, "local/authorization.json", {"format_version": "1.0", "permissions": {_ROLE: "any"}})
    _log(folder)


def write_administrator(folder: Path, authority: TaskAuthority, admin_port: int) -> None:
    """For who submits the job: the launcher, on loopback."""
    _bytes(folder, _CERTIFICATE, authority.certificate(ADMINISTRATOR, key_and_request(folder)))
    _bytes(folder, _ROOT, authority.root)
    administrator = {
        "project_name": PROJECT,
        "username": ADMINISTRATOR,
        "server_identity": SERVER_SITE,
        "scheme": "http",
        "host": "127.0.0.1",
        "port": admin_port,
        "connection_security": "clear",
        "uid_source": "cert",
        "with_file_transfer": True,
        "upload_dir": "transfer",
        "download_dir": "transfer",
        "client_key": _KEY,
        "client_cert": _CERTIFICATE,
        "ca_cert": _ROOT,
    }
    _json(folder, "startup/fed_admin.json", {"format_version": 1, "admin": administrator})
    (folder / "transfer").mkdir(exist_ok=True)
    limits = {"idle_timeout": 0, "login_timeout": 60.0, "with_debug": False, "authenticate_msg_timeout": 30.0}
    _json(folder, "local/resources.json", {"format_version": 1, "admin": {**limits, "prompt": "> "}})


def write_client(folder: Path, certificate: bytes, root: bytes, relay_port: int, own_app: Path) -> None:
    """For a client, whose key is there already."""
    _bytes(folder, _CERTIFICATE, certificate)
    _bytes(folder, _ROOT, root)
    service = {"target": f"127.0.0.1:{relay_port}", "scheme": "http"}
    client = {
        "ssl_private_key": _KEY,
        "ssl_cert": _CERTIFICATE,
        "ssl_root_cert": _ROOT,
        "connection_security": "clear",
    }
    started = {
        "format_version": 2,
        "require_signed_jobs": False,
        "servers": [{"name": PROJECT, "service": service, "identity": SERVER_SITE}],
        "client": client,
    }
    _json(folder, "startup/fed_client.json", started)
    common = "nvflare.app_common"
    resources = {
        "format_version": 2,
        "client": {"retry_timeout": 30},
        "class_allow_list": ["*"],  # the own app may use all that is in the own image
        "components": [
            _component(
                "app_deployer",
                "coterie.engines.nvflare.site_policy.OwnAppDeployer",
                own_app=str(own_app),
                refused=str(folder / "refused"),
            ),
            _component(
                "resource_manager",
                f"{common}.resource_managers.gpu_resource_manager.GPUResourceManager",
                num_of_gpus=0,
                mem_per_gpu_in_GiB=0,
                ignore_host=True,
            ),
            _component("resource_consumer", f"{common}.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"),
            _component("process_launcher", f"{common}.job_launcher.client_process_launcher.ClientProcessJobLauncher"),
        ],
    }
    _json(folder, "local/resources.json", resources)
    # The own app may bring code; what is no command of a job is nobody's right.
    rights = {"submit_job": "any", "byoc": "any"}
    _json(folder, "local/authorization.json", {"format_version": "1.0", "permissions": {_ROLE: rights}})
    _log(folder)


def _component(name: str, path: str, **args: object) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}


def _log(folder: Path) -> None:
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s - %(levelname)s - %(message)s"}},
        "handlers": {
            "consoleHandler": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stdout"}
        },
        "root": {"level": "INFO", "handlers": ["consoleHandler"]},
    }
    _json(folder, "local/log_config.json", config)


def _bytes(folder: Path, name: str, content: bytes) -> None:
    (folder / "startup").mkdir(parents=True, exist_ok=True)
    (folder / "startup" / name).write_bytes(content)


def _json(folder: Path, name: str, content: dict[str, Any]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
