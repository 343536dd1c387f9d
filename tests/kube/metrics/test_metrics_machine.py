"""The machine's figures from texts of /proc, and from this machine."""

from __future__ import annotations

import re

import pytest

from coterie.base.exposition import Family, render
from coterie.kube.metrics import machine


def rows(families: list[Family]) -> dict[str, dict[str, float]]:
    return {family.name: dict(family.rows) for family in families}


def test_cpu() -> None:
    found = rows(
        machine.cpu("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 200 300 400 500 600 700 800 0 0\nctxt 42\nbtime 1700000000\n")
    )
    assert found["node_cpu_seconds_total"]['cpu="0",mode="idle"'] == 4
    assert len(found["node_cpu_seconds_total"]) == 8
    assert found["node_boot_time_seconds"] == {"": 1700000000}


def test_memory_in_bytes() -> None:
    found = rows(machine.memory("MemTotal:  1024 kB\nMemAvailable:  512 kB\nHugePages_Total: 0\n"))
    assert found == {"node_memory_MemTotal_bytes": {"": 1048576}, "node_memory_MemAvailable_bytes": {"": 524288}}


def test_processes_that_were_killed_for_want_of_memory() -> None:
    (family,) = machine.kills("nr_free_pages 12\noom_kill 3\n")
    assert (family.name, family.rows) == ("node_vmstat_oom_kill", [("", 3)])
    assert machine.kills("nr_free_pages 12\n") == []


def test_whole_disks_only() -> None:
    text = (
        " 254 0 vda 10 0 16 1000 20 0 32 2000 3 4000 5000 0 0 0 0\n 254 1 vda1 1 0 2 3 4 0 5 6 0 7 8\n"
        " 7 0 loop0 1 0 2 3 4 0 5 6 0 7 8\n 259 0 nvme0n1 1 0 2 3 4 0 5 6 0 7 8\n 259 1 nvme0n1p1 1 0 2 3 4 0 5 6 0 7 8\n"
    )
    found = rows(machine.disks(text))
    assert list(found["node_disk_io_now"].items()) == [('device="vda"', 3), ('device="nvme0n1"', 0)]
    assert found["node_disk_read_bytes_total"]['device="vda"'] == 16 * 512
    assert found["node_disk_io_time_seconds_total"]['device="vda"'] == 4


def test_network_and_sockets() -> None:
    text = "Inter-| x\n face |y\n  eth0: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n"
    found = rows(machine.network(text))
    assert found["node_network_receive_bytes_total"] == {'device="eth0"': 1000}
    assert found["node_network_transmit_packets_total"] == {'device="eth0"': 20}
    snmp = "Tcp: RtoAlgorithm ActiveOpens PassiveOpens CurrEstab\nTcp: 1 5 6 7\n"
    found = rows(machine.tcp(snmp, "sockets: used 9\nTCP: inuse 4 orphan 0 tw 2 alloc 5 mem 1\n"))
    assert found["node_netstat_Tcp_CurrEstab"] == {"": 7}
    assert found["node_sockstat_TCP_tw"] == {"": 2}


def test_mounts_of_disks_once_each() -> None:
    text = (
        "proc /proc proc rw 0 0\n/dev/vda / ext4 rw 0 0\n/dev/vda /etc/hosts ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
        "/dev/vdb /data\\040one xfs rw 0 0\n"
    )
    assert machine.mounted(text) == [("/dev/vda", "/", "ext4"), ("/dev/vdb", "/data one", "xfs")]


def test_limits_of_the_process() -> None:
    limits = (
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max open files            1024                 20000                files\n"
        "Max address space         unlimited            unlimited            bytes\n"
    )
    found = rows(machine.process("VmSize:\t 100 kB\nVmRSS:\t 50 kB\n", limits, 7))
    assert found["process_max_fds"] == {"": 1024}
    assert found["process_virtual_memory_max_bytes"] == {"": -1}
    assert found["process_resident_memory_bytes"] == {"": 51200}


PROMISED = (
    "node_cpu_seconds_total node_memory_MemTotal_bytes node_memory_MemAvailable_bytes process_virtual_memory_max_bytes"
    " process_virtual_memory_bytes node_disk_io_now node_disk_io_time_seconds_total node_disk_read_bytes_total"
    " node_disk_read_time_seconds_total node_disk_written_bytes_total node_disk_write_time_seconds_total"
    " node_filesystem_avail_bytes node_filesystem_size_bytes node_filesystem_files node_filesystem_files_free process_max_fds"
    " process_open_fds node_load1 node_load5 node_load15 node_network_receive_bytes_total"
    " node_network_receive_packets_total node_network_transmit_bytes_total node_network_transmit_packets_total"
    " node_netstat_Tcp_CurrEstab node_netstat_Tcp_ActiveOpens node_netstat_Tcp_PassiveOpens node_sockstat_TCP_tw"
    " node_sockstat_TCP_alloc node_sockstat_TCP_inuse node_boot_time_seconds node_filefd_allocated node_filefd_maximum"
    " node_filesystem_free_bytes node_memory_MemFree_bytes node_memory_Buffers_bytes node_memory_Cached_bytes"
    " node_disk_reads_completed_total node_disk_writes_completed_total node_disk_io_time_weighted_seconds_total"
)


@pytest.mark.parametrize("name", PROMISED.split())
async def test_each_promised_name_is_there(name: str) -> None:
    page = render(await machine.MachineSource().families())
    assert f"# TYPE {name} " in page
    if not name.startswith(("node_disk", "node_filesystem")):
        assert re.search(rf"^{name}(?:{{[^}}]*}})? \S+$", page, re.MULTILINE)
