from __future__ import annotations

from coterie.kuscia.gateway.machine_status import GatewayMachineSource, cpu, io, mem

ROUTES = "Iface\tDestination\tGateway\neth1\t00000000\t0101A8C0\neth0\t0000A8C0\t00000000\n"
DEVICES = """Inter-|   Receive |  Transmit
 face |bytes    packets
  eth0: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0
  eth1: 100 2 0 0 0 0 0 0 300 4 0 0 0 0 0 0
"""


def test_kuscias_names() -> None:
    assert dict(cpu("0.5 0.25 1 2/3 4", 8).rows) == {
        'stat="num"': 8,
        'stat="load1"': 0.5,
        'stat="load5"': 0.25,
        'stat="load15"': 1.0,
    }
    found = dict(mem("MemTotal: 100 kB\nMemFree: 40 kB\nMemAvailable: 70 kB\nBuffers: 5 kB\nCached: 25 kB\n").rows)
    assert (found['stat="used"'], found['stat="buff.cache"']) == (30 * 1024, 30 * 1024)
    assert dict(io(DEVICES, ROUTES).rows) == {
        'stat="send.bytes"': 300,
        'stat="send.packets"': 4,
        'stat="recv.bytes"': 100,
        'stat="recv.packets"': 2,
    }


async def test_this_machine() -> None:
    assert [family.name for family in await GatewayMachineSource().families()] == ["cpu", "mem", "io"]
