"""`coterie api`: the document, printed or written."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from coterie.kuscia.kusciaapi.openapi import document
from coterie.kuscia.kusciaapi.table import OPERATIONS


def test_the_document_is_printed_in_both_forms(cli) -> None:
    told = document(OPERATIONS)
    assert json.loads(cli("api", "openapi").out) == told
    assert yaml.safe_load(cli("api", "openapi", "-o", "yaml").out) == told


def test_the_document_is_written_where_it_is_wanted(cli, tmp_path: Path) -> None:
    assert cli("api", "openapi", "--file", str(tmp_path / "o.json")).code == 0
    assert json.loads((tmp_path / "o.json").read_text()) == document(OPERATIONS)
    told = cli("api", "openapi", "--file", str(tmp_path / "no" / "o.json"))
    assert told.code == 1 and "cannot be written" in told.err


def test_other_words_are_refused(cli) -> None:
    assert cli("api").code == 2
    assert cli("api", "closed").code == 2
