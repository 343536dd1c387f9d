"""`coterie image` as it is typed."""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path

import pytest
from image_kit import entry, oci, tar
from registry_kit import Content, Registry

from coterie.cli.app import App
from coterie.cli.main import main


@pytest.fixture
def cli(tmp_path: Path):
    def call(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        app = App(
            out, err, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, io.TextIOWrapper(io.BytesIO(stdin)), tmp_path
        )
        code = main(["image", *words], app)
        return code, out.getvalue(), err.getvalue()

    return call


def test_a_walk_through_all_actions(cli, tmp_path):
    at = ("--store", "store")
    assert cli("add", "engine:1", "--command", "sh", "--arg=-c", "--env", "A=b", *at)[:2] == (
        0,
        "added engine:1 (host)\n",
    )
    (tmp_path / "i.tar").write_bytes(oci([tar([entry("f", b"12345")])]))
    assert cli("load", "i.tar", *at)[:2] == (0, "loaded team/app:1 (5B)\n")
    assert cli("load", *at, stdin=(tmp_path / "i.tar").read_bytes())[0] == 0
    assert cli("tag", "team/app:1", "app", *at)[0] == 0
    code, out, _ = cli("ls", *at)
    assert code == 0 and out.splitlines()[0].split() == ["REPOSITORY", "TAG", "IMAGE", "ID", "SIZE", "KIND"]
    assert [line.split()[:2] for line in out.splitlines()[4:]] == [
        ["app", "latest"],
        ["engine", "1"],
        ["team/app", "1"],
    ]
    (found,) = json.loads(cli("ls", "engine:1", "-o", "json", *at)[1])
    assert (found["entrypoint"], found["cmd"], found["env"]) == (["sh"], ["-c"], ["A=b"])
    assert cli("rm", "engine:1", "app", *at)[0] == 0
    assert cli("ls", "-o", "name", *at)[1].splitlines()[3:] == ["team/app:1"]


def test_save_and_gc(cli, tmp_path):
    at = ("--store", "store")
    (tmp_path / "i.tar").write_bytes(oci([tar([entry("f", b"12345")])]))
    cli("load", "i.tar", *at)
    assert cli("save", "team/app:1", "--to", "saved.tar", *at) == (0, "saved team/app:1\n", "")
    assert cli("load", "saved.tar", "--store", "other")[0] == 0
    ids = [
        json.loads(cli("ls", "team/app:1", "-o", "json", "--store", name)[1])[0]["id"] for name in ("store", "other")
    ]
    assert ids[0] == ids[1]
    code, _, err = cli("save", "coterie/host", "--to", "host.tar", *at)
    assert code == 1 and "is a host environment" in err and not (tmp_path / "host.tar").exists()
    assert not list(tmp_path.glob(".*.part"))
    with Registry(Content()).serving() as registry:
        registry.content.add([tar([entry("g", b"12345")])], "1")
        name = f"{registry.host}/team/app:1"
        cli("pull", name, *at)
    assert cli("gc", "--unused-for", "1h", *at)[1].startswith("freed ")
    used = tmp_path / "store" / "used"
    for path in used.iterdir():
        os.utime(path, (1, 1))
    assert cli("gc", "--unused-for", "1h", "--dry-run", *at)[1] == f"would remove {name} (5B)\n"
    assert cli("gc", "--unused-for", "1h", *at)[1].splitlines()[0] == f"removed {name} (5B)"
    assert cli("ls", "-o", "name", *at)[1].splitlines()[3:] == ["team/app:1"]


def test_pull(cli, tmp_path):
    with Registry(Content()).serving() as registry:
        registry.content.add([tar([entry("f", b"12345")])], "1")
        name = f"{registry.host}/team/app:1"
        code, out, err = cli("pull", name, "--store", "store")
        assert (code, err) == (0, "") and out.startswith(f"pulled {name} (5B) sha256:")
        registry.token, registry.credentials = "t", "Basic " + base64.b64encode(b"me:secret").decode()
        assert cli("pull", name, "--store", "two")[::2] == (
            1, f"Error: {registry.host} refuses the user name or password for team/app\n"
        )  # fmt: skip
        given = ("--username", "me", "--password-stdin")
        assert cli("pull", name, *given, "--store", "three", stdin=b"secret\n")[0] == 0
        (tmp_path / ".docker").mkdir()
        auths = {"auths": {registry.host: {"auth": registry.credentials.removeprefix("Basic ")}}}
        (tmp_path / ".docker" / "config.json").write_text(json.dumps(auths))
        assert cli("pull", name, "--store", "four")[0] == 0
    assert "names no registry" in cli("pull", "nginx", "--store", "store")[2]
    assert cli("pull", name, "--username", "me", "--store", "store")[0] == 2
    assert cli("pull", "--store", "store")[0] == 2


def test_paths_that_an_image_makes_visible(cli, tmp_path):
    at = ("--store", "store")
    for name, words in (("engine:1", ()), ("engine:2", ("--visible", "/opt/models", "--visible", "data"))):
        assert cli("add", name, "--command", "sh", *words, *at)[0] == 0
    plain, other = json.loads(cli("ls", "engine:1", "engine:2", "-o", "json", *at)[1])
    assert "visible" not in plain and other["visible"] == ["/opt/models", f"{tmp_path}/data"]
    assert plain["id"] != other["id"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("rm", "nothing"), 1, "there is no image"),
        (("rm",), 2, "which images"),
        (("add", "x"), 2, "--command PATH"),
        (("add", "x", "--command", "sh", "--env", "A"), 2, "NAME=VALUE"),
        (("add", "x", "--rootfs", "/nowhere"), 1, "not a directory"),
        (("add", "x", "--rootfs", "/nowhere", "--command", "sh", "--visible", "/opt"), 2, "--visible is for a host"),
        (("add", "x", "--command", "sh", "--visible", "/opt/.."), 1, "cannot be made visible"),
        (("load", "missing.tar"), 1, "No such file"),
        (("tag", "one"), 2, "tag IMAGE NAME"),
        (("save",), 2, "which images to save"),
        (("save", "coterie/host"), 2, "not for a terminal"),
        (("gc", "x"), 2, "gc takes no images"),
        (("gc", "--unused-for", "soon"), 2, "is not an age"),
        (("dance",), 2, "invalid choice"),
    ],
)
def test_mistakes_are_told(cli, words, code, told):
    got, _, err = cli(*words, "--store", "store")
    assert got == code and told in err


def test_the_store_of_the_only_domain_is_found(cli, tmp_path):
    assert "no domain" in cli("ls")[2]
    (tmp_path / ".coterie/alice/var/images").mkdir(parents=True)
    assert cli("ls")[0] == 0
    (tmp_path / ".coterie/bob/var/images").mkdir(parents=True)
    assert "--domain alice|bob" in cli("ls")[2]
    assert cli("ls", "--domain", "bob")[0] == 0
