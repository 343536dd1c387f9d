"""Back-ends that die, stop, drop answers, or come back as somebody else: no acknowledged write is lost, nothing unknown is
told as a refusal, and stores work again by themselves.

What takes long runs with `make stores` only."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import asyncpg
import pytest
from store_servers_kit import (
    SHARED,
    EtcdCluster,
    StoreServer,
    etcd_call,
    etcd_cluster,
    etcd_server,
    fresh_address,
    server_of,
    shared_store,
)

from coterie.base.store_address import StoreAddress, parse_store_address
from coterie.kube.store import PutOp, StoreError, StoreEvent, StoreUnavailable, Unsettled
from coterie.kube.store.shared import SharedStore
from root_kit import require_root

LONG = pytest.mark.skipif(not os.environ.get("COTERIE_STORES"), reason="takes long: make stores")
_BOUND = 60.0
_ANSWERED = 1.0
"""A server has carried out what it was sent."""


@pytest.fixture(params=SHARED)
def server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """One of its own, which writes to the disk as in earnest."""
    with ExitStack() as stack:
        yield stack.enter_context(server_of(request.param, durable=True))


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    with etcd_cluster() as made:
        yield made


def address_of(server: StoreServer | EtcdCluster, port: int = 0) -> StoreAddress:
    kind = server.url.partition(":")[0]
    url = server.url.replace(f":{server.port}", f":{port}") if port else server.url
    return parse_store_address(f"{url}?sslmode=disable" if kind == "postgresql" else f"{url}/faults")


async def opened(address: StoreAddress) -> SharedStore:
    store = shared_store(address)
    await store.open()
    return store


async def works_again(store: SharedStore) -> None:
    async with asyncio.timeout(_BOUND):
        while True:
            with suppress(StoreError):
                await store.commit([PutOp("again", b"")])
                return
            await asyncio.sleep(0.1)


class Writers:
    """Each writes keys of its own, one after the other, and remembers what was acknowledged."""

    def __init__(self, turn: int) -> None:
        self.prefix = f"/{turn}/"
        self.acknowledged: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.refused: set[str] = set()
        self.stopping = False

    async def run(self, store: SharedStore, name: str) -> None:
        number = 0
        while not self.stopping:
            number += 1
            key = f"{self.prefix}{name}/{number}"
            try:
                (self.acknowledged[key],) = await store.commit([PutOp(key, b"v" * 500, 0)])
            except Unsettled:
                self.unknown.add(key)
            except StoreUnavailable:
                self.refused.add(key)
                await asyncio.sleep(0.02)

    async def enough(self, count: int) -> None:
        async with asyncio.timeout(_BOUND):
            while len(self.acknowledged) < count:
                await asyncio.sleep(0.01)

    async def check(self, stores: list[SharedStore], events: list[list[StoreEvent]]) -> None:
        for store, story in zip(stores, events, strict=True):
            await works_again(store)
            found = {record.key: record.revision for record in (await store.scan(self.prefix)).records}
            assert {key: found.get(key) for key in self.acknowledged} == self.acknowledged
            assert not self.refused & found.keys()
            assert found.keys() <= self.acknowledged.keys() | self.unknown
            await store.reached(await store.current())
            revisions = [event.revision for event in story]
            assert revisions == sorted(set(revisions))
            assert {event.key: event.revision for event in story if event.key.startswith(self.prefix)} == found


async def under_writers(
    server: StoreServer | EtcdCluster,
    harm: Callable[[], object],
    mend: Callable[[], object],
    pause: float,
    turn: int = 0,
) -> None:
    address = address_of(server)
    stores = [await opened(address), await opened(address)]
    stories: list[list[StoreEvent]] = [[], []]
    for store, story in zip(stores, stories, strict=True):
        store.subscribe(story.extend)
    writers = Writers(turn)
    tasks = [
        asyncio.create_task(writers.run(store, f"{which}-{n}")) for which, store in enumerate(stores) for n in range(8)
    ]
    try:
        await writers.enough(200)
        await asyncio.to_thread(harm)
        await asyncio.sleep(pause)
        before = len(writers.acknowledged)
        await asyncio.to_thread(mend)
        await writers.enough(before + 50)
        writers.stopping = True
        await asyncio.gather(*tasks)
        await writers.check(stores, stories)
    finally:
        writers.stopping = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in stores:
            await store.close()


async def test_kill_minus_nine_loses_nothing_acknowledged(server: StoreServer) -> None:
    await under_writers(server, server.kill, server.start, 0.3)


@LONG
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seconds", [3, 12, 40])
async def test_a_pause_loses_nothing_acknowledged(server: StoreServer, seconds: int) -> None:
    await under_writers(server, server.pause, server.resume, seconds)


@LONG
@pytest.mark.timeout(300)
async def test_many_kills(server: StoreServer) -> None:
    for turn in range(5):
        await under_writers(server, server.kill, server.start, 0.2, turn)


@LONG
@pytest.mark.timeout(300)
async def test_three_members_of_etcd_lose_one_after_the_other(cluster: EtcdCluster) -> None:
    """The leader and another one in turn, killed and paused: a majority stays, and all API servers find it."""
    for turn in range(3):
        await under_writers(cluster, cluster.kill, cluster.start, 4, 2 * turn)
        await under_writers(cluster, cluster.pause, cluster.resume, 8, 2 * turn + 1)


@LONG
@pytest.mark.timeout(180)
async def test_a_lost_majority_of_etcd_is_told_and_comes_back(cluster: EtcdCluster) -> None:
    def most() -> None:
        for each in cluster.members[:2]:
            each.kill()

    await under_writers(cluster, most, cluster.start, 8)


async def test_a_back_end_that_is_away_is_named_at_once(server: StoreServer) -> None:
    store = await opened(address_of(server))
    try:
        await store.commit([PutOp("a", b"1")])
        server.kill()
        async with asyncio.timeout(_BOUND):
            while not store.away:
                await asyncio.sleep(0.01)
        for ask in (store.commit([PutOp("a", b"2")]), store.get("a"), store.current(), store.grant(5)):
            with pytest.raises(StoreUnavailable, match=r"did not answer|cannot be reached|closed"):
                await ask
        server.start()
        await works_again(store)
        record = await store.get("a")
        assert record is not None
        assert record.value == b"1"
        assert store.away == ""
    finally:
        await store.close()


async def test_an_older_backup_that_others_wrote_to_since_is_noticed(postgresql: StoreServer) -> None:
    """Its newest revision is not lower than what was heard before."""
    address = fresh_address("postgresql", postgresql)
    store = await opened(address)
    resets: list[dict[str, bytes]] = []
    store.subscribe(lambda events: None, lambda records, at: resets.append({each.key: each.value for each in records}))
    admin = await asyncpg.connect(address.dsn.reveal(), password=address.password.reveal())
    try:
        for number in range(3):
            await store.commit([PutOp("a", b"%d" % number)])
        async with admin.transaction():
            await admin.execute(f"UPDATE {address.schema}.log SET value = 'other' WHERE revision = 3")
            # Whoever restores a database ends its sessions.
            await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        await works_again(store)
        assert resets == [{"a": b"other"}]
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        await works_again(store)
        assert len(resets) == 1, "nothing happened this time"
    finally:
        await admin.close()
        await store.close()


async def test_a_full_etcd_says_what_to_do_and_works_again() -> None:
    with etcd_server() as server:
        server.kill()
        server.command.append("--quota-backend-bytes=2000000")
        server.start()
        store = await opened(address_of(server))
        try:
            written: list[str] = []
            with pytest.raises(StoreError, match=r"is full .* `etcdctl alarm disarm`") as refused:
                for number in range(100):
                    await store.commit([PutOp("k", b"x" * 100_000)])
                    written.append(f"k{number}")
            assert not isinstance(refused.value, (Unsettled, StoreUnavailable)), "it was certainly not written"
            assert written
            assert await store.get("k") is not None, "reads go on"
            status = await asyncio.to_thread(etcd_call, server.port, "maintenance/status", {})
            alarm = {"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": status["header"]["member_id"]}
            for path, body in (
                ("kv/compaction", {"revision": str(await store.current()), "physical": True}),
                ("maintenance/defragment", {}),
                ("maintenance/alarm", alarm),
            ):
                await asyncio.to_thread(etcd_call, server.port, path, body)
            await works_again(store)
        finally:
            await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    require_root("a disk of its own, which gets full")
    place = Path(tempfile.mkdtemp(prefix="disk-", dir="/var/tmp"))
    place.chmod(0o755)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320m,mode=0755", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
async def test_a_full_disk_loses_nothing_that_was_acknowledged_and_works_again(kind: str, small_disk: Path) -> None:
    with server_of(kind, durable=True, disk=small_disk) as server:
        store = await opened(address_of(server))
        ballast = small_disk / "ballast"
        acknowledged: dict[str, int] = {}
        refusals: list[StoreError] = []
        try:
            fill(ballast, small_disk, leave=6 << 20)
            async with asyncio.timeout(_BOUND):
                while len(refusals) < 3:
                    key = f"/full/{len(acknowledged)}"
                    try:
                        (acknowledged[key],) = await store.commit([PutOp(key, os.urandom(100_000))])
                    except StoreError as refused:
                        refusals.append(refused)
                        fill(ballast, small_disk)
            assert acknowledged
            ballast.unlink()
            if not server.alive:  # a MariaDB without room for its redo log ends itself; whoever runs it starts it again
                server.kill()
                server.start()
            else:
                assert "No space left on device" in str(refusals[0]), "the sentence says why"
            await works_again(store)
            found = {record.key: record.revision for record in (await store.scan("/full/")).records}
            assert {key: found.get(key) for key in acknowledged} == acknowledged
        finally:
            await store.close()


def fill(ballast: Path, disk: Path, *, leave: int = 0) -> None:
    with ballast.open("ab", buffering=0) as out, suppress(OSError):
        while (free := shutil.disk_usage(disk).free - leave) > 0:
            out.write(bytes(min(1 << 20, free)))


async def test_a_back_end_that_is_not_there_can_be_opened_later(server: StoreServer) -> None:
    server.kill()
    store = shared_store(address_of(server))
    with pytest.raises(StoreUnavailable):
        await store.open()
    server.start()
    async with asyncio.timeout(_BOUND):
        while True:
            with suppress(StoreUnavailable):
                await store.open()
                break
            await asyncio.sleep(0.1)
    await store.commit([PutOp("a", b"")])
    await store.close()


class Relay:
    """Passes bytes between a store and its server, until it sees `marker` in what is sent: then the answer is lost."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.marker = b""
        self.lost = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, server_writer]
        doomed = asyncio.Event()

        async def ask() -> None:
            while data := await reader.read(65536):
                if self.marker and self.marker in data:
                    self.lost += 1
                    self.marker = b""
                    doomed.set()
                server_writer.write(data)
                await server_writer.drain()

        async def answer() -> None:
            while data := await server_reader.read(65536):
                if doomed.is_set():
                    # To the end: MySQL answers each statement of a packet, and commits with the last.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_ANSWERED):
                            while await server_reader.read(65536):
                                pass
                    return
                writer.write(data)
                await writer.drain()

        halves = [asyncio.create_task(ask()), asyncio.create_task(answer())]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            writer.close()
            server_writer.close()


