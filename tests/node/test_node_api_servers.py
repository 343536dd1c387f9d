"""Which API servers a joined node knows."""

from __future__ import annotations

from pathlib import Path

from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.network import Endpoint, EndpointPort, EndpointSlice
from coterie.node.api_servers import kept_servers, servers_of

OWN = "https://10.0.0.1:6443"


def published(port: int, *addresses: str) -> EndpointSlice:
    return EndpointSlice(
        metadata=ObjectMeta(name="kubernetes"),
        ports=(EndpointPort(port=port),),
        endpoints=tuple(Endpoint(addresses=(each,)) for each in addresses),
    )


def test_living_members_come_first_and_known_ones_are_kept():
    slices = [published(6443, "10.0.0.2", "10.0.0.1"), published(7443, "fd00::1")]
    living = [OWN, "https://10.0.0.2:6443", "https://[fd00::1]:7443"]
    assert servers_of(slices, OWN) == living
    assert servers_of(slices, OWN, ["https://10.0.0.9:6443", OWN]) == [*living, "https://10.0.0.9:6443"]
    many = [f"https://10.0.1.{each}:6443" for each in range(40)]
    assert servers_of(slices, OWN, many)[:3] == living and len(servers_of(slices, OWN, many)) == 16


def test_a_loopback_address_is_of_another_machine():
    slices = [published(6443, "127.0.0.1")]
    assert servers_of(slices, OWN) == [OWN]
    assert servers_of(slices, "https://127.0.0.1:1234") == ["https://127.0.0.1:1234", "https://127.0.0.1:6443"]


def test_a_file_of_before_is_read_with_care(tmp_path: Path):
    file = tmp_path / "api-servers"
    assert kept_servers(file, OWN) == [OWN]
    file.write_text("https://10.0.0.2:6443\nhttp://plain:80\nnonsense\n")
    assert kept_servers(file, OWN) == [OWN, "https://10.0.0.2:6443"]
