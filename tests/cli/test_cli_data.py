"""`coterie data` and the demo of it: what is refused, where files go, what the environment of the engine needs."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest

from coterie.cli import process_usage, psi_demo, psi_environment
from coterie.cli.app import App, CliError
from coterie.cli.commands.data import _name_of as name_of
from coterie.cli.data_access import cells, copy_into
from coterie.cli.main import main


def coterie(root: Path, *words: str) -> tuple[int, str]:
    out = io.StringIO()
    code = main(words, App(out, out, {"COTERIE_ROOT": str(root)}, cwd=root))
    return code, out.getvalue()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("add",), "write it as: coterie data add FILE"),
        (("grant", "customers"), "write it as: coterie data grant ID DOMAIN"),
        (("revoke",), "write it as: coterie data revoke GRANT..."),
        (("ls", "customers"), "takes no names"),
        (("eat",), "eat"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_understood(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    code, said = coterie(tmp_path, "data", *words)
    assert code == 2 and sentence in said


def test_without_a_network_there_is_no_data(tmp_path: Path) -> None:
    code, said = coterie(tmp_path, "data", "ls")
    assert code == 1 and "`coterie up` starts a network" in said


@pytest.mark.parametrize(
    ("word", "name"),
    [("My Customers.csv", "my-customers"), ("/x/y.tar.parquet", "y"), ("Übersicht.csv", "bersicht"), ("t_1", "t-1")],
)
def test_names_after_files(word: str, name: str) -> None:
    assert name_of(word) == name


class TestBrought:
    def test_a_file_of_the_domain_stays_where_it_is(self, tmp_path: Path) -> None:
        inside = tmp_path / "data" / "deep" / "t.csv"
        inside.parent.mkdir(parents=True)
        inside.write_text("a\n1\n")
        assert copy_into(inside, tmp_path / "data") == "deep/t.csv"

    def test_one_from_elsewhere_is_copied_once(self, tmp_path: Path) -> None:
        outside, data = tmp_path / "t.csv", tmp_path / "data"
        outside.write_text("a\n1\n")
        assert copy_into(outside, data) == "t.csv"
        assert (data / "t.csv").read_text() == "a\n1\n"
        with pytest.raises(CliError, match="exists already"):
            copy_into(outside, data)
        assert [each.name for each in data.iterdir()] == ["t.csv"], "nothing half is left"


def test_rows_as_they_are_shown() -> None:
    assert cells(pa.table({"a": [1, None], "b": ["x", "y"]})) == [("1", "x"), ("NULL", "y")]


def test_processes_of_a_domain() -> None:
    table = {
        10: (1, "python\0start\0/root/net/alice/etc/coterie.yaml"),
        11: (10, "envoy"),
        12: (11, "worker"),
        20: (1, "python\0start\0/root/net/bob/etc/coterie.yaml"),
        21: (20, "envoy"),
        30: (1, "python\0/root/net/alicette/etc"),
    }
    assert process_usage.belonging(table, "/root/net/alice/") == {10, 11, 12}


def test_the_tables_of_the_demo_have_half_in_common() -> None:
    ours = {line.split(",")[0] for line in psi_demo.customers(100)}
    theirs = {line.split(",")[0] for line in psi_demo.visitors(100)}
    assert len(ours) == len(theirs) == 100 and len(ours & theirs) == 50


class TestEnvironment:
    def app(self, tmp_path: Path, **environ: str) -> App:
        out = io.StringIO()
        return App(out, out, {psi_environment.VARIABLE: str(tmp_path / "tools"), **environ}, cwd=tmp_path)

    def test_it_is_where_it_is_told_to_be(self, tmp_path: Path) -> None:
        assert psi_environment.directory(self.app(tmp_path)) == tmp_path / "tools" / "psi"

    def test_what_cannot_be_fetched_is_told_and_leaves_nothing(self, tmp_path: Path) -> None:
        app = self.app(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
        with pytest.raises(CliError, match="then try again: coterie engine add psi"):
            psi_environment.install(app)
        assert not psi_environment.installed(psi_environment.directory(app))
        assert not psi_environment.directory(app).exists()

    def test_a_demo_of_nothing_is_refused(self, tmp_path: Path) -> None:
        code, said = coterie(tmp_path, "demo", "psi", "--rows", "1")
        assert code == 2 and "--rows is at least 2" in said
