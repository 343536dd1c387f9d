"""Process 1 of a container on containerd: passes signals on, buries orphans, and ends as the container's program ends.

Without it the program itself is process 1, which ignores every signal that it does not handle: a program that knows nothing of
containers is then stopped by SIGKILL only, after its whole grace. The file is mounted into each container; it is given the
program and its arguments, finds the program by PATH, and sends SIGTERM to all processes, as RunP does.

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
4889e74883e4f0e8a70100004889fe31d2803c1600740548ffc2ebf54531d2b801000000bf020000000f05c3554889f231c0534889fb4881
ec00100000488b3f4889f9408a314084f674134080fe2f400f94c648ffc1400fb6f609f0ebe585c074154531d2b83b0000004889de0f0549
89c1e9eb0000004889d141b8c7034000488b014885c07427803850751c80780141751680780254751080780348750a8078043d75044c8d40
054883c108ebd149c7c1feffffffbd3b000000418038000f849d00000031c0418a0c0084c9740580f93a750489c1eb15483d000800007408
880c0448ffc0ebdfb9000800004901c0418a0084c074093c3a740549ffc0ebf03c014983d8ff85c97509c604242eb9010000004863c1488b
33ffc1c604042f4863c94829c6408a7c0eff4863c14084ff741181f9ff0f0000740940883c0c48ffc1ebe2c60404004531d24889e74889e8
4889de0f054883f8fe4c0f45c8e959ffffffbf04044000e8a0feffff488b3be898feffff4983f9fe7511bf14044000e888feffffbf7f0000
00eb0fbf21044000e877feffffbf7e00000031d24531d2b8e70000004889d60f054881c4001000005b5dc3415731d24531d241564889d641
554154554889fd534883ec20488b0748c7442410ffffffff4c8d64c71031c04889d74889442418b8270000000f0548ffc8740c488d7d104c
89e6e82dfeffff4c8d6c241841b80e000000488d74241041b90200000041ba080000004c89c04c89cf4c89ea0f0531d24531d2b839000000
4889d74889d60f054889c34885c07933b8e7000000bf7d0000000f0541bc800000004531c041b93e0000004883cdff41bd3d00000041be01
00000041bfe7000000eb7075d74531d2b8270000004889df4889de4889da0f058944240cb86d0000000f05b810000000be10540000488d54
240c0f0541ba080000004c89c04c89cf4c89ee4889da0f05488d7d104c89e6e868fdffffeb864885c07f424531d24c89e84889ef4c89f248
8d74240c0f054885c07f3b41ba080000004c89e04c89c64c89c2488d7c24100f054889c64883f80f75c44531d24c89c84889efeb364883f8
1174b84531d24c89c84889dfeb224839c375a88b44240c89c283e27f74198d82800000004863f84531d24c89f84c89c64c89c20f05eb840f
b6fc4863ffebe82f7573722f6c6f63616c2f7362696e3a2f7573722f6c6f63616c2f62696e3a2f7573722f7362696e3a2f7573722f62696e
3a2f7362696e3a2f62696e0063616e6e6f74206578656375746520003a206e6f7420666f756e640a003a206e6f742065786563757461626c
650a00
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
