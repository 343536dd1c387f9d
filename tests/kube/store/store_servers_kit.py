"""Real servers for the tests of stores: private, on loopback, with their data in a temporary folder."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from coterie.base.store_address import StoreAddress, parse_store_address
from coterie.kube.store.etcd import EtcdStore
from coterie.kube.store.mysql import MysqlStore
from coterie.kube.store.postgresql import PostgresqlStore
from coterie.kube.store.shared import SharedStore
from server_programs_kit import found, free_port, server_environment, server_folder, unpacked, unprivileged

PASSWORD = "pa55:w@rd/ü"
_BOUND = 60.0
SHARED = ("postgresql", "etcd", "mysql")
_names = count(1)


class StoreServer:
    """One server that a test may kill, pause and start again on the same data."""

    def __init__(self, command: list[str], env: dict[str, str], port: int, folder: Path, url: str, ready: str) -> None:
        self.command = command
        self.env = env
        self.port = port
        self.folder = folder
        self.url = url
        self._ready = ready
        self._log = folder / "log"
        self._offset = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def alive(self) -> bool:
        """It did not end by itself."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        self._offset = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self.command, stdout=out, stderr=out, cwd="/", env=self.env, start_new_session=True, **unprivileged()
            )

    def wait_until_ready(self) -> None:
        end = time.monotonic() + _BOUND
        while self._ready not in self._log.read_bytes()[self._offset :].decode(errors="replace"):
            if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                status = None if self._process is None else self._process.poll()
                self.kill()
                raise RuntimeError(
                    f"the server does not get ready (status {status}): {self._log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """To the server and all its processes."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None


@cache
def lasting_server(kind: str) -> StoreServer:
    """One for this process, until it ends."""
    made = server_of(kind)
    atexit.register(made.__exit__, None, None, None)
    return made.__enter__()


@cache
def lasting_cluster() -> EtcdCluster:
    made = etcd_cluster()
    atexit.register(made.__exit__, None, None, None)
    return made.__enter__()


def server_of(kind: str, *, durable: bool = False, disk: Path | None = None) -> AbstractContextManager[StoreServer]:
    if kind == "etcd":
        return etcd_server()
    server = postgresql_server if kind == "postgresql" else mysql_server
    return server(durable=durable, disk=disk)


def fresh_address(kind: str, server: StoreServer) -> StoreAddress:
    """A store of its own in the server."""
    if kind == "etcd":
        return parse_store_address(f"{server.url}/s{next(_names)}")
    if kind == "mysql":
        return parse_store_address(f"{server.url}/s{next(_names)}")
    return parse_store_address(f"{server.url}?sslmode=disable&schema=s{next(_names)}")


def shared_store(address: StoreAddress, **settings: object) -> SharedStore:
    kind = {"etcd": EtcdStore, "mysql": MysqlStore, "postgresql": PostgresqlStore}[address.kind]
    return kind(address, **settings)  # type: ignore[arg-type, no-any-return]


@contextmanager
def postgresql_server(*, durable: bool = False, disk: Path | None = None) -> Iterator[StoreServer]:
    """`durable`: with fsync, for tests that kill it. `disk`: where its data are."""
    place = unpacked("postgresql")
    daemon = found("//usr/lib/postgresql/*/bin/postgres", f"{place}//usr/lib/postgresql/*/bin/postgres")
    if daemon is None:
        pytest.skip("no postgres: run scripts/get-servers on Debian")
    env = server_environment(place, daemon)
    with server_folder("st-", disk=disk) as folder:
        data, port = folder / "data", free_port()
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = f"-D {data} -U alice --pwfile {secret} -A scram-sha-256 -E UTF8 --locale=C --no-sync"
        made = subprocess.run(
            [str(daemon.with_name("initdb")), *options.split()],
            capture_output=True,
            env=env,
            cwd="/",
            **unprivileged(),
        )
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stderr.decode()[-1500:]}")
        settings = [] if durable else ["-c", "fsync=off"]
        server = StoreServer(
            [str(daemon), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(folder), *settings],
            env,
            port,
            folder,
            f"postgresql://alice:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/postgres",
            "ready to accept connections",
        )
        try:
            server.start()
            yield server
        finally:
            server.resume()
            server.kill()