async def test_a_lost_answer_is_told_as_unknown(request: pytest.FixtureRequest) -> None:
    for kind in SHARED:
        server: StoreServer = request.getfixturevalue(kind)
        direct = fresh_address(kind, server)
        relay = Relay(server.port)
        port = await relay.start()
        relayed = parse_store_address(_through(kind, server, direct, port))
        store, other = await opened(relayed), await opened(direct)
        try:
            await store.commit([PutOp("before", b"1", 0)])
            # Keys are written in hexadecimal digits in statements of MySQL.
            relay.marker = b"lost-answer" if kind != "mysql" else b"lost-answer".hex().encode()
            with pytest.raises(Unsettled):
                await store.commit([PutOp("lost-answer", b"1", 0)])
            assert relay.lost == 1
            record = await other.get("lost-answer")  # it took place, this time
            assert record is not None
            await works_again(store)
            assert await store.get("lost-answer") == record
        finally:
            await store.close()
            await other.close()
            await relay.stop()


def _through(kind: str, server: StoreServer, direct: StoreAddress, port: int) -> str:
    url = server.url.replace(f":{server.port}", f":{port}")
    if kind == "mysql":
        return f"{url}/{direct.database}"
    return f"{url}{direct.prefix}" if kind == "etcd" else f"{url}?sslmode=disable&schema={direct.schema}"
