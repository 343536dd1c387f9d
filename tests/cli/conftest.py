"""A real API server in a thread of its own, and a way to run commands in-process and see what they print."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.base.secret import SecretValue
from coterie.cli.app import App
from coterie.cli.main import main
from coterie.http.messages import UserInfo
from coterie.http.server import HttpServer
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client import kubeconfig
from coterie.kube.client.fake import FakeTransport
from coterie.kube.store import MemoryStore
from coterie.kuscia.extensions.apiserver import KUSCIA

TOKEN = "a-token-for-tests"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Runner:
    """`cli("get", "pods")` is what `coterie get pods` would do."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environ = {"HOME": str(folder), **(environ or {})}
        self.transport: FakeTransport | None = None

    def __call__(self, *words: str, stdin: str = "") -> Result:
        out, err = io.StringIO(), io.StringIO()
        transport = self.transport
        app = App(
            out,
            err,
            self.environ,
            io.StringIO(stdin),
            self.folder,
            connect=(lambda _: transport) if transport is not None else None,
        )
        code = main(list(words), app)
        return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def cli(tmp_path: Path) -> Runner:
    """Commands in an empty directory that is also the user's home."""
    return Runner(tmp_path)


@pytest.fixture
def fake(cli: Runner) -> Callable[[FakeTransport], Runner]:
    """Commands that talk to a function instead of a server."""

    def use(transport: FakeTransport) -> Runner:
        file = cli.folder / "fake-kubeconfig"
        kubeconfig.make("fake", "https://fake.test:6443").write(file)
        cli.environ["KUBECONFIG"] = str(file)
        cli.transport = transport
        return cli

    return use


class _ServerThread:
    def __init__(self) -> None:
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    async def _serve(self) -> None:
        user = UserInfo("tester", ("system:masters",))
        store = MemoryStore()
        await store.open()
        server = ApiServer(store, Settings(extensions=[KUSCIA], static_tokens=[(SecretValue(TOKEN), user)]))
        await server.start()
        http = HttpServer(server.handle)
        _, self.port = await http.listen("127.0.0.1", 0)
        self._started.set()
        await self._stop.wait()
        await http.stop()
        await server.stop()
        await store.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            self._started.set()  # also when it failed: nobody should wait for it

    def __enter__(self) -> _ServerThread:
        self._thread.start()
        assert self._started.wait(30)
        assert self.port, "the API server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)


@pytest.fixture(scope="module")
def server() -> Iterator[_ServerThread]:
    with _ServerThread() as running:
        yield running


@pytest.fixture
def live(cli: Runner, server: _ServerThread) -> Runner:
    """Commands that talk to the real server over HTTP, in a namespace of the test's own."""
    namespace = f"t-{abs(hash(str(cli.folder))) % 10**8}"
    file = cli.folder / "live-kubeconfig"
    kubeconfig.make("live", f"http://127.0.0.1:{server.port}", token=TOKEN, namespace=namespace).write(file)
    cli.environ["KUBECONFIG"] = str(file)
    made = cli("apply", "-f", "-", stdin=f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}")
    assert made.code == 0, made.err
    return cli
