"""Real brokers of Apache Kafka for tests: KRaft, each broker its own controller, on loopback.

    with KafkaCluster(tmp_path, brokers=3) as cluster:
        bus = await open_bus(cluster.url("alice-"), tmp_path)
        cluster.kill(1)                              # SIGKILL

`scripts/get-kafka` brings the jars. `shared_kafka()` is one broker for all tests of a process, started by the first that asks.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

JARS = Path(__file__).parents[2] / ".tools" / "kafka" / "4.1.2" / "libs"
CLUSTER = "Q290ZXJpZUthZmthVGVzdA"
"""22 characters of base64, as Kafka wants it."""
HEAP = "-Xmx256m"
_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""A test run that is killed leaves no broker behind."""

_LOG4J = """
Configuration:
  Appenders:
    Console: {name: out, PatternLayout: {pattern: "%d %p %c: %m%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: out}}
"""

_PROPERTIES = """
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
offsets.topic.num.partitions=5
transaction.state.log.num.partitions=5
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.cleaner.dedupe.buffer.size=4194304
"""

_SASL = """
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="{user}" password="{password}" user_{user}="{password}";
"""


class KafkaCluster:
    """Starts in `with`, or by `start`. `login` (user, password): clients must authenticate by SASL PLAIN."""

    def __init__(self, folder: Path, brokers: int = 1, login: tuple[str, str] | None = None) -> None:
        if not JARS.is_dir():
            raise RuntimeError("Kafka is not there: run scripts/get-kafka")
        self.folder = folder
        self.ports = _free_ports(2 * brokers)
        self.brokers = brokers
        self.login = login
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> KafkaCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{self.ports[2 * number]}" for number in range(self.brokers)]

    def url(self, prefix: str = "") -> str:
        return f"kafka://{','.join(self.addresses)}" + (f"?prefix={prefix}" if prefix else "")

    def start(self) -> None:
        voters = ",".join(f"{number + 1}@127.0.0.1:{self.ports[2 * number + 1]}" for number in range(self.brokers))
        (self.folder / "log4j2.yaml").write_text(_LOG4J)
        for number in range(self.brokers):
            settings = _PROPERTIES.format(
                number=number + 1, voters=voters, port=self.ports[2 * number], controller=self.ports[2 * number + 1],
                data=self.folder / f"data-{number}", replicas=min(3, self.brokers), in_sync=2 if self.brokers > 2 else 1,
            )  # fmt: skip
            if self.login is not None:
                settings = settings.replace("PLAINTEXT:PLAINTEXT", "PLAINTEXT:SASL_PLAINTEXT").replace(
                    "CONTROLLER:SASL_PLAINTEXT", "CONTROLLER:PLAINTEXT"
                ) + _SASL.format(user=self.login[0], password=self.login[1])
            (self.folder / f"server-{number}.properties").write_text(settings)
        made = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", "server-0.properties")
        _check(made.wait(60) == 0, self._log())
        for number in range(1, self.brokers):  # the same but for the number of the node
            made = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", f"server-{number}.properties")
            _check(made.wait(60) == 0, self._log())
        for number in range(self.brokers):
            self.start_broker(number)
        for number in range(self.brokers):
            self.wait_for(number)

    def start_broker(self, number: int) -> None:
        self._running[number] = self._java("kafka.Kafka", f"server-{number}.properties")

    def wait_for(self, number: int, seconds: float = 120) -> None:
        """Until it answers; it opens its port last."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            _check(self._running[number].poll() is None, self._log())
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.ports[2 * number])) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"broker {number} did not start:\n{self._log()}")

    def kill(self, number: int) -> None:
        broker = self._running.pop(number)
        broker.send_signal(signal.SIGKILL)
        broker.wait(30)

    def pause(self, number: int) -> None:
        self._running[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._running[number].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for number in list(self._running):
            self.kill(number)

    def resident_megabytes(self, number: int) -> int:
        status = Path(f"/proc/{self._running[number].pid}/status").read_text()
        return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        options = [HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.configurationFile=log4j2.yaml"]
        with (self.folder / "output.log").open("ab") as output:
            return subprocess.Popen(
                [*_WITH_PARENT, "java", *options, "-cp", f"{JARS}/*", *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _log(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-4000:]


@functools.cache
def shared_kafka() -> KafkaCluster:
    folder = Path(tempfile.mkdtemp(prefix="kafka-"))
    cluster = KafkaCluster(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(cluster.stop)
    cluster.start()
    return cluster


def kafka_wanted() -> bool:
    return bool(os.environ.get("COTERIE_KAFKA"))


def _free_ports(count: int) -> list[int]:
    """Outside of the range that the kernel gives to clients, so that none of them takes one before the broker has it."""
    found: list[int] = []
    candidates = iter(range(20_000 + os.getpid() % 5000, 32_000))
    while len(found) < count:
        port = next(candidates)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found


def _check(good: bool, log: str) -> None:
    if not good:
        raise RuntimeError(f"Kafka failed:\n{log}")
