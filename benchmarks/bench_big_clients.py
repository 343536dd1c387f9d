"""What clients with much to read, and little haste, do to the memory of the API server.

    python -m benchmarks.bench_big_clients [objects] [clients]

A master holds many ConfigMaps. Then many clients at once ask for all of them and read nothing for a while: by a list, by
a watch list, by a watch that resumes from a revision that only the store remembers; others send large bodies. After each, the
peak of the server's resident memory above what it held before.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import orjson

from benchmarks.node import Cores, Node
from benchmarks.objects import configmap

PATH = "/api/v1/namespaces/default/configmaps"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_WAIT = 4.0
"""Seconds in which clients read nothing."""
_MAKERS = 32


class SlowClients:
    def __init__(self, node: Node, count: int) -> None:
        self._node = node
        self._count = count
        self._url = f"https://127.0.0.1:{node.port}{PATH}"
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=node.identity.tls(), limit=0), read_bufsize=1024, auto_decompress=False
        )

    async def fill(self, objects: int, size: int = 2000) -> None:
        names = iter(range(objects))

        async def make() -> None:
            for number in names:
                body = orjson.dumps(configmap(f"c{number:06}", x="x" * size))
                async with self.session.post(
                    self._url, data=body, headers={"content-type": "application/json"}
                ) as done:
                    done.raise_for_status()

        await asyncio.gather(*(make() for _ in range(_MAKERS)))

    async def revision(self) -> str:
        async with self.session.get(self._url, params={"limit": "1"}) as answer:
            return str((await answer.json())["metadata"]["resourceVersion"])

    async def ask(self, query: str, accept: str = "application/json") -> None:
        """Ask, leave the answer unread, leave."""
        answers = await asyncio.gather(
            *(
                self.session.get(f"{self._url}?{query}", headers={"accept": accept}, timeout=aiohttp.ClientTimeout(120))
                for _ in range(self._count)
            )
        )
        await asyncio.sleep(_WAIT)
        for answer in answers:
            answer.close()

    async def send(self, size: int = 2_900_000) -> None:
        """Bodies that are refused once they have been read: not valid JSON."""

        async def one() -> None:
            async with self.session.post(self._url, data=b"[" * size, headers={"content-type": "application/json"}):
                pass

        await asyncio.gather(*(one() for _ in range(self._count)))


async def measure(node: Node, what: str, work: Callable[[], Awaitable[None]]) -> None:
    peak = before = node.process.memory()[0]
    task = asyncio.ensure_future(work())
    while not task.done():
        await asyncio.sleep(0.05)
        peak = max(peak, node.process.memory()[0])
    await task
    await asyncio.sleep(1.0)
    print(f"{what:50} {before:7.1f} -> {peak:7.1f} MiB, then {node.process.memory()[0]:7.1f}", flush=True)


async def main(objects: int, clients: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        node = Node(root / "node", Cores.pick().server, root / "bytecode")
        with node:
            slow = SlowClients(node, clients)
            try:
                start = await slow.revision()
                await measure(node, f"{objects} objects of 2 kB are created", lambda: slow.fill(objects))
                for what, query, accept in (
                    ("lists", "", "application/json"),
                    ("lists in protobuf", "", PROTOBUF),
                    ("lists of metadata", "", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
                    ("lists as tables", "", "application/json;as=Table;g=meta.k8s.io;v=v1"),
                    (
                        "watch lists",
                        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
                        "application/json",
                    ),
                    ("watches that resume far behind", f"watch=true&resourceVersion={start}", "application/json"),
                    (
                        "lists of a past revision",
                        f"resourceVersion={start}&resourceVersionMatch=Exact",
                        "application/json",
                    ),
                ):
                    await measure(node, f"{clients} slow {what}", lambda q=query, a=accept: slow.ask(q, a))  # type: ignore[misc]
                await measure(node, f"{clients} bodies of 2.9 MB", slow.send)
            finally:
                await slow.session.close()


if __name__ == "__main__":
    asyncio.run(main(*(int(argument) for argument in sys.argv[1:])) if len(sys.argv) > 2 else main(10_000, 20))
