"""Process 1 of a container on containerd: passes signals on, buries orphans, and ends as the container's program ends.

Without it the program itself is process 1, which ignores every signal that it does not handle: a program that knows nothing of
containers is then stopped by SIGKILL only, after its whole grace. The file is mounted into each container; it is given limits of
open files and of the size of files (CRI has none), the program and its arguments; it finds the program by PATH, and sends
SIGTERM to all processes, as RunP does.

The bytes are `container_init.c`, compiled without a library and linked at 0x400078, behind the headers below:

    gcc -Os -nostdlib -static -ffreestanding -fno-pic -fno-pie -no-pie -fno-stack-protector -fcf-protection=none \\
        -fno-asynchronous-unwind-tables -fno-builtin -fno-ident -mno-red-zone -c container_init.c
    ld --oformat binary, with one section at 0x400078: .text.first, .text, .rodata

There are none for other machines than x86_64: there the program is process 1, as in Kubernetes.
"""

from __future__ import annotations

import os
import struct

PATH = "/dev/coterie-init"
"""Inside of containers: in the small file system of their own that /dev is, so that nothing is left in what they write."""
_AT = 0x400000
_X86_64 = bytes.fromhex("""
4889e74883e4f0e8150200004889fe31d2803c1600740548ffc2ebf54531d2b801000000bf020000000f05c34189f94531c08a0683e8303c
0977104d6bc00a480fbec048ffc64901c0ebe74d85c074495331d24963f1b82e0100004889d74883ec104889e34989da0f054885c075244c
3b442408731d41ffc94c89042475054c894424084531d2b82e01000031ff4889da0f054883c4105bc3c3554889f231c0534889fb4881ec00
100000488b3f4889f9408a314084f674134080fe2f400f94c648ffc1400fb6f609f0ebe585c074154531d2b83b0000004889de0f054989c1
e9eb0000004889d141b84b044000488b014885c07427803850751c80780141751680780254751080780348750a8078043d75044c8d400548
83c108ebd149c7c1feffffffbd3b000000418038000f849d00000031c0418a0c0084c9740580f93a750489c1eb15483d000800007408880c
0448ffc0ebdfb9000800004901c0418a0084c074093c3a740549ffc0ebf03c014983d8ff85c97509c604242eb9010000004863c1488b33ff
c1c604042f4863c94829c6408a7c0eff4863c14084ff741181f9ff0f0000740940883c0c48ffc1ebe2c60404004531d24889e74889e84889
de0f054883f8fe4c0f45c8e959ffffffbf88044000e832feffff488b3be82afeffff4983f9fe7511bf98044000e81afeffffbf7f000000eb
0fbfa5044000e809feffffbf7e00000031d24531d2b8e70000004889d60f054881c4001000005b5dc3415731c0415641554154554889fd53
4883ec204c8b2748c7442410ffffffff48894424184983fc037f1431d24531d2b8e7000000bf7d0000004889d60f054c8d6c241841b80e00
0000488d74241041b90200000041ba080000004c89c04c89cf4c89ea0f0531d24531d2b8390000004889d74889d60f054889c34885c07936
b8e7000000bf7d0000000f0541bc800000004531c041b93e0000004883cdff41bd3d00000041be0100000041bfe7000000e99100000075d4
4531d2b8270000004889df4889de4889da0f058944240cb86d0000000f05b810000000be10540000488d54240c0f0541ba080000004c89c0
4c89cf4c89ee4889da0f05488b7510bf07000000e803fdffff488b7518bf01000000e8f5fcffff4a8d74e510488d7d20e855fdffffe962ff
ffff4885c07f424531d24c89e84889ef4c89f2488d74240c0f054885c07f3b41ba080000004c89e04c89c64c89c2488d7c24100f054889c6
4883f80f75c44531d24c89c84889efeb364883f81174b84531d24c89c84889dfeb224839c375a88b44240c89c283e27f74198d8280000000
4863f84531d24c89f84c89c64c89c20f05eb840fb6fc4863ffebe82f7573722f6c6f63616c2f7362696e3a2f7573722f6c6f63616c2f6269
6e3a2f7573722f7362696e3a2f7573722f62696e3a2f7362696e3a2f62696e0063616e6e6f74206578656375746520003a206e6f7420666f
756e640a003a206e6f742065786563757461626c650a00
""")


def program() -> bytes:
    """The whole file; empty where there is none for this machine."""
    if os.uname().machine != "x86_64":
        return b""
    head = 64 + 56
    size = head + len(_X86_64)
    elf = struct.pack(
        "<4sBBBBxxxxxxxxHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 62, 1, _AT + head, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _AT, _AT, size, size, 0x1000)
    return elf + segment + _X86_64


def is_listening(pid: int) -> bool:
    """Whether it takes signals already: it keeps all of them back to read them one by one. True also where another program
    is process 1, or nothing can be said."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":\t", 1) for line in file if ":\t" in line)
        if fields["Name"].strip() not in (os.path.basename(PATH)[:15], "runc:[2:INIT]"):
            return True
        return int(fields["SigBlk"], 16) != 0
    except (OSError, KeyError, ValueError):
        return True
