"""The console in a real Chromium: first paint, ten thousand jobs, scrolling and filtering while they change, memory.

The API server and who changes the jobs are one process, the console is its child process as a node starts it, and the browser takes what
it needs: all of them share the cores. "Prototype" is the goal of each figure. Needs PyPI's playwright and a Chromium (`scripts/get-servers`).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.console_jobs import TOKEN
from benchmarks.measures import Bench
from benchmarks.node import cpu_of, free_port, memory_of
from benchmarks.table import Row
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.console.process import ConsoleProcess
from coterie.console.settings import ConsoleLocation, ConsoleSettings
from coterie.http.plain_client import Pool
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection

_TOOLS = Path(__file__).parents[1] / ".tools" / "servers" / "chromium-headless-shell"
_SUBSCRIBE = {
    "subscribe": 1,
    "resource": "kusciajobs",
    "group": "kuscia.secretflow",
    "version": "v1alpha1",
    "namespace": "cross-domain",
}
_WATCH = r"""
() => {
  const seen = (window.bench = { frames: [], counts: [], listed: 0, asked: 0 });
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) { if (!seen.asked) seen.asked = performance.now(); return send.call(this, data); };
  const look = () => {
    const spacer = document.querySelector(".rows > [role=presentation]");
    if (!seen.listed && Math.round(parseFloat(spacer?.style.height) / 32) === JOBS) requestAnimationFrame(() => { seen.listed ||= performance.now(); });
    const count = /count (\d+)\./.exec(document.querySelector(".rows .row")?.textContent ?? "")?.[1];
    const last = seen.counts[seen.counts.length - 1];
    if (count && count !== last?.[0]) seen.counts.push([count, Date.now()]);
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
}
"""
_SCROLL = """
(seconds) => new Promise((done) => {
  const box = document.querySelector(".rows"), frames = [], until = performance.now() + seconds * 1000;
  let last = 0, step = 48;
  const frame = (now) => {
    if (last) frames.push(now - last);
    last = now;
    if (box.scrollTop + box.clientHeight >= box.scrollHeight) step = -48;
    box.scrollTop += step;
    if (now < until) requestAnimationFrame(frame); else done(frames);
  };
  requestAnimationFrame(frame);
})
"""
_FILTER = """
(text) => new Promise((done) => {
  const input = document.querySelector("input.filter"), all = document.querySelector(".rows, .empty");
  const began = performance.now();
  new MutationObserver((_, observer) => { observer.disconnect(); requestAnimationFrame(() => done(performance.now() - began)); })
    .observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true, attributes: true });
  setTimeout(() => done(-1), 5000);
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, text);
  input.dispatchEvent(new InputEvent("input", { bubbles: true }));
})
"""


@dataclass(frozen=True, slots=True)
class Amounts:
    jobs: int = 10_000
    changes: int = 360_000
    """An hour of a hundred each second, as fast as they go."""
    seconds: float = 10.0
    rounds: int = 5
    tabs: int = 20

    @staticmethod
    def quick() -> Amounts:
        return Amounts(300, 500, 1.0, 1, 3)


class JobServer:
    """`benchmarks/console_jobs.py` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self, **asked: float) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer


