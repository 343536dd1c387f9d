"""A HiveServer2 of its own (`scripts/get-hive`), on loopback, with TLS, its metastore and tables in a temporary folder."""

from __future__ import annotations

import datetime as dt
import ipaddress
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import servers_kit
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

LIBRARIES = Path(__file__).parents[3] / ".tools" / "hive" / "4.0.1" / "libs"
_OPENED = "java.lang java.util java.net java.nio java.lang.reflect java.util.concurrent java.util.concurrent.atomic java.io sun.nio.ch java.util.regex java.time java.text"
_WORD = "changeit"


def certificate() -> tuple[bytes, bytes, bytes]:
    """A self-signed one for 127.0.0.1: PEM, its key as PEM, and both as PKCS 12."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hive")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    sealed = pkcs12.serialize_key_and_certificates(
        b"hive", key, made, None, serialization.BestAvailableEncryption(_WORD.encode())
    )
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), plain, sealed


@dataclass
class HiveServer:
    port: int
    ca: str
    folder: Path
    process: subprocess.Popen[bytes]


@contextmanager
def hive_server(folder: Path) -> Iterator[HiveServer]:
    pem, _, sealed = certificate()
    (folder / "key.p12").write_bytes(sealed)
    port, log = servers_kit.free_port(), folder / "hive.log"
    settings: dict[str, Any] = {
        "hive.server2.thrift.port": port,
        "hive.server2.thrift.bind.host": "127.0.0.1",
        "hive.server2.webui.port": 0,
        "hive.server2.use.SSL": "true",
        "hive.server2.keystore.path": folder / "key.p12",
        "hive.server2.keystore.password": _WORD,
        "hive.server2.keystore.type": "PKCS12",
        "hive.server2.enable.doAs": "false",
        "hive.server2.logging.operation.enabled": "false",
        "hive.server2.tez.initialize.default.sessions": "false",
        "hive.notification.event.poll.interval": -1,
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": folder / "warehouse",
        "metastore.warehouse.external.dir": folder / "external",
        "hive.exec.scratchdir": folder / "scratch",
        "hive.exec.local.scratchdir": folder / "local",
        "hive.fetch.task.conversion": "more",
        "hive.fetch.task.conversion.threshold": -1,
        "fs.defaultFS": "file:///",
    }
    command = ["java", "-Xmx700m", f"-Djava.io.tmpdir={folder}", f"-Dderby.stream.error.file={folder}/derby.log"]
    command += [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED.split()]
    command += ["--add-opens=java.sql/java.sql=ALL-UNNAMED", "-cp", f"{LIBRARIES}/*"]
    command += ["org.apache.hive.service.server.HiveServer2"]
    for name, value in settings.items():
        command += ["--hiveconf", f"{name}={value}"]
    with log.open("wb") as told:
        process = subprocess.Popen(command, cwd=folder, stdout=told, stderr=told)
    try:
        servers_kit.wait_until_listening(process, port, log)
        yield HiveServer(port, pem.decode(), folder, process)
    finally:
        process.kill()
        process.wait()
