"""Runs inside a pod, with the standard library only: which GPUs does CUDA find, and do they compute?

The driver's own interface (libcuda) is called; a program in PTX adds two vectors. Prints one line of JSON.
With `--work SECONDS` it goes on adding for so long, and holds a GiB of the GPU's memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import uuid

PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
  .reg .pred %p; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %d<8>;
  ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p, %r5, %r1;
  @%p bra done;
  mul.wide.u32 %d4, %r5, 4;
  add.s64 %d5, %d1, %d4; add.s64 %d6, %d2, %d4; add.s64 %d7, %d3, %d4;
  ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6];
  add.f32 %f3, %f1, %f2;
  st.global.f32 [%d7], %f3;
done:
  ret;
}
\0"""
COUNT = 1 << 20


class CudaError(Exception):
    pass


class Cuda:
    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            raise CudaError(f"{name}: {code}")


def devices(cuda: Cuda) -> list[str]:
    cuda("cuInit", 0)
    count = ctypes.c_int()
    cuda("cuDeviceGetCount", ctypes.byref(count))
    found = []
    for at in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        cuda("cuDeviceGetUuid_v2", ctypes.byref(raw), at)
        found.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    return found


def add(cuda: Cuda, first: object, second: object, out: object, count: int, seconds: float = 0.0) -> None:
    """Adds two vectors of floats on the first GPU, again and again for so many seconds."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    cuda("cuDeviceGet", ctypes.byref(device), 0)
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    cuda("cuCtxSetCurrent", context)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(module), PTX)
    cuda("cuModuleGetFunction", ctypes.byref(function), module, b"add")
    size = count * 4
    places = [ctypes.c_uint64() for _ in range(3)]
    for place in places:
        cuda("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
    for place, values in zip(places, (first, second), strict=False):
        cuda("cuMemcpyHtoD_v2", place, values, ctypes.c_size_t(size))
    held = ctypes.c_uint64()
    if seconds:
        cuda("cuMemAlloc_v2", ctypes.byref(held), ctypes.c_size_t(1 << 30))
    number = ctypes.c_uint32(count)
    given = (ctypes.c_void_p * 4)(*(ctypes.addressof(each) for each in (*places, number)))
    until = time.monotonic() + seconds
    while True:
        for _ in range(200 if seconds else 1):
            cuda("cuLaunchKernel", function, -(-count // 256), 1, 1, 256, 1, 1, 0, None, given, None)
        cuda("cuCtxSynchronize")
        if time.monotonic() >= until:
            break
    cuda("cuMemcpyDtoH_v2", out, places[2], ctypes.c_size_t(size))


def compute(cuda: Cuda, seconds: float) -> bool:
    first, second = (ctypes.c_float * COUNT)(*map(float, range(COUNT))), (ctypes.c_float * COUNT)(*([0.5] * COUNT))
    out = (ctypes.c_float * COUNT)()
    add(cuda, first, second, out, COUNT, seconds)
    return all(out[i] == i + 0.5 for i in range(0, COUNT, 997))


def main() -> None:
    seconds = float(sys.argv[sys.argv.index("--work") + 1]) if "--work" in sys.argv else 0.0
    names = [name for name in sorted(os.listdir("/dev")) if name.startswith("nvidia")]
    report: dict[str, object] = {
        "dev": names,
        "caps": sorted(os.listdir("/dev/nvidia-caps")) if "nvidia-caps" in names else [],
        "variables": {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")},
        "gpus": [],
    }
    if seconds:
        print(json.dumps({"begins": True}), flush=True)
    try:
        cuda = Cuda()
        report["gpus"] = devices(cuda)
        if report["gpus"]:
            report["added"] = compute(cuda, seconds)
    except (CudaError, OSError, AttributeError) as problem:
        report["error"] = str(problem)
    print(json.dumps(report), flush=True)


main()
