"""NVIDIA's GPUs as the driver tells of them: whole, in MIG mode, broken, lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvml_kit import FakeEvent, FakeGpu, FakeMig, FakeNvml, FakeNvmlError, gpu, kind, machine_files

from coterie.kube.agent.devices.nvidia import GPU, NvidiaDevices, mig_profile
from coterie.kube.agent.devices.protocol import DeviceError

SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def seven_slices() -> FakeGpu:
    """An H200 with two instances, in the second and third place."""
    return FakeGpu(
        "GPU-m", 3, mig=[None, FakeMig("MIG-a", 7), FakeMig("MIG-b", 8, slices=2, compute_slices=2, memory_mib=33408)]
    )


def test_a_gpu_has_its_own_node_and_the_shared_ones(tmp_path: Path) -> None:
    found = kind(tmp_path, FakeNvml([gpu(0), FakeGpu("GPU-x", 5, "NVIDIA T4")])).discover()
    assert [(each.id, each.resource, each.index) for each in found] == [("GPU-0", GPU, 0), ("GPU-x", GPU, 1)]
    assert found[1].nodes == ("/dev/nvidia5", *SHARED), "by its minor number, not its index; never the modeset node"
    assert found[0].memory == 143771 << 20


def test_a_gpu_in_mig_mode_is_offered_by_its_instances(tmp_path: Path) -> None:
    found = kind(tmp_path, FakeNvml([gpu(0), seven_slices()])).discover()
    assert [(each.id, each.resource) for each in found] == [
        ("GPU-0", "nvidia.com/gpu"),
        ("MIG-a", "nvidia.com/mig-1g.18gb"),
        ("MIG-b", "nvidia.com/mig-2g.35gb"),
    ]
    assert found[1].nodes == ("/dev/nvidia3", *SHARED, "/dev/nvidia-caps/nvidia-cap20", "/dev/nvidia-caps/nvidia-cap21")
    assert found[2].nodes[-2:] == ("/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia-caps/nvidia-cap23")
    assert found[1].parent == "GPU-m"


@pytest.mark.parametrize(
    ("gpu_slices", "compute_slices", "size", "total", "expected"),
    [
        (1, 1, 16384, 143771, "1g.18gb"),
        (7, 7, 143771, 143771, "7g.141gb"),
        (3, 3, 71296, 143771, "3g.71gb"),
        (1, 1, 4864, 40536, "1g.5gb"),
        (2, 1, 9984, 40536, "1c.2g.10gb"),
    ],
)
def test_mig_profiles_have_the_names_that_nvidia_gives(
    gpu_slices: int, compute_slices: int, size: int, total: int, expected: str
) -> None:
    assert mig_profile(gpu_slices, compute_slices, size << 20, total << 20) == expected


def test_the_driver_names_profiles_itself_where_it_can(tmp_path: Path) -> None:
    one = FakeGpu("GPU-m", 0, mig=[FakeMig("MIG-a", 7, name="NVIDIA H200 MIG 1g.18gb+me")])
    assert kind(tmp_path, FakeNvml([one])).discover()[0].resource == "nvidia.com/mig-1g.18gb.me"


def test_an_instance_that_cannot_be_opened_is_left_out_with_its_gpu(tmp_path: Path) -> None:
    library = FakeNvml([gpu(0), seven_slices()])
    devices = NvidiaDevices(library, machine_files(tmp_path, library.gpus[0]))
    assert [each.id for each in devices.discover()] == ["GPU-0"]


def test_a_lost_gpu_does_not_hide_the_others(tmp_path: Path) -> None:
    library = FakeNvml([gpu(0), gpu(1)])
    library.gpus[0].lost = True
    assert [each.id for each in kind(tmp_path, library).discover()] == ["GPU-1"]


def test_a_driver_that_does_not_fit_its_library_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError):
        kind(tmp_path, FakeNvml([gpu(0)], broken=True)).discover()


def test_containers_see_their_own_gpus_by_uuid(tmp_path: Path) -> None:
    devices = kind(tmp_path, FakeNvml([gpu(0), gpu(1)]))
    found = devices.discover()
    assert devices.environment(found) == {
        "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
    }
    assert devices.environment([]) == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_errors_of_programs_do_not_make_a_gpu_unhealthy(tmp_path: Path, xid: int) -> None:
    library = FakeNvml([gpu(0)])
    devices = kind(tmp_path, library)
    devices.discover()
    library.events.put(FakeEvent(library.gpus[0], xid))
    assert devices.faults(0.1) == []
    assert devices.samples()[0].values["DCGM_FI_DEV_XID_ERRORS"] == xid


@pytest.mark.parametrize("xid", [48, 63, 74, 79, 95])
def test_other_critical_errors_do(tmp_path: Path, xid: int) -> None:
    library = FakeNvml([gpu(0), gpu(1)])
    devices = kind(tmp_path, library)
    devices.discover()
    library.events.put(FakeEvent(library.gpus[1], xid))
    (fault,) = devices.faults(0.1)
    assert (fault.id, fault.reason, fault.healthy) == ("GPU-1", "XidError", False)
    assert str(xid) in fault.message
    assert library.registered == ["GPU-0", "GPU-1"]


def test_an_error_of_one_mig_instance_leaves_the_others(tmp_path: Path) -> None:
    library = FakeNvml([seven_slices()])
    devices = kind(tmp_path, library)
    devices.discover()
    library.events.put(FakeEvent(library.gpus[0], 94, gpuInstanceId=8, computeInstanceId=0))
    assert [each.id for each in devices.faults(0.1)] == ["MIG-b"]
    library.events.put(FakeEvent(library.gpus[0], 79))
    assert [each.id for each in devices.faults(0.1)] == ["MIG-a", "MIG-b"], "the whole GPU: all of its instances"


def test_a_gpu_that_does_not_answer_is_lost(tmp_path: Path) -> None:
    library = FakeNvml([gpu(0), gpu(1)])
    now = [100.0]
    devices = NvidiaDevices(library, machine_files(tmp_path, *library.gpus), clock=lambda: now[0])
    devices.discover()
    assert devices.faults(0.01) == []
    library.gpus[1].lost = True
    assert devices.faults(0.01) == [], "it is asked from time to time only"
    now[0] += 31
    (fault,) = devices.faults(0.01)
    assert (fault.id, fault.reason) == ("GPU-1", "DeviceLost")
    now[0] += 31
    assert devices.faults(0.01) == [], "told once"


def test_the_driver_may_tell_itself_that_a_gpu_is_lost(tmp_path: Path) -> None:
    library = FakeNvml([gpu(0)])
    devices = kind(tmp_path, library)
    devices.discover()
    devices.faults(0.01)
    library.gpus[0].lost = True
    library.events.put(FakeNvmlError(15))
    assert [each.reason for each in devices.faults(0.01)] == ["DeviceLost"]


def test_without_events_gpus_are_still_asked_whether_they_answer(tmp_path: Path) -> None:
    library = FakeNvml([gpu(0)])
    now, slept = [100.0], []
    devices = NvidiaDevices(library, machine_files(tmp_path, *library.gpus), clock=lambda: now[0], sleep=slept.append)
    devices.discover()
    library.events.put(FakeNvmlError(3))
    assert devices.faults(5) == []
    assert devices.faults(5) == [] and slept == [5]
    library.gpus[0].lost = True
    now[0] += 31
    assert [each.reason for each in devices.faults(5)] == ["DeviceLost"]


def test_measurements_have_the_names_and_units_of_dcgm(tmp_path: Path) -> None:
    devices = kind(tmp_path, FakeNvml([gpu(0)]))
    devices.discover()
    (sample,) = devices.samples()
    assert sample.values == {
        "DCGM_FI_DEV_GPU_UTIL": 87,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 12,
        "DCGM_FI_DEV_FB_USED": 1000,
        "DCGM_FI_DEV_FB_FREE": 142771,
        "DCGM_FI_DEV_GPU_TEMP": 41,
        "DCGM_FI_DEV_POWER_USAGE": pytest.approx(123.456),
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_MEM_CLOCK": 3201,
        "DCGM_FI_DEV_XID_ERRORS": 0,
    }, "energy is missing: this GPU does not measure it"


def test_memory_is_measured_for_each_mig_instance(tmp_path: Path) -> None:
    devices = kind(tmp_path, FakeNvml([seven_slices()]))
    devices.discover()
    whole, first, second = devices.samples()
    assert "DCGM_FI_DEV_GPU_UTIL" not in whole.values
    assert (first.id, first.parent, first.instance) == ("MIG-a", "GPU-m", "7")
    assert second.values == {"DCGM_FI_DEV_FB_USED": 64, "DCGM_FI_DEV_FB_FREE": 33408 - 64}
