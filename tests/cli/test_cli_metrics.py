"""`coterie metrics`."""

from __future__ import annotations

import json

import pytest
import yaml


def test_dashboards_are_listed_printed_and_written(cli):
    listed = cli("metrics", "dashboards")
    assert listed.code == 0 and "Coterie: jobs" in listed.out and "gpus" in listed.out
    assert json.loads(cli("metrics", "dashboards", "jobs").out)["uid"] == "coterie-jobs"
    written = cli("metrics", "dashboards", "--to", "boards")
    assert written.code == 0, written.err
    files = sorted(path.name for path in (cli.folder / "boards").iterdir())
    assert "coterie-node.json" in files and len(files) == 7


def test_rules_and_scrape_configuration(cli):
    assert yaml.safe_load(cli("metrics", "rules").out)["groups"]
    assert cli("metrics", "rules", "--to", "rules.yml").code == 0
    assert yaml.safe_load((cli.folder / "rules.yml").read_text())["groups"]
    found = cli(
        "metrics", "scrape-config", "--target", "10.0.0.5:9091", "--token-file", "/etc/token", "--rules-file", "r.yml"
    )
    config = yaml.safe_load(found.out)
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["10.0.0.5:9091"]}]
    assert config["scrape_configs"][0]["authorization"] == {"credentials_file": "/etc/token"}
    assert config["rule_files"] == ["r.yml"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("dashboards", "nothing"), 'no dashboard "nothing"; there are node, links'),
        (("dashboards", "jobs", "node"), "add --to FOLDER"),
        (("rules", "jobs"), "takes no names"),
        (("rules", "--target", "a:1"), "belong to `coterie metrics scrape-config`"),
        (("scrape-config", "--target", "10.0.0.5"), "no address with a port"),
        (("rules", "--to", "/proc/nothing/rules.yml"), "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused(cli, words, why):
    refused = cli("metrics", *words)
    assert refused.code != 0 and why in refused.err
