"""Real Prometheus programs for tests: promtool, a Prometheus on loopback, node_exporter. `scripts/get-servers` gets them.

check_page(page)                                    # promtool check metrics, complaints about style by an exact list
async with running_prometheus(tmp_path, ["127.0.0.1:9091"]) as prometheus:
    await prometheus.wait_for_scrape()
    rows = await prometheus.query("node_load1")     # [({"__name__": "node_load1", ...}, 0.25)]
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.kuscia.gateway.metrics.envoy_families import FAMILIES

_SERVERS = Path(__file__).parents[2] / ".tools" / "servers"
PROMETHEUS = _SERVERS / "prometheus/usr/bin/prometheus"
PROMTOOL = _SERVERS / "prometheus/usr/bin/promtool"
NODE_EXPORTER = _SERVERS / "prometheus-node-exporter/usr/bin/prometheus-node-exporter"
_BOUND = 60.0
_BROKEN, _STYLE = 1, 3
"""Exit codes of `promtool check metrics`."""

needs_prometheus = pytest.mark.skipif(
    not (PROMETHEUS.exists() and PROMTOOL.exists()), reason="no Prometheus here: run scripts/get-servers"
)
needs_node_exporter = pytest.mark.skipif(
    not NODE_EXPORTER.exists(), reason="no node_exporter here: run scripts/get-servers"
)

NO_TOTAL = 'counter metrics should have "_total" suffix'
CAMEL_CASE = "metric names should be written in 'snake_case' not 'camelCase'"
BITS = 'use base unit "bytes" instead of "bits"'
TOTAL_ON_GAUGE = 'non-counter metrics should not have "_total" suffix'
COUNT_ON_COUNTER = 'non-histogram and non-summary metrics should not have "_count" suffix'
ALLOWED: Mapping[str, frozenset[str]] = {
    # Kuscia's and Envoy's names are promised as they are.
    "ss_retrans": frozenset([NO_TOTAL]),
    "ss_total_connections": frozenset([NO_TOTAL]),
    "envoy_cluster_membership_total": frozenset([TOTAL_ON_GAUGE]),
    **{
        name: frozenset([NO_TOTAL])
        for name, each in FAMILIES.items()
        if each.kind == "counter" and not name.endswith("_total")
    },
    "kuscia_job_requeue_count": frozenset([NO_TOTAL, COUNT_ON_COUNTER]),
    "kuscia_task_requeue_count": frozenset([NO_TOTAL, COUNT_ON_COUNTER]),
    "kuscia_job_result_stats": frozenset([NO_TOTAL]),
    "kuscia_task_result_stats": frozenset([NO_TOTAL]),
    # Bandwidth is promised in bits.
    **dict.fromkeys(("node_bandwidth_total_bits", "node_bandwidth_available_bits"), frozenset([BITS])),
    "coterie_node_bandwidth_used_bits": frozenset([BITS]),
    **{f"coterie_link_{what}_bits": frozenset([BITS]) for what in ("capacity", "reserved", "used")},
    **{f"coterie_task_bandwidth_{what}_bits": frozenset([BITS]) for what in ("limit", "reserved", "used")},
}
"""Complaints about style that a page may cause, by metric: those of promised names. All others fail `check_page`."""
ALLOWED_PATTERNS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"node_memory_\w+_bytes|node_netstat_Tcp_\w+"), CAMEL_CASE),
    (re.compile(r"(coterie|node)_\w+_bits"), BITS),
)
"""The same for families of names that other programs have chosen."""


def complaints(page: str) -> list[tuple[str, str]]:
    """(metric, complaint) of `promtool check metrics`. Fails when the page cannot be read at all."""
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, text=True, timeout=_BOUND)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode not in (0, _STYLE):
        raise AssertionError(f"promtool refuses the page ({done.returncode}): " + "\n".join(lines))
    found = []
    for line in lines:
        metric, _, words = line.partition(" ")
        found.append((metric, words))
    return found


def check_page(page: str, allowed: Mapping[str, Iterable[str]] = ALLOWED) -> None:
    """The page is valid, and promtool complains about nothing but promised names."""
    unexpected = [
        f"{metric}: {words}"
        for metric, words in complaints(page)
        if words not in allowed.get(metric, ())
        and not any(words == what and which.fullmatch(metric) for which, what in ALLOWED_PATTERNS)
    ]
    assert not unexpected, "promtool complains:\n" + "\n".join(unexpected)


def check_rules(text: str, directory: Path) -> None:
    """Rules (or any expressions written as rules) are valid."""
    file = directory / "rules.yml"
    file.write_text(text)
    done = subprocess.run([PROMTOOL, "check", "rules", file], capture_output=True, text=True, timeout=_BOUND)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class ScrapedFamily:
    kind: str
    rows: dict[frozenset[tuple[str, str]], float]
    """By labels. Rows of histograms and summaries are in families of their own names."""


_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def scraped(page: str) -> dict[str, ScrapedFamily]:
    """The families of a page in text format. Fails for a line that is none."""
    kinds: dict[str, str] = {}
    found: dict[str, ScrapedFamily] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            kinds[name] = kind
        elif line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match is not None, f"no row of metrics: {line}"
            family = found.setdefault(match["name"], ScrapedFamily(kinds.get(match["name"], ""), {}))
            family.rows[frozenset(_LABEL.findall(match["labels"] or ""))] = float(match["value"])
    return found


Sample = tuple[dict[str, str], float]


class RunningPrometheus:
    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.port = port
        self._process = process
        self._log = log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def query(self, expression: str) -> list[Sample]:
        """Rows of an instant query. Fails when the expression is refused."""
        answer = await self._get("/api/v1/query", query=expression)
        assert answer["status"] == "success", answer
        result = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [({}, float(result[1]))]
        return [(row["metric"], float(row["value"][1])) for row in result]

    async def targets(self) -> list[dict[str, Any]]:
        """As Prometheus sees them: `health`, `lastError`, `scrapeUrl`, ..."""
        found: list[dict[str, Any]] = (await self._get("/api/v1/targets"))["data"]["activeTargets"]
        return found

    async def rule_health(self) -> list[tuple[str, str]]:
        """(alert, health) of all rules, once each was evaluated."""
        end = time.monotonic() + _BOUND
        while True:
            groups = (await self._get("/api/v1/rules"))["data"]["groups"]
            found = [(rule["name"], rule["health"]) for group in groups for rule in group["rules"]]
            if found and all(health != "unknown" for _, health in found):
                return found
            assert time.monotonic() < end, f"rules were not evaluated within {_BOUND:g} s: {found}"
            await asyncio.sleep(0.1)

    async def metadata(self) -> dict[str, str]:
        """Type of each family that was scraped."""
        found = (await self._get("/api/v1/targets/metadata"))["data"]
        return {each["metric"]: each["type"] for each in found}

    async def wait_for_scrape(self, scrapes: int = 1) -> None:
        """Until each target has been scraped that often. Fails with the target's own error when one is down."""
        end = time.monotonic() + _BOUND
        while True:
            targets = await self.targets()
            down = [each["lastError"] for each in targets if each["health"] == "down"]
            assert not down, f"a target is down: {down}"
            rows = await self.query("count_over_time(up[1h])") if targets else []
            if len(rows) >= len(targets) > 0 and all(count >= scrapes for _, count in rows):
                return
            assert time.monotonic() < end, f"not scraped within {_BOUND:g} s: {targets}"
            await asyncio.sleep(0.05)

    async def _get(self, path: str, **query: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._get_now, path + "?" + urllib.parse.urlencode(query))

    def _get_now(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as refused:
            found = json.load(refused)
        return found

    async def wait_until_ready(self) -> None:
        end = time.monotonic() + _BOUND
        while time.monotonic() < end and self._process.poll() is None:
            try:
                await asyncio.to_thread(lambda: urllib.request.urlopen(self.url + "/-/ready", timeout=1).close())
            except OSError:
                await asyncio.sleep(0.05)
            else:
                return
        raise RuntimeError(f"Prometheus does not start: {self._log.read_text(errors='replace')[-2000:]}")


@asynccontextmanager
async def running_prometheus(
    directory: Path,
    targets: Sequence[str],
    *,
    interval: str = "200ms",
    token_file: Path | None = None,
    extra: str = "",
) -> AsyncIterator[RunningPrometheus]:
    """A Prometheus on loopback with its own data in `directory`, ended with the block. `extra`: more lines of its configuration."""
    home = directory / "prometheus"
    home.mkdir()
    config = home / "prometheus.yml"
    token = f"    authorization: {{credentials_file: {token_file}}}\n" if token_file is not None else ""
    config.write_text(
        f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}, evaluation_interval: {interval}}}\n"
        f"scrape_configs:\n  - job_name: coterie\n{token}    static_configs: [{{targets: {json.dumps(list(targets))}}}]\n"
        + extra
    )
    port = free_port()
    log = home / "log"
    process = _start(
        [
            PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ],
        log,
    )  # fmt: skip
    try:
        prometheus = RunningPrometheus(port, process, log)
        await prometheus.wait_until_ready()
        yield prometheus
    finally:
        _end(process)


@asynccontextmanager
async def running_node_exporter(directory: Path) -> AsyncIterator[str]:
    """The URL of its page."""
    port = free_port()
    # Debian's leaves out the loopback device, others do not.
    process = _start(
        [NODE_EXPORTER, f"--web.listen-address=127.0.0.1:{port}", "--collector.netdev.device-exclude=^none$"],
        directory / "node_exporter.log",
    )
    url = f"http://127.0.0.1:{port}/metrics"
    try:
        end = time.monotonic() + _BOUND
        while True:
            try:
                await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).close())
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < end, "node_exporter does not start"
                await asyncio.sleep(0.05)
        yield url
    finally:
        _end(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(command: Sequence[Path | str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
