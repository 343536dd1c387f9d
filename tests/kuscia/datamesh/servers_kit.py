"""Real servers for the tests of data sources: private, on loopback, with their data in a temporary folder.

Root may not run the databases, so they run as `nobody` then. Each is made once per test session and ended with it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from coterie.base.secret import SecretValue
from coterie.kuscia.sources.protocol import SourceInfo
from server_programs_kit import TOOLS, found, free_port, server_environment, server_folder, unpacked, unprivileged

PASSWORD = "pa55'w\"ord"
_BOUND = 60.0


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    info: SourceInfo
    log: Path = field(default=Path("/dev/null"))


def wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _BOUND
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the server does not listen: {log.read_text(errors='replace')[-2000:]}")


def _wait_for_line(server: Server, text: str) -> None:
    """A database listens before it lets anybody in."""
    end = time.monotonic() + _BOUND
    while text not in server.log.read_text(errors="replace"):
        if time.monotonic() > end:
            raise RuntimeError(f"the server does not get ready: {server.log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


@contextmanager
def _running(
    command: list[str], port: int, folder: Path, info: SourceInfo, env: dict[str, str], as_nobody: bool = True
) -> Iterator[Server]:
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, cwd="/", env=env, **(unprivileged() if as_nobody else {})
        )
    try:
        wait_until_listening(process, port, log)
        yield Server(process, port, info, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def mariadb() -> Iterator[Server]:
    place = unpacked("mariadb-server-core")
    daemon = found("//usr/sbin/mariadbd", f"{place}//usr/sbin/mariadbd")
    if daemon is None:
        pytest.skip("no mariadbd: run scripts/get-servers on Debian")
    base = place / "usr" if daemon.is_relative_to(place) else Path("/usr")
    env = server_environment(place, daemon)
    with server_folder("ds-") as folder:
        data, port = folder / "data", free_port()
        common = ["--no-defaults", f"--basedir={base}", f"--datadir={data}"]
        # What mariadb-install-db does, which needs client programs that the server's package does not have.
        subprocess.run(["mkdir", str(data)], check=True, **unprivileged())
        files = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
        script = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n"
        script += "\n".join((base / "share/mysql" / name).read_text() for name in files)
        messages = f"--lc-messages-dir={base}/share/mysql"
        made = subprocess.run(
            [str(daemon), *common, "--bootstrap", "--innodb-buffer-pool-size=32M", messages, f"--tmpdir={folder}"],
            input=script.encode(),
            capture_output=True,
            env=env,
            cwd="/",
            **unprivileged(),
        )
        if made.returncode:
            raise RuntimeError(f"mariadbd --bootstrap: {made.stderr.decode()[-1500:]}")
        start = folder / "start.sql"
        quoted = PASSWORD.replace("'", "''")
        start.write_text(
            f"CREATE DATABASE mesh CHARACTER SET utf8mb4;\nCREATE USER alice@'%' IDENTIFIED BY '{quoted}';\n"
            "GRANT ALL ON mesh.* TO alice@'%';\n"
        )
        start.chmod(0o644)
        command = [
            str(daemon),
            *common,
            f"--socket={folder}/s",
            f"--pid-file={folder}/pid",
            f"--tmpdir={folder}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--init-file={start}",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0",
            "--skip-name-resolve",
            messages,
        ]
        info = SourceInfo(
            kind="mysql", endpoint=f"127.0.0.1:{port}", user="alice", password=SecretValue(PASSWORD), database="mesh"
        )
        with _running(command, port, folder, info, env) as server:
            _wait_for_line(server, "ready for connections")
            yield server


@contextmanager
def postgresql() -> Iterator[Server]:
    place = unpacked("postgresql")
    daemon = found("//usr/lib/postgresql/*/bin/postgres", f"{place}//usr/lib/postgresql/*/bin/postgres")
    if daemon is None:
        pytest.skip("no postgres: run scripts/get-servers on Debian")
    env = server_environment(place, daemon)
    with server_folder("ds-") as folder:
        data, port = folder / "data", free_port()
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        made = subprocess.run(
            [
                str(daemon.with_name("initdb")),
                "-D",
                str(data),
                "-U",
                "alice",
                "--pwfile",
                str(secret),
                "-A",
                "scram-sha-256",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ],
            capture_output=True,
            env=env,
            cwd="/",
            **unprivileged(),
        )
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stderr.decode()[-1500:]}")
        command = [
            str(daemon),
            "-D",
            str(data),
            "-p",
            str(port),
            "-h",
            "127.0.0.1",
            "-k",
            str(folder),
            "-c",
            "fsync=off",
        ]
        info = SourceInfo(
            kind="postgresql",
            endpoint=f"127.0.0.1:{port}?sslmode=disable",
            user="alice",
            password=SecretValue(PASSWORD),
            database="postgres",
        )
        with _running(command, port, folder, info, env) as server:
            _wait_for_line(server, "ready to accept connections")
            yield server


@contextmanager
def s3_server() -> Iterator[Server]:
    """Moto's: speaks S3 and checks signatures (after the first requests, with which `s3_keys` makes itself a user)."""
    program = TOOLS / "s3" / "bin" / "moto_server"
    if not program.exists():
        pytest.skip("no S3 server: run scripts/get-servers")
    with server_folder("ds-") as folder:
        port = free_port()
        env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "3", "S3_UPLOAD_PART_MIN_SIZE": "1024"}
        command = [str(program), "-H", "127.0.0.1", "-p", str(port)]
        info = SourceInfo(kind="oss", endpoint=f"http://127.0.0.1:{port}", bucket="mesh", prefix="top/tables")
        with _running(command, port, folder, info, env, as_nobody=False) as server:
            yield server


async def s3_keys(server: Server) -> tuple[str, str]:
    """A user of the server who may do all with S3, as (id, secret)."""
    policy = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}'
    scope = "Credential=AKIAUNKNOWN/20240101/us-east-1/iam/aws4_request"
    headers = {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=x"}
    texts = []
    async with aiohttp.ClientSession() as session:
        for form in (
            {"Action": "CreateUser", "UserName": "mesh"},
            {"Action": "PutUserPolicy", "UserName": "mesh", "PolicyName": "all", "PolicyDocument": policy},
            {"Action": "CreateAccessKey", "UserName": "mesh"},
        ):
            url = f"http://127.0.0.1:{server.port}/"
            async with session.post(url, data={**form, "Version": "2010-05-08"}, headers=headers) as response:
                texts.append(await response.text())
                assert response.status == 200, texts[-1]
    answer = texts[-1]
    return tuple(answer.split(f"<{tag}>")[1].split("<")[0] for tag in ("AccessKeyId", "SecretAccessKey"))  # type: ignore[return-value]
