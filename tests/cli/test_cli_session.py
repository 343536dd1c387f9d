"""Which control plane a command talks to, and what is said when there is none."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pytest

from coterie.cli.app import App, CliError
from coterie.cli.session import choose, kubeconfig_files
from coterie.kube.client import kubeconfig


def app_in(folder: Path, **environ: str) -> App:
    return App(io.StringIO(), io.StringIO(), {"HOME": str(folder), **environ}, cwd=folder)


def asked(**given: str) -> argparse.Namespace:
    return argparse.Namespace(**{"kubeconfig": "", "context": "", "root": "", "domain": "", "namespace": "", **given})


def write(path: Path, name: str = "c", namespace: str = "") -> Path:
    kubeconfig.make(name, f"https://{name}.test:6443", namespace=namespace).write(path)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def test_a_named_file_wins_over_everything(home):
    mine = write(home / "mine")
    write(home / ".coterie" / "alice" / "kubeconfig")
    args = asked(kubeconfig=str(mine), domain="alice")
    assert kubeconfig_files(args, app_in(home, KUBECONFIG="/elsewhere")) == [mine]


def test_a_named_domain_wins_over_the_environment(home):
    expected = write(home / ".coterie" / "alice" / "kubeconfig")
    write(home / ".coterie" / "bob" / "kubeconfig")
    assert kubeconfig_files(asked(domain="alice"), app_in(home, KUBECONFIG="/elsewhere")) == [expected]


def test_a_named_root_wins_over_the_environment(home):
    expected = write(home / "r" / "alice" / "kubeconfig")
    assert kubeconfig_files(asked(root="r"), app_in(home, KUBECONFIG="/elsewhere")) == [expected]


def test_the_environment_wins_over_the_only_domain(home):
    write(home / ".coterie" / "alice" / "kubeconfig")
    assert kubeconfig_files(asked(), app_in(home, KUBECONFIG="/a:/b")) == [Path("/a"), Path("/b")]


def test_the_only_domain_wins_over_the_home_file(home):
    expected = write(home / ".coterie" / "alice" / "kubeconfig")
    write(home / ".kube" / "config")
    assert kubeconfig_files(asked(), app_in(home)) == [expected]


def test_the_root_comes_from_the_environment(home):
    expected = write(home / "r" / "alice" / "kubeconfig")
    assert kubeconfig_files(asked(), app_in(home, COTERIE_ROOT=str(home / "r"))) == [expected]


def test_the_home_file_is_last(home):
    expected = write(home / ".kube" / "config")
    assert kubeconfig_files(asked(), app_in(home)) == [expected]


def test_several_domains_are_listed(home):
    for name in ("bob", "alice"):
        write(home / ".coterie" / name / "kubeconfig")
    with pytest.raises(CliError, match=r"choose one with --domain alice\|bob"):
        kubeconfig_files(asked(), app_in(home))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "start one with `coterie start -c FILE`"),
        ({"root": "r"}, "no domain with a kubeconfig under"),
        ({"domain": "carol"}, 'no domain "carol"'),
        ({"domain": "../x"}, 'no domain "../x"'),
        ({"kubeconfig": "missing"}, "there is no kubeconfig missing"),
    ],
    ids=str,
)
def test_nothing_found_says_what_to_do(home, given, said):
    with pytest.raises(CliError, match=said):
        kubeconfig_files(asked(**given), app_in(home))


def test_contexts_and_their_namespace(home):
    file = write(home / "f", "one", "alice")
    assert choose(asked(kubeconfig=str(file)), app_in(home)).namespace == "alice"
    with pytest.raises(CliError, match=r'no context "two"; choose a kubeconfig with --kubeconfig'):
        choose(asked(kubeconfig=str(file), context="two"), app_in(home))


def test_a_file_that_is_no_kubeconfig(home, cli):
    (home / "f").write_text("- a list")
    told = cli("--kubeconfig", str(home / "f"), "get", "pods")
    assert told.code == 1
    assert "not a kubeconfig: the top level must be a mapping" in told.err


def test_no_server_is_one_sentence_with_the_next_step(cli):
    file = cli.folder / "f"
    kubeconfig.make("dead", "http://127.0.0.1:9").write(file)
    told = cli("--kubeconfig", str(file), "get", "pods")
    assert (told.code, told.out) == (1, "")
    assert told.err == (
        "Error: no control plane answers at http://127.0.0.1:9; start it with `coterie start -c FILE`, "
        "or choose another with --kubeconfig or --domain\n"
    )
