"""Who containers are on the machine, and whose files they write."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from runp_kit import RunpHarness, log_text

from coterie.kube.agent.runtimes.protocol import Mount, Security
from coterie.kube.agent.runtimes.runp import filesystem, users
from root_kit import needs_root

RECORD = "{}/state/{}/pod.json"


@pytest.fixture
def ranged(runp: RunpHarness) -> RunpHarness:
    if not runp.powers["users"]:
        pytest.skip("needs root: gives each pod users of its own")
    return runp


@pytest.fixture
async def unmapped(tmp_path: Path) -> AsyncIterator[RunpHarness]:
    """As on a file system that cannot map owners."""
    async with RunpHarness.opened(tmp_path, without=("idmap",)) as harness:
        if not harness.powers["users"]:
            pytest.skip("needs root: gives each pod users of its own")
        assert not harness.powers["idmap"] and not harness.powers["overlay"]
        yield harness


def ids(pid: int) -> tuple[int, int, list[int]]:
    """User, group and further groups, as the machine counts them."""
    found: dict[str, list[int]] = {}
    for line in status_of(pid).splitlines():
        key, _, rest = line.partition(":")
        if key in ("Uid", "Gid", "Groups"):
            found[key] = [int(word) for word in rest.split()]
    return found["Uid"][0], found["Gid"][0], found["Groups"]


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


async def test_each_pod_has_users_of_its_own(ranged: RunpHarness) -> None:
    await ranged.start("sleep 600", "a", uid="one")
    await ranged.start("sleep 600", "b", uid="one", security=Security(run_as_user=1000, run_as_group=1001))
    await ranged.start("sleep 600", "a", uid="two")
    root, _, groups = ids(ranged.state("a", "one").pid)
    assert root >= users.FIRST and root % users.SIZE == 0 and groups == []
    assert ids(ranged.state("b", "one").pid)[:2] == (root + 1000, root + 1001)
    assert ids(ranged.state("a", "two").pid)[0] // users.SIZE != root // users.SIZE


async def test_nobody_keeps_a_capability_of_the_machine(ranged: RunpHarness) -> None:
    await ranged.start("sleep 600")
    pid = ranged.state().pid
    assert os.stat(f"/proc/{pid}/ns/user").st_ino != os.stat("/proc/self/ns/user").st_ino
    status = status_of(pid)
    assert "CapBnd:\t00000000000005fb" in status and "CapEff:\t00000000000005fb" in status, "the nine harmless ones"
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status


async def test_users_and_groups_inside_and_on_disk(ranged: RunpHarness, tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "private"
    shared.mkdir()
    os.chown(shared, 0, 3000)
    shared.chmod(0o2770)
    private.write_text("for 1000 alone")
    os.chown(private, 1000, 1000)
    private.chmod(0o600)
    text = await ranged.output(
        "id -u; id -g; id -G; cat /in; echo; stat -c '%u %g' /in /out; echo x > /out/file; echo y > file; echo z > /tmp/file",
        security=Security(run_as_user=1000, run_as_group=2000, supplemental_groups=(3000, 4000)),
        mounts=(Mount(shared, "/out"), Mount(private, "/in", True)),
    )
    assert text.splitlines()[:3] == ["1000", "2000", "2000 3000 4000"]
    assert "for 1000 alone" in text and text.splitlines()[-2:] == ["1000 1000", "0 3000"], text
    made = (shared / "file").stat()
    assert (made.st_uid, made.st_gid) == (1000, 3000)
    (run,) = (tmp_path / "pods" / "uid-1" / "runp").glob("*.0")
    assert (run / "work" / "file").stat().st_uid == 1000 == (run / "tmp" / "file").stat().st_uid


async def test_root_of_a_container_owns_what_root_owns_on_disk(ranged: RunpHarness, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text("in a volume")
    (folder / "secret").chmod(0o600)
    text = await ranged.output(
        "cat /v/secret; chown 33:34 /v/secret; echo x > /v/new; id -u", mounts=(Mount(folder, "/v"),)
    )
    assert text == "in a volume0\n"
    assert (folder / "secret").stat().st_uid == 33 and (folder / "new").stat().st_uid == 0
    await ranged.runtime.remove_pod("uid-1")
    assert not (tmp_path / "pods" / "uid-1").exists()


@pytest.mark.parametrize("number", [65535, 65536, 1000660000])
async def test_large_ids(ranged: RunpHarness, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    security = Security(run_as_user=number, run_as_group=number, supplemental_groups=(number, 7))
    text = await ranged.output(
        "id -u; id -g; echo x > /v/f; echo e > /dev/stderr", security=security, mounts=(Mount(folder, "/v"),)
    )
    assert text.split()[:2] == [str(number)] * 2
    assert (folder / "f").stat().st_uid == number


async def test_exec_is_the_same_user_with_the_same_rights(ranged: RunpHarness) -> None:
    await ranged.start("sleep 600", "plain")
    await ranged.start("sleep 600", "other", security=Security(run_as_user=1000, supplemental_groups=(3000,)))
    for name, expected in (("plain", "0 0 0"), ("other", "1000 1000 1000 3000")):
        for tty in (False, True):
            script = "echo $(id -u) $(id -g) $(id -G); grep CapBnd /proc/self/status; : < $(tty) && echo terminal"
            session = await ranged.runtime.exec("uid-1", name, ("sh", "-c", script), stdin=False, tty=tty)
            text = b""
            while piece := await session.read_stdout():
                text += piece
            await session.wait()
            assert text.decode().replace("\r", "").splitlines()[0] == expected and b"00000000000005fb" in text
            assert (b"terminal" in text) == tty
            await session.close()


async def test_a_terminal_belongs_to_the_user(ranged: RunpHarness) -> None:
    spec = await ranged.start(
        "echo here > /dev/stdout; stat -Lc %u /dev/stdin", tty=True, security=Security(run_as_user=1000)
    )
    await ranged.ended()
    assert log_text(spec.log_path).replace("\r", "").splitlines() == ["here", "1000"]


async def test_privileged_containers_are_the_machines_root(ranged: RunpHarness) -> None:
    await ranged.start("sleep 600", security=Security(privileged=True))
    assert ids(ranged.state().pid)[0] == 0
    session = await ranged.runtime.exec("uid-1", "main", ("id", "-u"), stdin=False, tty=False)
    assert await session.read_stdout() == b"0\n"
    await session.close()


async def test_a_new_supervisor_knows_who_has_which_users(ranged: RunpHarness) -> None:
    await ranged.start("sleep 600", uid="one")
    before = ids(ranged.state(uid="one").pid)[0]
    os.kill(ranged.shepherd, 9)
    await ranged.until(lambda: ranged.runtime._client.connected is False)
    await ranged.start("sleep 600", uid="two")
    await ranged.start("sleep 600", "further", uid="one")
    assert ids(ranged.state("further", "one").pid)[0] == before
    assert ids(ranged.state(uid="two").pid)[0] != before
    session = await ranged.runtime.exec("one", "main", ("id", "-u"), stdin=False, tty=False)
    assert await session.read_stdout() == b"0\n"
    await session.close()


async def test_two_nodes_of_one_machine(ranged: RunpHarness, tmp_path: Path) -> None:
    async with RunpHarness.opened(tmp_path / "second") as second:
        await ranged.start("sleep 600")
        await second.start("sleep 600")
        assert ids(ranged.state().pid)[0] != ids(second.state().pid)[0]


async def test_without_mapping_the_pods_own_files_are_given_to_it(unmapped: RunpHarness, tmp_path: Path) -> None:
    volume = tmp_path / "pods" / "uid-1" / "volumes" / "v"
    volume.mkdir(parents=True)
    (volume / "token").write_text("for root alone")
    (volume / "token").chmod(0o600)
    (volume / "theirs").write_text("x")
    os.chown(volume / "theirs", 1000, 1000)
    text = await unmapped.output(
        "cat /v/token; stat -c %u /v/theirs; echo x > /v/new; echo y > file; echo z > ~/file; id -u",
        mounts=(Mount(volume, "/v"),),
    )
    assert text == "for root alone1000\n0\n"
    assert (volume / "new").stat().st_uid >= users.FIRST
    text = await unmapped.output("echo w > file; cat file", security=Security(run_as_user=1000))
    assert text == "w\n"
    await unmapped.runtime.remove_pod("uid-1")
    assert not (tmp_path / "pods" / "uid-1").exists()


async def test_without_mapping_an_image_is_copied_and_the_copy_given(unmapped: RunpHarness, tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    for name in ("usr", "etc", "home"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc" / "secret").write_text("of the image")
    (root / "etc" / "secret").chmod(0o600)
    unmapped.runtime.store.add_rootfs("tree:1", root)
    text = await unmapped.output(
        "cat /etc/secret; echo x > /etc/secret; stat -c %u /etc/secret",
        image="tree:1",
        mounts=(Mount(Path("/usr"), "/usr", True),),
    )
    assert text == "of the image0\n" and (root / "etc" / "secret").read_text() == "of the image"


async def test_a_link_in_a_volume_is_not_followed_when_it_is_given_away(tmp_path: Path) -> None:
    if not users.is_root():
        pytest.skip("needs root: gives files away")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    volume = tmp_path / "volume"
    (volume / "deep").mkdir(parents=True)
    (volume / "deep" / "link").symlink_to(outside)
    (volume / "deep" / "set").touch()
    users.give_away(str(volume), 3)
    users.give_away(str(volume), 3)
    first = users.FIRST + 3 * users.SIZE
    assert outside.stat().st_uid == 0 == (outside / "file").stat().st_uid
    assert {path.lstat().st_uid for path in (volume, volume / "deep" / "link", volume / "deep" / "set")} == {first}


async def test_groups_that_an_ordinary_user_cannot_give_hinder_nobody(runp: RunpHarness) -> None:
    groups = (await runp.output("id -G", security=Security(supplemental_groups=(3000,)))).split()
    assert ("3000" in groups) == users.is_root()


class TestRanges:
    def ranges(self, tmp_path: Path) -> users.UserRanges:
        return users.UserRanges(str(tmp_path / "run" / "users"))

    def record(self, tmp_path: Path, name: str) -> str:
        (tmp_path / name).touch()
        return str(tmp_path / name)

    def test_two_supervisors_never_give_the_same(self, tmp_path: Path) -> None:
        first, second = self.ranges(tmp_path), self.ranges(tmp_path)
        one, two = self.record(tmp_path, "one"), self.record(tmp_path, "two")
        assert [first.claim(one, None), second.claim(two, None), first.claim(one, 0)] == [0, 1, 0]
        first.release(one, 1)
        assert second.claim(two, 1) == 1, "only who has it lets it go"

    def test_a_range_that_somebody_took_meanwhile_is_not_given_back(self, tmp_path: Path) -> None:
        ranges = self.ranges(tmp_path)
        ranges.claim(self.record(tmp_path, "other"), 5)
        assert ranges.claim(self.record(tmp_path, "mine"), 5) == 0

    def test_what_no_record_stands_for_is_free(self, tmp_path: Path) -> None:
        record = self.record(tmp_path, "gone")
        assert self.ranges(tmp_path).claim(record, None) == 0
        os.unlink(record)
        assert self.ranges(tmp_path).claim(self.record(tmp_path, "new"), None) == 0

    def test_nothing_is_left_after_the_last(self, tmp_path: Path) -> None:
        ranges = self.ranges(tmp_path)
        record = self.record(tmp_path, "one")
        assert not (tmp_path / "run").exists()
        ranges.release(record, ranges.claim(record, None))
        assert not (tmp_path / "run").exists()
        assert ranges.claim(record, None) == 0

    def test_supervisors_that_come_and_go_at_once_do_not_meet(self, tmp_path: Path) -> None:
        def come_and_go(name: str) -> None:
            record = self.record(tmp_path, name)
            for _ in range(150):
                ranges = self.ranges(tmp_path)
                ranges.release(record, ranges.claim(record, None))

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(come_and_go, f"pod-{number}") for number in range(4)]:
                done.result(60)
        assert not (tmp_path / "run").exists()

    def test_a_file_in_the_place_of_the_directory_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "users").touch()
        with pytest.raises(NotADirectoryError):
            self.ranges(tmp_path)

    def test_the_ranges_do_not_meet(self) -> None:
        def spans(slot: int, large: list[int]) -> list[tuple[int, int]]:
            found = [line.split() for line in users.id_map(slot, large).splitlines()]
            return [(int(at), int(at) + int(count)) for _, at, count in found]

        large = [65536, 1000660000]
        every = sorted(span for slot in (0, 1, users.COUNT - 1, users.TRIAL_SLOT) for span in spans(slot, large))
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(every)) and every[-1][1] < 1 << 32

    def test_ids_on_the_machine(self) -> None:
        spec: dict[str, Any] = {"user": 70000, "group": None, "user_group": 70001, "groups": [5], "slot": 2}
        assert users.large_ids(spec) == [70000, 70001]
        assert users.owner(spec, {"namespaces": "root"}) == (0x30000000 + 128, 0x30000000 + 129)
        assert users.on_machine(2, [70000], 5) == users.FIRST + 2 * users.SIZE + 5


def test_modes_of_the_registry_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "run" / "users"
    record = tmp_path / "record"
    record.touch()
    users.UserRanges(str(directory)).claim(str(record), None)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


async def test_a_local_volume_keeps_its_owners_from_pod_to_pod(ranged: RunpHarness, tmp_path: Path) -> None:
    await _check_local_volume(ranged, tmp_path)


async def test_a_local_volume_keeps_its_owners_without_mapped_mounts(unmapped: RunpHarness, tmp_path: Path) -> None:
    await _check_local_volume(unmapped, tmp_path)


async def _check_local_volume(harness: RunpHarness, tmp_path: Path) -> None:
    """The files of a PersistentVolume belong to the users of whoever mounts it next, whatever its range is."""
    volume = tmp_path / "volumes" / "pvc-1"
    volume.mkdir(parents=True)
    volume.chmod(0o777)
    mounts = (Mount(volume, "/v"),)
    await harness.start("sleep 600", "holds", uid="a-range-that-is-taken")
    script = "umask 077; echo one > /v/file; chown 33 /v/file; echo own > /v/mine"
    await harness.start(script, uid="first", mounts=mounts)
    await harness.ended(uid="first")
    await harness.runtime.remove_pod("first")
    await harness.runtime.remove_pod("a-range-that-is-taken")
    text = await harness.output("cat /v/mine; stat -c %u /v/file /v/mine; echo two >> /v/mine", mounts=mounts)
    assert text == "own\n33\n0\n"
    assert (volume / "mine").read_text() == "own\ntwo\n"


@needs_root("changes owners")
def test_what_became_a_link_is_not_given_away(tmp_path: Path) -> None:
    """A subPath, on a file system whose mounts cannot map owners."""
    (tmp_path / "secret/data").mkdir(parents=True)
    (tmp_path / "secret/data/key").write_text("")
    (tmp_path / "own/vol/data").mkdir(parents=True)
    (tmp_path / "own/vol/data/file").write_text("")
    sources = filesystem.Sources()
    try:
        for name in ("data", "data/file"):
            sources.tree(str(tmp_path.resolve() / "own/vol" / name), 0, mapped=True, resolved=True)
        sources.give_away(3, str(tmp_path.resolve() / "own"))
        given = users.FIRST + 3 * users.SIZE
        assert {os.stat(tmp_path / "own/vol" / name).st_uid for name in ("data", "data/file")} == {given}
        (tmp_path / "own/vol").rename(tmp_path / "own/old")
        (tmp_path / "own/vol").symlink_to(tmp_path / "secret")
        with pytest.raises(filesystem.SetupError, match="has become a link"):
            sources.give_away(3, str(tmp_path.resolve() / "own"))
    finally:
        sources.close()
    assert os.stat(tmp_path / "secret/data/key").st_uid == 0 == os.stat(tmp_path / "secret/data").st_uid