@contextmanager
def mysql_server(*, durable: bool = False, disk: Path | None = None) -> Iterator[StoreServer]:
    """`durable`: with a flush for each commit, for tests that kill it. `disk`: where its data are."""
    place = unpacked("mariadb-server-core")
    daemon = found("//usr/sbin/mariadbd", f"{place}//usr/sbin/mariadbd")
    if daemon is None:
        pytest.skip("no mariadbd: run scripts/get-servers on Debian")
    env = server_environment(place, daemon)
    base = place / "usr" if daemon.is_relative_to(place) else Path("/usr")
    with server_folder("st-", in_memory=not durable, disk=disk) as folder:
        data, port = folder / "data", free_port()
        common = ["--no-defaults", f"--basedir={base}", f"--datadir={data}", f"--lc-messages-dir={base}/share/mysql"]
        common += [f"--tmpdir={folder}", "--innodb-buffer-pool-size=64M"]
        # What mariadb-install-db does, which needs client programs that the server's package does not have.
        subprocess.run(["mkdir", str(data)], check=True, **unprivileged())
        files = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
        script = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n"
        script += "\n".join((base / "share/mysql" / name).read_text() for name in files)
        made = subprocess.run(
            [str(daemon), *common, "--bootstrap"],
            input=script.encode(),
            capture_output=True,
            env=env,
            cwd="/",
            **unprivileged(),
        )
        if made.returncode:
            raise RuntimeError(f"mariadbd --bootstrap: {made.stderr.decode()[-1500:]}")
        start = folder / "start.sql"
        start.write_text(
            f"SET NAMES utf8mb4;\nCREATE USER IF NOT EXISTS alice@'%' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON *.* TO alice@'%';\n"
        )
        start.chmod(0o644)
        server = StoreServer(
            [
                *(str(daemon), *common, f"--socket={folder}/s", f"--pid-file={folder}/pid", f"--port={port}"),
                *("--bind-address=127.0.0.1", f"--init-file={start}", "--skip-name-resolve"),
                *([] if durable else ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"]),
            ],
            env,
            port,
            folder,
            f"mysql://alice:{PASSWORD}@tcp(127.0.0.1:{port})",
            "ready for connections",
        )
        try:
            server.start()
            yield server
        finally:
            server.resume()
            server.kill()


@contextmanager
def etcd_server() -> Iterator[StoreServer]:
    with _etcd_members(1) as (server,):
        try:
            server.start()
            yield server
        finally:
            server.resume()
            server.kill()


class EtcdCluster:
    """Three members; a majority is enough. What happens to it happens to its leader and to another member in turn."""

    def __init__(self, members: Sequence[StoreServer]) -> None:
        self.members = members
        self.url = "etcd://" + ",".join(f"127.0.0.1:{each.port}" for each in members)
        self.port = members[0].port
        self._harmed: list[StoreServer] = []
        self._turns = 0

    def start(self) -> None:
        """All that do not run."""
        stopped = [each for each in self.members if not each.running]
        for each in stopped:
            each.launch()
        for each in stopped:
            each.wait_until_ready()
        self._harmed.clear()

    def leader(self) -> StoreServer:
        end = time.monotonic() + _BOUND
        while time.monotonic() < end:
            for each in self.members:
                answer = _etcd_status(each.port) if each.running and each not in self._harmed else {}
                if answer and answer.get("leader") == answer["header"]["member_id"]:
                    return each
            time.sleep(0.05)
        raise RuntimeError("no member leads")

    def _victim(self) -> StoreServer:
        self._turns += 1
        leader = self.leader()
        if self._turns % 2:
            return leader
        return next(each for each in self.members if each is not leader and each not in self._harmed)

    def kill(self) -> None:
        self._victim().kill()

    def pause(self) -> None:
        self._harmed.append(self._victim())
        self._harmed[-1].pause()

    def resume(self) -> None:
        for each in self.members:
            each.resume()
        self._harmed.clear()


def etcd_call(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A call that stores do not make. Raises OSError and ValueError."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v3/{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=2) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _etcd_status(port: int) -> dict[str, Any]:
    try:
        return etcd_call(port, "maintenance/status", {})
    except (OSError, ValueError):
        return {}


@contextmanager
def etcd_cluster() -> Iterator[EtcdCluster]:
    with _etcd_members(3) as members:
        cluster = EtcdCluster(members)
        try:
            cluster.start()
            yield cluster
        finally:
            for each in members:
                each.resume()
                each.kill()


@contextmanager
def _etcd_members(count: int) -> Iterator[list[StoreServer]]:
    """Not started."""
    place = unpacked("etcd-server")
    daemon = found("//usr/bin/etcd", "//usr/local/bin/etcd", f"{place}//usr/bin/etcd")
    if daemon is None:
        pytest.skip("no etcd: run scripts/get-servers on Debian")
    with ExitStack() as stack:
        ports = [(free_port(), free_port()) for _ in range(count)]
        everybody = ",".join(f"m{n}=http://127.0.0.1:{peers}" for n, (_, peers) in enumerate(ports))
        made = []
        for n, (port, peers) in enumerate(ports):
            folder = stack.enter_context(server_folder("st-"))
            url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
            options = (
                f"--name m{n} --data-dir {folder}/data --listen-client-urls {url} --advertise-client-urls {url} --listen-peer-urls {peer}"
                f" --initial-advertise-peer-urls {peer} --initial-cluster {everybody} --log-outputs stderr"
            )
            made.append(
                StoreServer(
                    [str(daemon), *options.split()],
                    server_environment(place, daemon),
                    port,
                    folder,
                    f"etcd://127.0.0.1:{port}",
                    "ready to serve client requests",
                )
            )
        yield made