class Tab:
    """A page without a browser: one WebSocket that reads all it gets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.bytes = 0

    async def read_until_quiet(self) -> int:
        """Bytes until nothing came for a second."""
        try:
            while data := await asyncio.wait_for(self._reader.read(1 << 18), 1.0):
                self.bytes += len(data)
        except TimeoutError:
            pass
        return self.bytes

    def close(self) -> None:
        self._writer.close()


class Console:
    def __init__(self, settings: ConsoleSettings, process: ConsoleProcess, paths: DomainPaths) -> None:
        self.settings = settings
        self.process = process
        self._paths = paths

    @property
    def rss(self) -> float:
        return memory_of(self.process.pid)[0] if self.process.pid is not None else 0.0

    async def link(self) -> str:
        location = ConsoleLocation.read(self._paths)
        assert location is not None
        pool = Pool(location.control_socket)
        body = json.dumps({"account": "bench", "token": TOKEN}).encode()
        answer = await pool.request("POST", "/codes", {"Host": "console"}, body)
        found: str = json.loads(await answer.read())["url"]
        await pool.close()
        return found

    async def tab(self, cookie: str, extensions: str = "permessage-deflate") -> Tab:
        reader, writer = await asyncio.open_connection(self.settings.address, self.settings.port)
        lines = [
            "GET /live HTTP/1.1", f"Host: {self.settings.hosts[0]}", f"Origin: {self.settings.url}", "Upgrade: websocket",
            "Connection: Upgrade", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13", f"Cookie: {cookie}",
            f"Sec-WebSocket-Extensions: {extensions}", "", "",
        ]  # fmt: skip
        writer.write("\r\n".join(lines).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head, head
        message = json.dumps(_SUBSCRIBE).encode()
        writer.write(b"\x81" + bytes((0x80 | 126,)) + len(message).to_bytes(2, "big") + b"\0\0\0\0" + message)
        return Tab(reader, writer)

    async def cookie(self) -> str:
        """Of a person who logs in without a browser."""
        code = (await self.link()).partition("#login=")[2]
        pool = Pool((self.settings.address, self.settings.port))
        headers = {"Host": self.settings.hosts[0], "Origin": self.settings.url}
        answer = await pool.request("POST", "/login", headers, json.dumps({"code": code}).encode())
        await answer.read()
        found = answer.headers["set-cookie"].partition(";")[0]
        await pool.close()
        return found


@asynccontextmanager
async def _world(folder: Path) -> AsyncIterator[tuple[JobServer, Console]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.console_jobs", str(folder),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()
    settings = ConsoleSettings("alice", "master", "127.0.0.1", free_port(), folder / "kubeconfig")
    client = Client(HttpTransport(ClusterConnection(server="http://127.0.0.1:1")))
    paths = DomainPaths(folder)
    paths.log("console").parent.mkdir(parents=True)
    paths.run.mkdir(parents=True, exist_ok=True)
    held = ConsoleProcess(settings, paths, folder, client, SYSTEM_CLOCK)
    running = asyncio.ensure_future(held.run())
    try:
        await held.ready.wait()
        yield JobServer(process), Console(settings, held, paths)
    finally:
        held.stop()
        await running
        await client.close()
        process.terminate()
        await process.wait()


def chromium() -> tuple[str, dict[str, str]] | None:
    program = _TOOLS / "usr/lib/chromium/chromium-headless-shell"
    if program.is_file():
        libraries = _TOOLS / "usr/lib/x86_64-linux-gnu"
        return str(program), {"LD_LIBRARY_PATH": f"{libraries}:{libraries}/pulseaudio"}
    found = shutil.which("chromium-headless-shell")
    return (found, {}) if found else None


async def _measure(amounts: Amounts, folder: Path, program: str, environment: dict[str, str], driver: Any) -> list[Row]:
    rows: list[Row] = []

    def add(
        what: str,
        values: Sequence[float],
        unit: str,
        goal: float | None = None,
        note: str = "",
        cpu: float | None = None,
    ) -> None:
        least = f"least {min(values):.0f}" if len(values) > 1 else ""
        middle = statistics.median(values)
        print(f"console: {what}: {middle:.1f} {unit} ({note})", file=sys.stderr, flush=True)
        rows.append(Row(f"console: {what}", middle, unit, cpu, goal, True, ", ".join(filter(None, (least, note)))))

    async with _world(folder) as (jobs, console):
        add("processes asleep", [0.0 if console.process.pid is None else 1.0], "", note="none until somebody connects")
        await jobs(create=amounts.jobs)
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
        browser = await driver.chromium.launch(executable_path=program, args=flags, env={**os.environ, **environment})
        context = await browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB")
        await context.add_init_script(f"({_WATCH.replace('JOBS', str(amounts.jobs))})()")
        page = await context.new_page()
        protocol = await context.new_cdp_session(page)
        await protocol.send("Performance.enable", {"timeDomain": "threadTicks"})
        await page.goto(await console.link())
        await page.wait_for_selector(".shell")
        idle = console.rss
        add("server, one tab on the overview, RSS", [idle], "MiB", 45 / 1.048576)

        painted, listed, server_cpu, page_cpu = [], [], [], []
        for _ in range(amounts.rounds):
            assert console.process.pid is not None
            used = cpu_of(console.process.pid)
            await page.goto(f"{console.settings.url}/jobs")
            await page.wait_for_function("() => window.bench.listed")
            paint = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
            painted.append(await page.evaluate(paint))
            asked, seen = await page.evaluate("() => [window.bench.asked, window.bench.listed]")
            listed.append(seen - asked)
            server_cpu.append(cpu_of(console.process.pid) - used)
            page_cpu.append(await _page_cpu(protocol))
        add("first paint", painted, "ms", 300)
        note = f"CPU: server {min(server_cpu) * 1e3:.0f} ms, page {min(page_cpu) * 1e3:.0f} ms with opening it"
        add(f"{amounts.jobs} jobs, from asking to visible", listed, "ms", 300, note, min(server_cpu) * 1e6)
        cookie = await console.cookie()
        for extensions, note in (("permessage-deflate", ""), ("x-none", "without compression")):
            tab = await console.tab(cookie, extensions)
            add(
                f"{amounts.jobs} jobs on the wire",
                [await tab.read_until_quiet() / 1e3],
                "kB",
                None if note else 150,
                note,
            )
            tab.close()

        texts = ("phase:Failed", "party:bob", "0042", "psi-00", "") * amounts.rounds
        drawn = await _page_cpu(protocol)
        filters = [await page.evaluate(_FILTER, text) for text in texts]
        spent = (await _page_cpu(protocol) - drawn) * 1e6 / len(texts)
        add(f"filter {amounts.jobs} jobs", filters, "ms", 50, f"worst {max(filters):.0f}; CPU of the page", spent)

        for rate in (0, 200):
            changing = asyncio.ensure_future(jobs(rate=rate, changes=max(1, int(rate * (amounts.seconds + 1)))))
            drawn = await _page_cpu(protocol)
            frames = await page.evaluate(_SCROLL, amounts.seconds)
            spent = (await _page_cpu(protocol) - drawn) * 1e6 / len(frames)
            await changing
            ordered = sorted(frames)
            note = f"p50 {ordered[len(ordered) // 2]:.1f} ms, {len(frames)} frames in {amounts.seconds:.0f} s"
            add(
                f"scroll, {rate} changes/s, p95 of a frame",
                [ordered[int(len(ordered) * 0.95)]],
                "ms",
                17 if rate else None,
                f"{note}; CPU of the page",
                spent,
            )

        await page.evaluate("() => { document.querySelector('.rows').scrollTop = 0; window.bench.counts = []; }")
        written = (await jobs(rate=100, changes=int(100 * amounts.seconds)))["at"]
        await asyncio.sleep(0.5)
        seen_at = {count: at / 1e3 for count, at in await page.evaluate("() => window.bench.counts")}
        delays = sorted((seen_at[count] - at) * 1e3 for count, at in written.items() if count in seen_at)
        if delays:
            add(
                "a change, from written to seen, 100 changes/s, p50",
                [delays[len(delays) // 2]],
                "ms",
                None,
                f"{len(delays)} of {len(written)} seen, least {delays[0]:.0f}",
            )
            add(
                "a change, from written to seen, 100 changes/s, p95",
                [delays[int(len(delays) * 0.95)]],
                "ms",
                None,
                f"most {delays[-1]:.0f}",
            )

        before, heap = console.rss, await _heap(protocol)
        done = await jobs(rate=0, changes=amounts.changes // 2)
        await asyncio.sleep(2)
        halfway = await _heap(protocol)
        done["seconds"] += (await jobs(rate=0, changes=amounts.changes // 2))["seconds"]
        await asyncio.sleep(2)
        note = f"{amounts.changes:,} changes in {done['seconds']:.0f} s"
        add(
            "heap of a tab after an hour of changes",
            [(await _heap(protocol)) / 2**20],
            "MiB",
            None,
            f"{heap / 2**20:.1f} before, {halfway / 2**20:.1f} halfway; {note}",
        )
        add(
            "server after an hour of changes, RSS",
            [console.rss],
            "MiB",
            45 / 1.048576,
            f"{before:.1f} before; one tab with {amounts.jobs} jobs",
        )
        tabs = [await console.tab(cookie) for _ in range(amounts.tabs - 1)]
        await asyncio.gather(*(tab.read_until_quiet() for tab in tabs))
        add(f"server with {amounts.tabs} tabs of {amounts.jobs} jobs, RSS", [console.rss], "MiB")
        for tab in tabs:
            tab.close()
        await asyncio.sleep(1)
        add("server after these tabs closed, RSS", [console.rss], "MiB")
        await browser.close()
    return rows


async def _heap(protocol: Any) -> float:
    await protocol.send("HeapProfiler.enable")
    await protocol.send("HeapProfiler.collectGarbage")
    found = (await protocol.send("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in found if each["name"] == "JSHeapUsedSize"))


def console(bench: Bench) -> list[Row]:
    try:
        from playwright.async_api import async_playwright  # noqa: PLC0415 - where it is missing, this part is left out
    except ImportError:
        print("console: playwright is not installed", file=sys.stderr)
        return []
    found = chromium()
    if found is None:
        print("console: there is no chromium-headless-shell; scripts/get-servers brings it", file=sys.stderr)
        return []
    amounts = Amounts.quick() if bench.plan.seconds < 1 else Amounts()

    async def run() -> list[Row]:
        with tempfile.TemporaryDirectory(prefix="console-", dir="/tmp") as folder:
            async with async_playwright() as driver:
                return await _measure(amounts, Path(folder), *found, driver)

    return asyncio.run(run())


async def _page_cpu(protocol: Any) -> float:
    """Seconds of CPU time of the page's main thread since it was opened: what stays comparable when the machine is busy."""
    found = (await protocol.send("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))
